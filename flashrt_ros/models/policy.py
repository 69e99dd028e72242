# SPDX-License-Identifier: Apache-2.0
"""What a policy model is to the layers above: the seam between networks and control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.buffers import BufferSpec
from flashrt_ros.runtime.fingerprint import Fingerprint
from flashrt_ros.runtime.plans import Backend


@dataclass(frozen=True)
class PolicySpec:
    """A policy's inputs and outputs.

    cameras: name to (height, width, channels) of its uint8 rgb image; joint_names: the order of
    the state vector and of the actions; chunk_length: points in a chunk; chunk_dt: s between
    points, point i is at (i + 1) * chunk_dt after the observation; tick_period: s between ticks
    that it was trained at.
    """

    cameras: Mapping[str, tuple[int, int, int]]
    joint_names: tuple[str, ...]
    chunk_length: int
    chunk_dt: float
    tick_period: float


@runtime_checkable
class PolicyModel(Protocol):
    """A policy whose whole state is in the buffers of an arena.

    Order of calls: `buffer_specs`, an Arena of them, `bind`; then, for each tick,
    `write_instruction` and `write_observation` as new inputs come, `tick`, `chunk`.
    """

    name: str
    spec: PolicySpec
    fingerprint: Fingerprint

    def buffer_specs(self) -> list[BufferSpec]:
        """Every buffer that it needs."""
        ...

    def bind(self, arena: Arena, *, seed: int, backend: Backend | str = Backend.EAGER) -> None:
        """Write the initial values into the arena's buffers and capture the plans."""
        ...

    def check_instruction(self, text: str) -> None:
        """Raise ValueError naming the words that it does not know."""
        ...

    def write_instruction(self, text: str) -> None:
        """Write an instruction into the input buffers. Raises as `check_instruction`."""
        ...

    def write_observation(self, images: Mapping[str, np.ndarray], positions: np.ndarray) -> None:
        """Write images, uint8 of the spec's shapes, and joint positions [joints], rad.

        Raises ValueError naming what is missing or has a wrong shape, type or value; the buffers
        then hold what they held.
        """
        ...

    def tick(self) -> None:
        """One replay; the step counter grows by one."""
        ...

    def chunk(self) -> np.ndarray:
        """The last tick's action chunk, a copy: float32 [chunk_length, joints], rad, absolute."""
        ...
