# SPDX-License-Identifier: Apache-2.0
"""Packed YUV 4:2:2, which USB cameras send, to rgb.

Two pixels share U and V. Conversion by ITU-R BT.601 with its limited range (black 16, white 235),
in units of 1/256, the sum rounded down and cut to 0 .. 255:

    R = 298 (Y - 16)                 + 409 (V - 128) + 128
    G = 298 (Y - 16) - 100 (U - 128) - 208 (V - 128) + 128
    B = 298 (Y - 16) + 516 (U - 128)                 + 128
"""

from __future__ import annotations

import numpy as np

ORDERS = {
    "uyvy": (1, 0, 2),
    "yuv422": (1, 0, 2),
    "yuyv": (0, 1, 3),
    "yuv422_yuy2": (0, 1, 3),
}
"""Encoding to the places of the first Y, U and V in four bytes; the second Y is two further."""

# The formula's terms, by byte: gathering them is faster than multiplying.
_BYTES = np.arange(256, dtype=np.int32)
_LIGHT = 298 * (_BYTES - 16) + 128
_RED_V, _GREEN_V = 409 * (_BYTES - 128), -208 * (_BYTES - 128)
_GREEN_U, _BLUE_U = -100 * (_BYTES - 128), 516 * (_BYTES - 128)


def to_rgb(rows: np.ndarray, encoding: str) -> np.ndarray:
    """uint8 `[height, 2 * width]` to uint8 `[height, width, 3]`.

    Raises ValueError for an odd width.
    """
    height, width = rows.shape[0], rows.shape[1] // 2
    if width % 2:
        raise ValueError(f"{encoding} image is {width} pixels wide, expected an even width")
    first, u_at, v_at = ORDERS[encoding]
    light = _LIGHT[rows[:, first::2]]
    u, v = rows[:, u_at::4], rows[:, v_at::4]
    rgb = np.empty((height, width, 3), dtype=np.uint8)
    for channel, colour in enumerate((_RED_V[v], _GREEN_U[u] + _GREEN_V[v], _BLUE_U[u])):
        for half in (0, 1):  # of each pair of pixels
            value = light[:, half::2] + colour
            value >>= 8
            rgb[:, half::2, channel] = np.clip(value, 0, 255, out=value)
    return rgb
