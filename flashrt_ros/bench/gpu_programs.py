# SPDX-License-Identifier: Apache-2.0
"""Programs for the closure audit on a GPU: `$FLASHRT_CHECK_DEVICE` says where (default cpu)."""

from __future__ import annotations

import os

import numpy as np

from ..models import load_policy
from ..runtime import Arena, Backend
from ..runtime.testing import ToyHybrid


def _where() -> tuple[str, Backend]:
    device = os.environ.get("FLASHRT_CHECK_DEVICE", "cpu")
    return device, Backend.CUDA_GRAPH if device.startswith("cuda") else Backend.EAGER


def toy() -> ToyHybrid:
    """A small network with a buffer of every role."""
    device, backend = _where()
    return ToyHybrid(device=device, backend=backend, capacity=256)


class _Policy:
    """The shipped policy, fed with an image and joints that follow from the step's number."""

    def __init__(self) -> None:
        self.device, self._backend = _where()
        self.policy = load_policy("cued_reach", device=self.device)
        self.fingerprint = self.policy.fingerprint
        self.buffer_specs = self.policy.buffer_specs

    def bind(self, arena: Arena, *, seed: int) -> None:
        self.policy.bind(arena, seed=seed, backend=self._backend)
        self.fingerprint = self.policy.fingerprint
        self.policy.write_instruction("reach")

    def step(self, index: int) -> None:
        image = np.random.default_rng(index).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        self.policy.write_observation({"camera": image}, np.full(5, 0.001 * (index % 100)))
        self.policy.tick()


def policy() -> _Policy:
    return _Policy()
