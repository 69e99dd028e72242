# SPDX-License-Identifier: Apache-2.0
"""One complete observation, as a policy consumes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Observation:
    """Everything that one tick sees except the instruction, which is state.

    Attributes:
        stamp_ns: acquisition time of the anchor (the oldest image), in the node's clock, ns.
        images: camera name to uint8 rgb array `[height, width, 3]`.
        positions: joint positions in the policy's joint order, float64 `[joints]`, rad or m.
        stamps: input name to its own acquisition time, ns.
    """

    stamp_ns: int
    images: Mapping[str, np.ndarray]
    positions: np.ndarray
    stamps: Mapping[str, int]

    def digest(self) -> bytes:
        """A 32 byte BLAKE2b digest over names, stamps, shapes and bytes of every input."""
        state = hashlib.blake2b(digest_size=32)
        for name in sorted(self.stamps):
            state.update(f"{name}@{self.stamps[name]};".encode())
        for name in sorted(self.images):
            image = self.images[name]
            state.update(f"{name}{image.shape}{image.dtype.str};".encode())
            state.update(np.ascontiguousarray(image).data)
        state.update(np.ascontiguousarray(self.positions, dtype=np.float64).data)
        return state.digest()
