# SPDX-License-Identifier: Apache-2.0
"""A policy small enough to reason about, with every kind of state: for tests of the engine.

Its chunk moves each joint by an amount that depends on a recurrent sum over all images so far,
on the instruction, and on counter-based noise: any state that a capsule forgot would show.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.runtime import Arena, BufferSpec, Fingerprint, Plan, Role, ShapeKey
from flashrt_ros.runtime.random import normal

INSTRUCTIONS = ("wait", "reach", "go home")
JOINTS = ("shoulder", "elbow")
KEY = ShapeKey(1, 0)


class ToyPolicy:
    """Two joints, a 4x4 camera, chunks of three points."""

    def __init__(self) -> None:
        self.name = "toy"
        self.spec = PolicySpec(
            cameras={"camera": (4, 4, 3)},
            joint_names=JOINTS,
            chunk_length=3,
            chunk_dt=0.05,
            tick_period=0.1,
        )
        self.fingerprint = Fingerprint(model="toy", weights="none", dtype="float32")
        self.poison: float | None = None
        self.fail = False
        self.started = threading.Event()
        """Set when a tick has begun; a test that wants to meet a replay in flight waits for it."""
        self.gate = threading.Event()
        """A tick waits for it: open unless a test closes it."""
        self.gate.set()

    def buffer_specs(self) -> list[BufferSpec]:
        joints = (len(JOINTS),)
        return [
            BufferSpec("sum", Role.RECURRENT, torch.float32, (3,)),
            BufferSpec("image", Role.IO, torch.uint8, (4, 4, 3)),
            BufferSpec("positions", Role.IO, torch.float64, joints),
            BufferSpec("instruction", Role.IO, torch.int64, ()),
            BufferSpec("chunk", Role.ACTION, torch.float32, (3, len(JOINTS))),
            BufferSpec("step", Role.RANDOM, torch.int64, ()),
            BufferSpec("seed", Role.RANDOM, torch.int64, ()),
        ]

    def bind(self, arena: Arena, *, seed: int, backend: str = "eager") -> None:
        self._arena = arena
        arena["seed"].fill_(seed)
        self._plan = Plan("toy", self._replay, [KEY], backend)
        self._plan.capture(arena)

    def twin(self) -> ToyPolicy:
        return ToyPolicy()

    def write_seed(self, seed: int) -> None:
        self._arena["seed"].fill_(seed)

    def check_instruction(self, text: str) -> None:
        if text not in INSTRUCTIONS:
            raise ValueError(f"unknown instruction '{text}', known are {', '.join(INSTRUCTIONS)}")

    def write_instruction(self, text: str) -> None:
        self._arena["instruction"].fill_(INSTRUCTIONS.index(text))

    def write_observation(self, images: Mapping[str, np.ndarray], positions: np.ndarray) -> None:
        self._arena["image"].copy_(torch.from_numpy(images["camera"]))
        self._arena["positions"].copy_(torch.from_numpy(positions))

    def tick(self) -> None:
        self.started.set()
        assert self.gate.wait(10.0), "a test closed the gate and never opened it"
        if self.fail:
            self._arena["sum"].add_(1.0)  # a step that failed half-way
            raise RuntimeError("injected failure")
        self._plan.replay(KEY)
        if self.poison is not None:
            self._arena["chunk"][1, 0] = self.poison

    def chunk(self) -> np.ndarray:
        return self._arena["chunk"].numpy().copy()

    def _replay(self, key: ShapeKey) -> None:
        arena = self._arena
        arena["sum"].mul_(0.9).add_(arena["image"].float().mean(dim=(0, 1)) / 255)
        noise = normal((3, 2), seed=arena["seed"], step=arena["step"], stream="toy")
        goal = arena["sum"].sum() * 0.01 + arena["instruction"] * 0.1
        arena["chunk"].copy_(arena["positions"].float() + goal + 0.001 * noise)
        arena["step"].add_(1)


class FeelingToyPolicy(ToyPolicy):
    """The same with a wrench, and touch sensors that it can do without."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = replace(
            self.spec, vectors={"wrench": 6, "touch": 2}, optional=frozenset({"touch"})
        )

    def buffer_specs(self) -> list[BufferSpec]:
        return [
            *super().buffer_specs(),
            BufferSpec("wrench", Role.IO, torch.float64, (6,)),
            BufferSpec("touch", Role.IO, torch.float64, (2,)),
            BufferSpec("touching", Role.IO, torch.float64, ()),
        ]

    def write_observation(
        self,
        images: Mapping[str, np.ndarray],
        positions: np.ndarray,
        vectors: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        assert vectors is not None, "vectors come with every observation of a policy that has any"
        super().write_observation(images, positions)
        self._arena["wrench"].copy_(torch.from_numpy(vectors["wrench"]))
        # What is absent is masked out: the numbers that stand there are not read.
        self._arena["touching"].fill_(float("touch" in vectors))
        if "touch" in vectors:
            self._arena["touch"].copy_(torch.from_numpy(vectors["touch"]))

    def _replay(self, key: ShapeKey) -> None:
        super()._replay(key)
        arena = self._arena
        felt = torch.where(arena["touching"] > 0, 1.0 + arena["touch"].sum(), 0.0)
        arena["chunk"].add_((0.01 * arena["wrench"].sum() + 0.1 * felt).float())
