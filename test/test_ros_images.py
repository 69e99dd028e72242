# SPDX-License-Identifier: Apache-2.0
"""Images in every encoding against a decoder that goes pixel by pixel; bad ones refused by name.

Messages are those that rosbags reads from a bag; `test_messages_of_both_kinds_decode_alike` shows
that rclpy's give the same.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rosbags", reason="rosbags is not installed")
from PIL import Image as Picture
from rosbags.typesys import Stores, get_typestore

from flashrt_ros.policies.contract import CameraInput, Crop, Filter, Fit, MessageType, Resize
from flashrt_ros.ros import compressed, images
from flashrt_ros.ros.decoding import decode_array, resize

TYPES = get_typestore(Stores.LATEST).types
HEADER = TYPES["std_msgs/msg/Header"](TYPES["builtin_interfaces/msg/Time"](1, 2), "")
CHANNELS = {"rgb8": "rgb", "bgr8": "bgr", "rgba8": "rgba", "bgra8": "bgra", "mono8": "y"}
CHANNELS |= {name.replace("8", "16"): letters for name, letters in CHANNELS.items()}


def message(encoding: str, size: tuple[int, int], step: int, data: bytes, big: int = 0) -> Any:
    array = np.frombuffer(data, dtype=np.uint8)
    return TYPES["sensor_msgs/msg/Image"](HEADER, *size, encoding, big, step, array)


def compressed_message(data: bytes, kind: str = "jpeg") -> Any:
    array = np.frombuffer(data, dtype=np.uint8)
    return TYPES["sensor_msgs/msg/CompressedImage"](HEADER, kind, array)


def pixel_bytes(encoding: str) -> int:
    if encoding in CHANNELS:
        return len(CHANNELS[encoding]) * (2 if "16" in encoding else 1)
    return 1 if encoding.startswith("bayer") else 2


# -- the reference: one pixel at a time, plain numbers -----------------------------------------


def reference(image: Any) -> np.ndarray:
    rgb = np.zeros((image.height, image.width, 3), dtype=np.uint8)
    for y in range(image.height):
        for x in range(image.width):
            rgb[y, x] = reference_pixel(image, y, x)
    return rgb


def reference_pixel(image: Any, y: int, x: int) -> list[int]:
    data, encoding = image.data.tolist(), image.encoding
    if encoding.startswith("bayer"):
        return [bayer_channel(image, data, y, x, colour) for colour in "rgb"]
    if encoding not in CHANNELS:
        return yuv_pixel(image, data, y, x)
    letters = CHANNELS[encoding]
    values = {}
    for index, letter in enumerate(letters):
        if "16" in encoding:
            at = y * image.step + (x * len(letters) + index) * 2
            low, high = data[at : at + 2][:: -1 if image.is_bigendian else 1]
            value = (256 * high + low) * 255 / 65535
            values[letter] = int(value + 0.5)
        else:
            values[letter] = data[y * image.step + x * len(letters) + index]
    return [values.get(colour, values.get("y", 0)) for colour in "rgb"]


def bayer_channel(image: Any, data: list[int], y: int, x: int, colour: str) -> int:
    """The pixel itself if it has the colour, else the mean of those around it that have."""
    pattern = image.encoding.removeprefix("bayer_")[:4]

    def colour_at(row: int, column: int) -> str:
        return pattern[2 * (row % 2) + column % 2]

    def mirrored(index: int, count: int) -> int:
        return -index if index < 0 else 2 * (count - 1) - index if index >= count else index

    if colour_at(y, x) == colour:
        return data[y * image.step + x]
    around = [
        data[mirrored(row, image.height) * image.step + mirrored(column, image.width)]
        for row in (y - 1, y, y + 1)
        for column in (x - 1, x, x + 1)
        if colour_at(row, column) == colour
    ]
    return int(sum(around) / len(around) + 0.5)


def yuv_pixel(image: Any, data: list[int], y: int, x: int) -> list[int]:
    order = "uyvy" if image.encoding in ("uyvy", "yuv422") else "yuyv"
    at = y * image.step + (x // 2) * 4
    four = data[at : at + 4]
    lights = [value for letter, value in zip(order, four, strict=True) if letter == "y"]
    light, u, v = lights[x % 2] - 16, four[order.index("u")] - 128, four[order.index("v")] - 128
    colours = (298 * light + 409 * v, 298 * light - 100 * u - 208 * v, 298 * light + 516 * u)
    return [min(255, max(0, (colour + 128) // 256)) for colour in colours]


@st.composite
def any_image(draw: st.DrawFn, encoding: str) -> Any:
    smallest = 2 if encoding.startswith("bayer") else 1
    height = draw(st.integers(smallest, 6))
    width = draw(st.integers(smallest, 6))
    if encoding not in CHANNELS and not encoding.startswith("bayer"):
        width *= 2
    step = width * pixel_bytes(encoding) + draw(st.integers(0, 5))
    # Noise: bytes that hypothesis makes up are mostly zeros, which decode alike in any order.
    noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    data = noise.integers(0, 256, height * step, dtype=np.uint8).tobytes()
    return message(encoding, (height, width), step, data, draw(st.sampled_from([1, 0])))


@pytest.mark.parametrize("encoding", images.ENCODINGS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_encoding_decodes_as_a_decoder_that_goes_pixel_by_pixel(
    encoding: str, data: st.DataObject
) -> None:
    image = data.draw(any_image(encoding))
    decoded = images.to_rgb(image)
    assert decoded.dtype == np.uint8
    assert decoded.flags.c_contiguous
    np.testing.assert_array_equal(decoded, reference(image))


def test_yuv_has_the_colours_of_bt_601() -> None:
    """Black, white and the primaries of limited range, from the standard's matrix."""
    for yuv, rgb in (
        ((16, 128, 128), (0, 0, 0)),
        ((235, 128, 128), (255, 255, 255)),
        ((81, 90, 240), (255, 0, 0)),
        ((145, 54, 34), (0, 255, 0)),
        ((41, 240, 110), (0, 0, 255)),
    ):
        light, u, v = yuv
        decoded = images.to_rgb(message("yuyv", (1, 2), 4, bytes([light, u, light, v])))
        assert np.abs(decoded.astype(int) - rgb).max() <= 1


