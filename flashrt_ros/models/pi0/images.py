# SPDX-License-Identifier: Apache-2.0
"""Camera images as π0's vision tower was trained to see them.

Two pipelines are in use, and a checkpoint goes with the one that it was trained with: they differ
in filter, in where the padding is, and in its shade.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

_FILTERS = {2: "bilinear", 3: "bicubic"}  # PIL's numbers, which the processor's file holds
_FILES = ("processor_config.json", "preprocessor_config.json")


class Pipeline(str, Enum):
    """Which implementation's arithmetic is followed.

    TRANSFORMERS: `PI0ImageProcessor` of transformers 5. Resized as uint8 with antialiasing, so
        rounded to whole levels, normalised, then padded right and below with 0 (mid grey).
    LEROBOT: `resize_with_pad_torch` of LeRobot and openpi. Scaled to 0 .. 1, resized bilinearly
        without antialiasing, padded on both sides with black, stretched to -1 .. 1.
    """

    TRANSFORMERS = "transformers"
    LEROBOT = "lerobot"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class ImagePreprocessing:
    """From uint8 rgb of any size to float32 [3, height, width].

    Only `Pipeline.TRANSFORMERS` has a choice of `resample` ("bicubic" or "bilinear"), of `mean` and
    `std` (a number a channel, of values in 0 .. 1) and of `scale`, the size of a uint8 level.
    """

    height: int
    width: int
    pipeline: Pipeline
    resample: str = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    scale: float = 1 / 255

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width inside the padding of an image of these; it keeps its aspect ratio."""
        if self.pipeline is Pipeline.TRANSFORMERS:
            factor = min(self.height / height, self.width / width)
            return int(height * factor), int(width * factor)
        ratio = max(width / self.width, height / self.height)
        return int(height / ratio), int(width / ratio)

    @staticmethod
    def of_checkpoint(folder: Path, size: int, *, lerobot: bool) -> ImagePreprocessing:
        """What a checkpoint was trained with; `size` is that of its vision tower.

        A processor saved by transformers (`processor_config.json`) is followed where there is one.
        Without it LeRobot's checkpoints get LeRobot's pipeline, others the processor's defaults.
        Raises ValueError for a setting that is not supported, naming it.
        """
        for name in _FILES:
            path = folder / name
            if path.exists():
                content = json.loads(path.read_text())
                return _of_processor(content.get("image_processor", content), path, size)
        pipeline = Pipeline.LEROBOT if lerobot else Pipeline.TRANSFORMERS
        return ImagePreprocessing(size, size, pipeline)


class ImagePreprocessor:
    """An `ImagePreprocessing` on a device. Its calls may be captured in a CUDA graph."""

    def __init__(self, settings: ImagePreprocessing, device: str | torch.device = "cpu") -> None:
        self.settings = settings
        # The processor folds rescaling into mean and deviation; so its bits are had.
        scale = 1.0 / settings.scale
        self._mean = torch.tensor(settings.mean, device=device)[:, None, None] * scale
        self._std = torch.tensor(settings.std, device=device)[:, None, None] * scale

    def __call__(self, image: Tensor) -> Tensor:
        """Preprocess uint8 [height, width, 3] on the device: float32 [3, height', width']."""
        planes = image.permute(2, 0, 1).contiguous()[None]
        size = self.settings.resized(image.shape[0], image.shape[1])
        if self.settings.pipeline is Pipeline.TRANSFORMERS:
            return self._as_transformers(planes, size)[0]
        return self._as_lerobot(planes, size)[0]

    def _as_transformers(self, planes: Tensor, size: tuple[int, int]) -> Tensor:
        if size != tuple(planes.shape[-2:]):
            on_cpu = planes.device.type == "cpu"  # elsewhere torch has no kernel for uint8
            resized = interpolate(
                planes if on_cpu else planes.float(),
                size=size,
                mode=self.settings.resample,
                align_corners=False,
                antialias=True,
            )
            planes = resized if on_cpu else resized.clamp(0, 255).round()
        pixels = planes.float().sub(self._mean).div(self._std)
        below, right = self.settings.height - size[0], self.settings.width - size[1]
        return pad(pixels, (0, right, 0, below), value=0.0)

    def _as_lerobot(self, planes: Tensor, size: tuple[int, int]) -> Tensor:
        pixels = planes.float() / 255
        if size != tuple(planes.shape[-2:]):
            pixels = interpolate(pixels, size=size, mode="bilinear", align_corners=False)
            pixels = pixels.clamp(0.0, 1.0)
        rows, columns = self.settings.height - size[0], self.settings.width - size[1]
        left, above = columns // 2, rows // 2
        pixels = pad(pixels, (left, columns - left, above, rows - above), value=0.0)
        return pixels * 2.0 - 1.0


def check_images(
    images: Mapping[str, np.ndarray], cameras: Mapping[str, tuple[int, int, int]]
) -> None:
    """Raise ValueError unless there is one uint8 image of the right shape for each camera.

    The message names every camera that is missing or not known, else the first image that is of
    another type or shape than [height, width, channels] of `cameras`.
    """
    missing = [name for name in cameras if name not in images]
    extra = [name for name in images if name not in cameras]
    if missing or extra:
        wrong = [f"no image of {', '.join(map(repr, missing))}"] if missing else []
        wrong += [f"unknown camera {', '.join(map(repr, extra))}"] if extra else []
        raise ValueError(f"{'; '.join(wrong)}; the policy sees {', '.join(map(repr, cameras))}")
    for name, shape in cameras.items():
        image = np.asarray(images[name])
        if image.dtype != np.uint8 or image.shape != tuple(shape):
            raise ValueError(
                f"image of camera {name!r} is {image.dtype} {list(image.shape)}, "
                f"expected uint8 {list(shape)} (height, width, rgb)"
            )


def _of_processor(content: Mapping[str, Any], path: Path, size: int) -> ImagePreprocessing:
    """The settings in a processor's file, refused where they differ from what is supported."""
    for switch in ("do_resize", "do_rescale", "do_normalize", "do_pad"):
        if not content.get(switch, True):
            raise ValueError(f"{path}: {switch} is false; only true is supported")
    target = {"height": size, "width": size}
    limits = content.get("size", {"max_height": size, "max_width": size})
    if limits != {f"max_{side}": size for side in target}:
        raise ValueError(f"{path}: size is {limits}; the vision tower takes {size} x {size}")
    if content.get("pad_size", target) != target:
        raise ValueError(f"{path}: pad_size is {content['pad_size']}, expected {target}")
    resample = content.get("resample", 3)
    if resample not in _FILTERS:
        known = ", ".join(f"{number} ({name})" for number, name in _FILTERS.items())
        raise ValueError(f"{path}: resample is {resample}, expected {known}")
    return ImagePreprocessing(
        size,
        size,
        Pipeline.TRANSFORMERS,
        _FILTERS[resample],
        tuple(content.get("image_mean", (0.5, 0.5, 0.5))),
        tuple(content.get("image_std", (0.5, 0.5, 0.5))),
        content.get("rescale_factor", 1 / 255),
    )
