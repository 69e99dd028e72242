# SPDX-License-Identifier: Apache-2.0
"""The image encoder: keypoints by spatial softmax beside a global branch.

Spatial softmax (Levine et al. 2016, arXiv 1504.00702) turns a feature map into the expected
place of what it responds to, below the size of a pixel: what an arm needs to touch a block.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashrt_ros.models.streaming_vla.configuration import StreamingVLAConfig

GOAL_JOINTS = 4  # the wrist's roll has no part in a reach


class SpatialSoftmax(nn.Module):
    """Feature maps [batch, maps, h, w] to expected places [batch, 2 * maps] in [-1, 1]."""

    grid: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        axis = (torch.arange(size, dtype=torch.float32) + 0.5) / size * 2 - 1
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        grid = torch.stack([x.flatten(), y.flatten()], dim=1)
        self.register_buffer("grid", grid, persistent=False)

    def forward(self, maps: Tensor) -> Tensor:
        weights = maps.flatten(2).softmax(dim=-1)
        return (weights @ self.grid).flatten(1)


class VisionEncoder(nn.Module):
    """uint8 rgb [batch, size, size, 3] to features [batch, feature_size].

    The features hold keypoints, the global branch, and what the encoder was pretrained to read
    off the image: each colour's block (place, and the joints that reach it), and the lamp.
    """

    def __init__(self, config: StreamingVLAConfig) -> None:
        super().__init__()
        first, second, third = config.vision_channels
        colours = len(config.colours)
        self.size = config.image_size
        self.mixed = False  # convolutions in bfloat16: training on a CPU that has it, never else
        self.stem = nn.Sequential(
            nn.Conv2d(3, first, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(first, second, 3, padding=1), nn.ReLU(),
            nn.Conv2d(second, second, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.to_maps = nn.Conv2d(second, config.vision_keypoints, 1)
        self.keypoints = SpatialSoftmax(self.size // 2)
        self.overview = nn.Sequential(
            nn.Conv2d(second, third, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(third, third, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(third, third, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(),
            nn.Linear(third * (self.size // 16) ** 2, config.vision_global), nn.ReLU(),
        )  # fmt: skip
        width = 2 * config.vision_keypoints + config.vision_global
        self.scene = nn.Sequential(
            nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, colours * (2 + GOAL_JOINTS))
        )
        self.lamp = nn.Linear(config.vision_global, colours + 1)
        self.feature_size = width + colours * (2 + GOAL_JOINTS) + colours + 1

    def forward(self, image: Tensor) -> Tensor:
        """The features, float32 [batch, feature_size]."""
        return self.read(image)[0]

    def read(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features; scene [batch, colours, 2 + 4] (normalised); lamp logits [batch, colours + 1].

        The lamp's last class is "dark".
        """
        pixels = image.permute(0, 3, 1, 2).to(torch.float32) / 127.5 - 1.0
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=self.mixed):
            maps = self.stem(pixels)
            heat = self.to_maps(maps)
            overview = self.overview(maps)
        places, overview = self.keypoints(heat.float()), overview.float()
        scene = self.scene(torch.cat([places, overview], dim=1))
        lamp = self.lamp(overview)
        features = torch.cat([places, overview, scene, F.softmax(lamp, dim=1)], dim=1)
        return features, scene.unflatten(1, (-1, 2 + GOAL_JOINTS)), lamp