def test_an_rgb8_image_without_padding_is_not_copied() -> None:
    image = message("rgb8", (4, 5), 15, bytes(60))
    assert np.shares_memory(images.to_rgb(image), image.data)
    source = CameraInput("c", "t", MessageType.IMAGE, size=(4, 5))
    assert np.shares_memory(decode_array(source, image), image.data)


@pytest.mark.parametrize("fault", ["short", "long", "step", "empty", "encoding"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_an_image_that_contradicts_itself_is_refused(fault: str, data: st.DataObject) -> None:
    image = data.draw(any_image(data.draw(st.sampled_from(images.ENCODINGS))))
    if fault == "short":
        image.data = image.data[: data.draw(st.integers(0, image.data.size - 1))]
    elif fault == "long":
        image.data = np.concatenate((image.data, [0])).astype(np.uint8)
    elif fault == "step":
        image.step = data.draw(st.integers(0, image.width * pixel_bytes(image.encoding) - 1))
    elif fault == "empty":
        image.height = 0
    else:
        image.encoding = data.draw(st.sampled_from(["8UC3", "nv12", "32FC1", "", "RGB8"]))
    with pytest.raises(ValueError, match=r"^image (step|has|is|encoding)"):
        images.to_rgb(image)


@pytest.mark.parametrize(
    ("encoding", "size", "said"),
    [
        ("bayer_rggb8", (1, 4), "expected at least 2 x 2"),
        ("yuyv", (2, 3), "3 pixels wide, expected an even width"),
        ("mono8", (3000, 6000), "6000 x 3000 = 18000000 pixels, expected at most 16777216"),
    ],
)
def test_a_size_that_an_encoding_cannot_have_is_refused(
    encoding: str, size: tuple[int, int], said: str
) -> None:
    step = size[1] * pixel_bytes(encoding)
    with pytest.raises(ValueError, match=said):
        images.to_rgb(message(encoding, size, step, bytes(step * size[0])))


# -- compressed --------------------------------------------------------------------------------


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Picture.fromarray(pixels).save(file, kind)
    return file.getvalue()


NOISE = np.random.default_rng(0).integers(0, 256, (17, 23, 4), dtype=np.uint8)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_decodes_to_the_pixels_that_were_encoded(channels: int) -> None:
    pixels = NOISE[:, :, 0] if channels == 1 else NOISE[:, :, :channels]
    decoded = compressed.to_rgb(compressed_message(encoded(pixels), "png"))
    expected = np.repeat(pixels[:, :, None], 3, axis=2) if channels == 1 else pixels[:, :, :3]
    np.testing.assert_array_equal(decoded, expected)


def test_png_of_16_bits_is_scaled_as_mono16_is() -> None:
    deep = np.random.default_rng(1).integers(0, 65536, (5, 7), dtype=np.uint16)
    decoded = compressed.to_rgb(compressed_message(encoded(deep), "png"))
    raw = message("mono16", (5, 7), 14, deep.astype("<u2").tobytes())
    np.testing.assert_array_equal(decoded, images.to_rgb(raw))


@pytest.mark.parametrize("kind", ["jpeg", "", "rgb8; jpeg compressed bgr8"])
def test_jpeg_decodes_whatever_its_format_says(kind: str) -> None:
    smooth = np.zeros((16, 16, 3), dtype=np.uint8)
    smooth[:, :] = (200, 90, 30)
    decoded = compressed.to_rgb(compressed_message(encoded(smooth, "JPEG"), kind))
    assert np.abs(decoded.astype(int) - smooth).max() <= 3


@pytest.mark.parametrize(("kind", "tail"), [("PNG", 20), ("JPEG", 0)])
def test_a_compressed_image_that_is_cut_anywhere_is_refused(kind: str, tail: int) -> None:
    """A PNG's last 20 bytes are check sums and its end: without them the image is whole still."""
    whole = encoded(NOISE[:, :, :3], kind)
    expected = compressed.to_rgb(compressed_message(whole))
    for length in range(len(whole)):
        cut = compressed_message(whole[:length])
        if length < len(whole) - tail:
            with pytest.raises(ValueError, match=r"neither jpeg nor png|is corrupt"):
                compressed.to_rgb(cut)
        else:
            np.testing.assert_array_equal(compressed.to_rgb(cut), expected)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["PNG", "JPEG"]), st.data())
