# SPDX-License-Identifier: Apache-2.0
"""sensor_msgs/CompressedImage, jpeg or png, to rgb arrays.

The file's own header says what it is; `format` is not believed, since publishers fill it in
differently (sensor_msgs/CompressedImage.msg has its grammar).
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from flashrt_ros.ros.images import MAX_PIXELS, check_size, to_8_bit

_FORMATS = ("JPEG", "PNG")
_MODES = ("RGB", "RGBA", "L", "I;16", "I")  # 16 bits of grey are I;16, or I by an older Pillow


def to_rgb(message: Any, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode a compressed image: uint8 `[height, width, 3]`.

    Alpha is dropped, 16 bits of grey are scaled to 8. The size is read before anything is
    decompressed. Orientation tags are not followed.

    Raises:
        ValueError: neither jpeg nor png, corrupt or cut, too large, or other colours than grey and
            rgb.
    """
    from PIL import Image, UnidentifiedImageError

    data = bytes(message.data)
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
            check_size(picture.height, picture.width, max_pixels)
            if picture.mode not in _MODES:
                raise ValueError(
                    f"compressed image has colours of mode '{picture.mode}', expected one of "
                    f"{', '.join(_MODES)}"
                )
            picture.load()
            pixels = np.array(picture)  # writable, as others are
    except UnidentifiedImageError:
        raise ValueError(
            f"compressed image of format '{message.format}' and {len(data)} bytes is neither jpeg "
            "nor png"
        ) from None
    except Image.DecompressionBombError as error:
        raise ValueError(f"compressed image is too large: {error}") from None
    except ValueError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds for bytes that are no image
        raise ValueError(
            f"compressed image of format '{message.format}' and {len(data)} bytes is corrupt: "
            f"{error}"
        ) from None
    if pixels.dtype != np.uint8:
        pixels = to_8_bit(pixels)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    return np.ascontiguousarray(pixels[:, :, :3])
