# SPDX-License-Identifier: Apache-2.0
"""What a policy model is to the layers above: the seam between networks and control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

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
    that it was trained at; vectors: name to length of further inputs, float64, such as a wrench;
    optional: the cameras and vectors without which it ticks too. Raises ValueError for a name that
    two inputs share, or an optional one that is none.
    """

    cameras: Mapping[str, tuple[int, int, int]]
    joint_names: tuple[str, ...]
    chunk_length: int
    chunk_dt: float
    tick_period: float
    vectors: Mapping[str, int] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        twice = sorted(self.cameras.keys() & self.vectors.keys())
        unknown = sorted(self.optional - self.cameras.keys() - self.vectors.keys())
        if twice or unknown:
            raise ValueError(
                f"policy inputs: {', '.join(twice) or 'none'} both camera and vector, "
                f"{', '.join(unknown) or 'none'} optional but no input; expected each name once"
            )


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

    # A policy whose spec has `vectors` takes them as a third argument of `write_observation`:
    # Mapping[str, np.ndarray], float64 of the spec's lengths. What is optional may be absent from
    # images and vectors; it never stands there as zeros that nobody measured. See `write_inputs`.

    def tick(self) -> None:
        """One replay; the step counter grows by one."""
        ...

    def chunk(self) -> np.ndarray:
        """The last tick's action chunk, a copy: float32 [chunk_length, joints], rad, absolute."""
        ...


@runtime_checkable
class TwinPolicy(PolicyModel, Protocol):
    """A policy that can be bound twice: what `evaluate` runs beside the live one."""

    def twin(self) -> TwinPolicy:
        """An unbound model over the same weights, for an arena of its own.

        Both may tick at the same time, each on a thread of its own.
        """
        ...

    def write_seed(self, seed: int) -> None:
        """Write the seed of the noise from the next tick on."""
        ...


@runtime_checkable
class TakesConditioning(Protocol):
    """A policy whose tick can be led by the chunk under way (real-time chunking).

    guided: set before `bind`: plans are captured that can be led. A tick that is told nothing, or
    `frozen` 0, gives bit for bit what a policy that was bound without it gives.
    """

    name: str
    guided: bool

    def write_conditioning(self, *, frozen: int, elapsed_ns: int, guidance_milli: int) -> None:
        """What the next tick, and only that one, reads beside observation and instruction.

        The same numbers on the same state and inputs give the same chunk bit for bit.

        frozen: leading points that are taken over from the last tick's chunk, 0: none, and the
        chunk is free; elapsed_ns: from the begin of that chunk to the new observation, ns;
        guidance_milli: the largest guidance weight, in thousandths.

        Raises ValueError naming a number that cannot be, or for `frozen` above 0 where the plans
        were captured without `guided`.
        """
        ...


def write_inputs(
    model: PolicyModel,
    images: Mapping[str, np.ndarray],
    positions: np.ndarray,
    vectors: Mapping[str, np.ndarray],
) -> None:
    """`model.write_observation`, with the vectors where its spec has any. Raises as it does."""
    if model.spec.vectors:
        cast(_TakesVectors, model).write_observation(images, positions, vectors)
    else:
        model.write_observation(images, positions)


class _TakesVectors(Protocol):
    def write_observation(
        self,
        images: Mapping[str, np.ndarray],
        positions: np.ndarray,
        vectors: Mapping[str, np.ndarray],
    ) -> None: ...