def test_changed_bytes_give_an_image_or_a_refusal_and_nothing_else(
    kind: str, data: st.DataObject
) -> None:
    changed = bytearray(encoded(NOISE[:, :, :3], kind))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = compressed.to_rgb(compressed_message(bytes(changed)), max_pixels=10_000)
    except ValueError:
        return
    assert decoded.dtype == np.uint8
    assert decoded.shape[0] * decoded.shape[1] <= 10_000


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header claims a size; small all the same."""
    import struct
    import zlib

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99)))


@pytest.mark.parametrize("side", [5_000, 9_000, 60_000])
def test_a_decompression_bomb_is_refused_before_it_is_decompressed(side: int) -> None:
    with pytest.raises(ValueError, match=r"expected at most 16777216|too large"):
        compressed.to_rgb(compressed_message(bomb(side, side), "png"))


def test_other_files_and_colours_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"format 'png' and 4 bytes is neither jpeg nor png"):
        compressed.to_rgb(compressed_message(b"nope", "png"))
    gif = io.BytesIO()
    Picture.fromarray(NOISE[:, :, 0]).save(gif, "GIF")
    with pytest.raises(ValueError, match="neither jpeg nor png"):
        compressed.to_rgb(compressed_message(gif.getvalue()))
    print_colours = io.BytesIO()
    Picture.fromarray(NOISE, "CMYK").save(print_colours, "JPEG")
    with pytest.raises(ValueError, match="mode 'CMYK', expected one of RGB"):
        compressed.to_rgb(compressed_message(print_colours.getvalue()))


# -- crop and resize ---------------------------------------------------------------------------

PILLOWS = {
    Filter.NEAREST: Picture.Resampling.NEAREST,
    Filter.BILINEAR: Picture.Resampling.BILINEAR,
    Filter.BICUBIC: Picture.Resampling.BICUBIC,
    Filter.AREA: Picture.Resampling.BOX,
}


@pytest.mark.parametrize("filter_", Filter)
@pytest.mark.parametrize("size", [(8, 23), (17, 11), (9, 12), (3, 5)])
def test_images_shrink_as_pillow_shrinks_them(filter_: Filter, size: tuple[int, int]) -> None:
    if filter_ is Filter.AREA:  # whole pixels there; parts of them are weighted in another way
        size = (17, 23) if size[0] > 8 else (1, 23)
    scaled = resize(NOISE[:, :, :3], size, Resize(filter_, Fit.STRETCH))
    picture = Picture.fromarray(NOISE[:, :, :3]).resize(size[::-1], PILLOWS[filter_])
    assert np.abs(scaled.astype(int) - np.asarray(picture)).max() <= 1


def test_padding_keeps_the_aspect_ratio_and_centres_on_black() -> None:
    white = np.full((10, 20, 3), 255, dtype=np.uint8)
    padded = resize(white, (10, 10), Resize(Filter.BILINEAR, Fit.PAD))
    assert padded.shape == (10, 10, 3)
    lit = padded.any(axis=(1, 2))
    assert lit.tolist() == [False] * 2 + [True] * 5 + [False] * 3
    assert padded[lit].min() == 255


def test_a_crop_is_cut_out_before_the_image_is_resized() -> None:
    image = message("rgb8", (17, 23), 69, NOISE[:, :, :3].tobytes())
    crop = Crop(x=5, y=2, width=12, height=14)
    source = CameraInput("c", "t", MessageType.IMAGE, crop=crop, size=(14, 12))
    np.testing.assert_array_equal(decode_array(source, image), NOISE[2:16, 5:17, :3])
    smaller = CameraInput("c", "t", MessageType.IMAGE, crop=crop, size=(7, 6), resize=Resize())
    expected = resize(NOISE[2:16, 5:17, :3], (7, 6), Resize())
    np.testing.assert_array_equal(decode_array(smaller, image), expected)
    outside = CameraInput("c", "t", MessageType.IMAGE, crop=Crop(12, 2, 12, 14), size=(14, 12))
    with pytest.raises(ValueError, match=r"23 x 17 pixels, too small for the crop of 12 x 14 at"):
        decode_array(outside, image)


def test_another_size_is_refused_where_no_resize_is_asked_for() -> None:
    source = CameraInput("eye", "t", MessageType.IMAGE, size=(3, 3))
    with pytest.raises(ValueError, match=r"camera 'eye' is uint8 \(2, 2, 3\), expected uint8 \(3"):
        decode_array(source, message("rgb8", (2, 2), 6, bytes(12)))
