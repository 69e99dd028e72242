# SPDX-License-Identifier: Apache-2.0
"""One complete observation, as a policy consumes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

JOINTS = "joint_states"
"""Name of the joint states among the inputs of an observation."""


@dataclass(frozen=True)
class Observation:
    """Everything that one tick sees except the instruction, which is state.

    Attributes:
        stamp_ns: acquisition time of the anchor (the oldest awaited image), the node's clock, ns.
        images: camera name to uint8 rgb array `[height, width, 3]`.
        positions: joint positions in the policy's joint order, float64 `[joints]`, rad or m.
        stamps: input name to its own acquisition time, ns.
        vectors: name to float64 `[n]`, where the policy takes vectors.
        joint_sources: input name to the indices into `positions` that it gave; empty: all are from
            `JOINTS`.

    An optional input that was missing is in none of them.
    """

    stamp_ns: int
    images: Mapping[str, np.ndarray]
    positions: np.ndarray
    stamps: Mapping[str, int]
    vectors: Mapping[str, np.ndarray] = field(default_factory=dict)
    joint_sources: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """Input name to a BLAKE2b-128 of its shape, dtype and bytes as the policy reads them."""
        positions = np.asarray(self.positions, dtype=np.float64)
        arrays = {**self.images, **self.vectors}
        for name, indices in self.joint_sources.items():
            arrays[name] = positions[list(indices)]
        if not self.joint_sources:
            arrays[JOINTS] = positions
        return {name: _digest(array) for name, array in sorted(arrays.items())}

    def digest(self) -> bytes:
        """A 32 byte BLAKE2b digest over the stamps and the digests of every input."""
        state = hashlib.blake2b(digest_size=32)
        for name in sorted(self.stamps):
            state.update(f"{name}@{self.stamps[name]};".encode())
        for name, digest in self.digests.items():
            state.update(f"{name}={digest};".encode())
        return state.digest()


def _digest(array: np.ndarray) -> str:
    state = hashlib.blake2b(f"{array.shape}{array.dtype.str};".encode(), digest_size=16)
    state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()
