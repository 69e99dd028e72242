# SPDX-License-Identifier: Apache-2.0
"""What a policy is to the layers above, whatever network is inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flashrt_ros.runtime import Arena, BufferSpec, Fingerprint


@dataclass(frozen=True)
class PolicySpec:
    """What a policy takes and gives.

    Attributes:
        cameras: camera name to `(height, width, channels)` of its uint8 rgb image.
        joint_names: order of the joint positions that go in and of the actions that come out.
        chunk_length: points in an action chunk.
        chunk_dt: s between points; point `i` is at `(i + 1) * chunk_dt` after the observation.
        tick_period: s between the ticks that the policy was trained at.
    """

    cameras: Mapping[str, tuple[int, int, int]]
    joint_names: tuple[str, ...]
    chunk_length: int
    chunk_dt: float
    tick_period: float


class PolicyModel(Protocol):
    """A policy adopted into buffers.

    All that a tick reads and changes lives in the arena that it is bound to.
    """

    name: str
    spec: PolicySpec
    fingerprint: Fingerprint

    def buffer_specs(self) -> list[BufferSpec]:
        """The closed set of buffers that the policy needs."""

    def bind(self, arena: Arena, *, seed: int, backend: str = "eager") -> None:
        """Write the initial values, capture the plans, and leave the initial values behind."""

    def check_instruction(self, text: str) -> None:
        """Raise ValueError, naming the words, where the policy does not know the instruction."""

    def write_instruction(self, text: str) -> None:
        """Write an instruction into its buffers."""

    def write_observation(self, images: Mapping[str, np.ndarray], positions: np.ndarray) -> None:
        """Write the images (uint8 `[h, w, 3]`) and joint positions (float64 `[joints]`)."""

    def tick(self) -> None:
        """Replay once; the step counter in the buffers grows by one."""

    def chunk(self) -> np.ndarray:
        """The newest chunk: float32 `[chunk_length, joints]`, absolute, rad or m."""
