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


def to_rgb(rows: np.ndarray, encoding: str) -> np.ndarray:
    """uint8 `[height, 2 * width]` to uint8 `[height, width, 3]`.

    Raises ValueError for an odd width.
    """
    height, width = rows.shape[0], rows.shape[1] // 2
    if width % 2:
        raise ValueError(f"{encoding} image is {width} pixels wide, expected an even width")
    first, u_at, v_at = ORDERS[encoding]
    pairs = rows.reshape(height, width // 2, 4).astype(np.int32)
    light = 298 * (pairs[:, :, (first, first + 2)] - 16) + 128
    u, v = pairs[:, :, u_at, None] - 128, pairs[:, :, v_at, None] - 128
    colours = (light + 409 * v, light - 100 * u - 208 * v, light + 516 * u)
    rgb = np.stack([np.clip(colour >> 8, 0, 255) for colour in colours], axis=-1)
    return rgb.astype(np.uint8).reshape(height, width, 3)
