# SPDX-License-Identifier: Apache-2.0
"""sensor_msgs/Image to rgb arrays.

cv_bridge is not used: it needs OpenCV, and its byte swap fails with NumPy 2.
"""

from __future__ import annotations

import numpy as np
from sensor_msgs.msg import Image

# Encoding to (channels, order of red, green, blue among them). Names are those of
# sensor_msgs/image_encodings.hpp.
_ENCODINGS: dict[str, tuple[int, tuple[int, int, int]]] = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "mono8": (1, (0, 0, 0)),
}


def to_rgb(message: Image) -> np.ndarray:
    """Decode an image: uint8 `[height, width, 3]`, rows without padding.

    Raises:
        ValueError: unknown encoding, or `step` and the data's length don't fit the size.
    """
    if message.encoding not in _ENCODINGS:
        known = ", ".join(sorted(_ENCODINGS))
        raise ValueError(f"image encoding is '{message.encoding}', expected one of {known}")
    channels, order = _ENCODINGS[message.encoding]
    row = message.width * channels
    if message.step < row:
        raise ValueError(
            f"image step is {message.step} bytes, expected at least {row} "
            f"({message.width} pixels of {message.encoding})"
        )
    data = np.frombuffer(message.data, dtype=np.uint8)
    if data.size != message.step * message.height:
        raise ValueError(
            f"image has {data.size} bytes, expected {message.step * message.height} "
            f"(step {message.step} times height {message.height})"
        )
    pixels = data.reshape(message.height, message.step)[:, :row]
    pixels = pixels.reshape(message.height, message.width, channels)
    return np.ascontiguousarray(pixels[:, :, order])
