# SPDX-License-Identifier: Apache-2.0
"""sensor_msgs/Image to rgb arrays.

Messages are read by their fields' names, so that those of rclpy and those read from a bag both do,
and this module needs no ROS. cv_bridge is not used: it needs OpenCV, and its byte swap fails with
NumPy 2. Names of encodings are those of sensor_msgs/image_encodings.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashrt_ros.ros import bayer, yuv

MAX_PIXELS = 1 << 24
"""An image with more is refused: 4096 x 4096, larger than any policy's camera."""


@dataclass(frozen=True)
class _Layout:
    """Interleaved channels: how many, which are red, green and blue, and bytes of each."""

    channels: int
    order: tuple[int, int, int]
    size: int = 1


_RGB, _BGR, _GREY = (0, 1, 2), (2, 1, 0), (0, 0, 0)
_LAYOUTS = {
    "rgb8": _Layout(3, _RGB),
    "bgr8": _Layout(3, _BGR),
    "rgba8": _Layout(4, _RGB),
    "bgra8": _Layout(4, _BGR),
    "mono8": _Layout(1, _GREY),
    "rgb16": _Layout(3, _RGB, 2),
    "bgr16": _Layout(3, _BGR, 2),
    "rgba16": _Layout(4, _RGB, 2),
    "bgra16": _Layout(4, _BGR, 2),
    "mono16": _Layout(1, _GREY, 2),
}
ENCODINGS = tuple(sorted([*_LAYOUTS, *bayer.PATTERNS, *yuv.ORDERS]))


def to_rgb(message: Any, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode an image: uint8 `[height, width, 3]`, rows without padding.

    An rgb8 image without padding is not copied: the array is a view of the message's data. Samples
    of 16 bits are scaled to 8 (65535 is 255, rounded to the nearest). Alpha is dropped.

    Raises:
        ValueError: unknown encoding, no pixels or too many, or `step` and the data's length don't
            fit the size.
    """
    encoding = str(message.encoding)
    if encoding not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        raise ValueError(f"image encoding is '{encoding}', expected one of {known}")
    height, width = int(message.height), int(message.width)
    check_size(height, width, max_pixels)
    if encoding in bayer.PATTERNS:
        return bayer.to_rgb(_rows(message, 1), encoding)
    if encoding in yuv.ORDERS:
        return yuv.to_rgb(_rows(message, 2), encoding)
    layout = _LAYOUTS[encoding]
    rows = _rows(message, layout.channels * layout.size)
    if layout.size == 2:
        order = ">u2" if message.is_bigendian else "<u2"
        rows = to_8_bit(np.ascontiguousarray(rows).view(order))
    pixels = rows.reshape(height, width, layout.channels)
    if layout.channels == 3 and layout.order == _RGB:
        return np.ascontiguousarray(pixels)
    # A plane at a time is several times faster than picking channels by an index of all three.
    rgb = np.empty((height, width, 3), dtype=np.uint8)
    for target, channel in enumerate(layout.order):
        rgb[:, :, target] = pixels[:, :, channel]
    return rgb


def check_size(height: int, width: int, max_pixels: int) -> None:
    """Raise ValueError for an image without pixels, or with more than are allowed."""
    if height < 1 or width < 1:
        raise ValueError(f"image is {width} x {height} pixels, expected at least 1 x 1")
    if height * width > max_pixels:
        raise ValueError(
            f"image is {width} x {height} = {width * height} pixels, expected at most {max_pixels}"
        )


def to_8_bit(samples: np.ndarray) -> np.ndarray:
    """Samples of 16 bits as uint8: `value / 257`, rounded to the nearest."""
    # The same as (value + 128) // 257 for all 65536, without a division.
    scaled = samples.astype(np.uint32)
    scaled *= 255
    scaled += 32895
    scaled >>= 16
    return scaled.astype(np.uint8)


def _rows(message: Any, pixel_bytes: int) -> np.ndarray:
    """The rows without padding, uint8 `[height, width * pixel_bytes]`: a view of the data."""
    height, width, step = int(message.height), int(message.width), int(message.step)
    row = width * pixel_bytes
    if step < row:
        raise ValueError(
            f"image step is {step} bytes, expected at least {row} "
            f"({width} pixels of {message.encoding})"
        )
    data = np.frombuffer(message.data, dtype=np.uint8)
    if data.size != step * height:
        raise ValueError(
            f"image has {data.size} bytes, expected {step * height} "
            f"(step {step} times height {height})"
        )
    return data.reshape(height, step)[:, :row]
