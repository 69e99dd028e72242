# SPDX-License-Identifier: Apache-2.0
"""Image preprocessing: the arithmetic of transformers' processor and of LeRobot, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from flashrt_ros.policies.preprocessing import (
    ImagePreprocessing,
    ImagePreprocessor,
    Pipeline,
    check_images,
)

TRANSFORMERS = ImagePreprocessing(28, 28, Pipeline.TRANSFORMERS)
LEROBOT = ImagePreprocessing(28, 28, Pipeline.LEROBOT)
SIZES = [(480, 640), (64, 48), (28, 28), (20, 30), (29, 27), (28, 300), (1, 3)]


def pattern(height: int, width: int) -> torch.Tensor:
    """An image by formula, uint8 [height, width, 3], of every grey and with edges."""
    y, x, channel = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return torch.from_numpy(((7 * y + 13 * x + 61 * channel) % 256).astype(np.uint8))


# Made with PI0ImageProcessor of transformers 5.24.0 (torchvision 0.28.0), of pattern(40, 60) at
# 28 x 28, as levels: column 9 of red, row 7 of green.
PROCESSOR_COLUMN = [
    *(79, 22, 32, 53, 69, 84, 100, 115, 131, 146, 162, 177, 193, 209, 234, 235, 104, 24),
    *[128] * 10,
]
PROCESSOR_ROW = [
    *(182, 211, 229, 48, 32, 65, 93, 120, 148, 176, 205, 239, 115, 21, 59, 87, 115, 143, 171),
    *(199, 238, 137, 16, 54, 82, 110, 138, 165),
]
# Made with resize_with_pad_torch of LeRobot (src/lerobot/policies/common/vla_utils.py), of the
# same image over 255, then times 2 minus 1: column 9 of red, row 12 of green.
LEROBOT_COLUMN = [
    *[-1.0] * 5,
    *(-0.6628, -0.82764, -0.70563, -0.58363, -0.46162, -0.33962, -0.21762, -0.09561, 0.02639),
    *(0.1484, 0.2704, 0.39241, 0.51441, 0.63641, 0.75842, 0.88042, -0.71858, -0.88341),
    *[-1.0] * 5,
]
LEROBOT_ROW = [
    *(0.42428, 0.64276, 0.86125, -0.9281, -0.70962, -0.49113, -0.27264, -0.05415, 0.16433),
    *(0.38282, 0.60131, 0.81979, 0.22558, -0.75107, -0.53259, -0.3141, -0.09561, 0.12288),
    *(0.34136, 0.55985, 0.77834, -0.15051, -0.79253, -0.57404, -0.35556, -0.13707, 0.08142),
    0.29991,
]


def test_pixels_are_those_of_transformers_processor() -> None:
    pixels = ImagePreprocessor(TRANSFORMERS)(pattern(40, 60))
    levels = ((pixels + 1) * 127.5).round().int()
    assert levels[0, :, 9].tolist() == PROCESSOR_COLUMN
    assert levels[1, 7].tolist() == PROCESSOR_ROW


def test_pixels_are_those_of_lerobot() -> None:
    pixels = ImagePreprocessor(LEROBOT)(pattern(40, 60))
    np.testing.assert_allclose(pixels[0, :, 9], LEROBOT_COLUMN, atol=2e-5)
    np.testing.assert_allclose(pixels[1, 12], LEROBOT_ROW, atol=2e-5)


@pytest.mark.parametrize("size", SIZES)
def test_within_two_levels_of_transformers_processor_on_pil(size: tuple[int, int]) -> None:
    """PIL and torch round weights and intermediate rows apart; nothing else may differ."""
    side = {"height": 28, "width": 28}
    limits = {"max_height": 28, "max_width": 28}
    processor = SiglipImageProcessorPil(size=limits, pad_size=side, do_pad=True)
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    theirs = processor([image], return_tensors="pt", input_data_format="channels_last")
    ours = ImagePreprocessor(TRANSFORMERS)(torch.from_numpy(image))
    levels = (ours - theirs["pixel_values"][0]).abs().max().item() * 127.5
    assert levels < 2.5


@pytest.mark.parametrize("size", SIZES)
def test_identical_to_transformers_processor_on_torchvision(size: tuple[int, int]) -> None:
    pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    from transformers import PI0ImageProcessor

    side = {"height": 28, "width": 28}
    processor = PI0ImageProcessor(size={"max_height": 28, "max_width": 28}, pad_size=side)
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    theirs = processor([image], return_tensors="pt", input_data_format="channels_last")
    ours = ImagePreprocessor(TRANSFORMERS)(torch.from_numpy(image))
    assert torch.equal(ours, theirs["pixel_values"][0])


@pytest.mark.parametrize("settings", [TRANSFORMERS, LEROBOT], ids=["transformers", "lerobot"])
@pytest.mark.parametrize("size", SIZES)
def test_aspect_ratio_is_kept_within_a_pixel(
    settings: ImagePreprocessing, size: tuple[int, int]
) -> None:
    height, width = settings.resized(*size)
    assert max(height, width) in (27, 28)  # a quotient may come out just below a whole number
    scale = 28 / max(size)
    assert abs(height - size[0] * scale) <= 1
    assert abs(width - size[1] * scale) <= 1


def test_padding_is_grey_below_for_transformers_and_black_around_for_lerobot() -> None:
    white = torch.full((14, 28, 3), 255, dtype=torch.uint8)
    below = ImagePreprocessor(TRANSFORMERS)(white)
    assert (below[:, :14] == 1).all()
    assert (below[:, 14:] == 0).all()
    around = ImagePreprocessor(LEROBOT)(white)
    assert (around[:, 7:21] == 1).all()
    assert (around[:, :7] == -1).all()
    assert (around[:, 21:] == -1).all()


def test_processor_file_is_followed(tmp_path: Path) -> None:
    content = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "resample": 2}
    path = tmp_path / "processor_config.json"
    path.write_text(json.dumps({"image_processor": content}))
    settings = ImagePreprocessing.of_checkpoint(tmp_path, 28, lerobot=True)
    assert settings.pipeline is Pipeline.TRANSFORMERS
    assert settings.resample == "bilinear"
    grey = ImagePreprocessor(settings)(torch.full((28, 28, 3), 51, dtype=torch.uint8))
    expected = [(0.2 - mean) / std for mean, std in ((0.1, 0.4), (0.2, 0.5), (0.3, 0.6))]
    np.testing.assert_allclose(grey[:, 5, 5], expected, atol=1e-6)


def test_without_processor_file_the_layout_decides(tmp_path: Path) -> None:
    assert ImagePreprocessing.of_checkpoint(tmp_path, 28, lerobot=True) == LEROBOT
    assert ImagePreprocessing.of_checkpoint(tmp_path, 28, lerobot=False) == TRANSFORMERS


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"do_pad": False}, "do_pad"),
        ({"size": {"height": 28, "width": 28}}, "size"),
        ({"size": {"max_height": 14, "max_width": 28}}, "size"),
        ({"pad_size": {"height": 30, "width": 28}}, "pad_size"),
        ({"resample": 1}, "resample is 1"),
    ],
)
def test_other_processing_is_refused(
    tmp_path: Path, content: dict[str, object], named: str
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=named):
        ImagePreprocessing.of_checkpoint(tmp_path, 28, lerobot=False)


def test_images_are_refused_by_name() -> None:
    cameras = {"top": (20, 30, 3), "wrist": (28, 28, 3)}
    good = {name: np.zeros(shape, np.uint8) for name, shape in cameras.items()}
    check_images(good, cameras)
    with pytest.raises(ValueError, match=r"no image of 'wrist'; unknown camera 'front'"):
        check_images({"top": good["top"], "front": good["top"]}, cameras)
    with pytest.raises(ValueError, match=r"unknown camera 'front'; the policy sees 'top', 'wrist'"):
        check_images(good | {"front": good["top"]}, cameras)
    with pytest.raises(ValueError, match=r"'top' is float32 \[20, 30, 3\], expected uint8"):
        check_images(good | {"top": good["top"].astype(np.float32)}, cameras)
    with pytest.raises(ValueError, match=r"'wrist' is uint8 \[3, 28, 28\], expected"):
        check_images(good | {"wrist": good["wrist"].transpose(2, 0, 1)}, cameras)
