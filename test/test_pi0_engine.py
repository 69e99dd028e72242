# SPDX-License-Identifier: Apache-2.0
"""The policy engine hosts π0 as it hosts any policy: ticks, instructions, capsules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_pi0 import images, positions, write_checkpoint

from flashrt_ros.models import load_policy
from flashrt_ros.models.pi0 import Pi0Policy
from flashrt_ros.policies import (
    ChunkOutput,
    CommandOutput,
    EngineEvent,
    EngineOptions,
    Motion,
    Observation,
    PolicyEngine,
)
from flashrt_ros.runtime import Arena, Session
from flashrt_ros.runtime.errors import UnknownInstruction


class Robot:
    """An engine in lockstep with observations that the test offers one by one."""

    def __init__(self, folder: Path) -> None:
        policy = load_policy(folder)
        assert isinstance(policy, Pi0Policy)
        self.policy = policy
        arena = Arena(policy.buffer_specs())
        policy.bind(arena, seed=3)
        self.session = Session(arena, fingerprint=policy.fingerprint, seed=3)
        self.chunks: list[ChunkOutput] = []
        self.stamp_ns = 0
        options = EngineOptions(instruction="pick the red cube up", lockstep=True)
        self.engine = PolicyEngine(
            policy, self.session, self, clock=lambda: self.stamp_ns, options=options
        )
        self.engine.start()
        self.engine.activate()

    def on_chunk(self, chunk: ChunkOutput) -> None:
        self.chunks.append(chunk)

    def on_command(self, command: CommandOutput) -> None:
        pass

    def on_event(self, event: EngineEvent) -> None:
        pass

    def on_status(self) -> None:
        pass

    def tick(self, view: int) -> np.ndarray:
        """The chunk that answers an observation."""
        self.stamp_ns += 100_000_000
        count = len(self.chunks)
        stamps = dict.fromkeys(images(), self.stamp_ns)
        observed = Observation(self.stamp_ns, images(view), positions(view), stamps)
        self.engine.offer(observed)
        for _ in range(200):
            self.engine.call(lambda session: None, timeout=30.0)
            if len(self.chunks) > count:
                return self.engine.call(lambda session: self.policy.chunk(), timeout=30.0)
        raise AssertionError(f"no chunk came: {self.engine.status}")


@pytest.fixture
def robot(tmp_path: Path) -> Iterator[Robot]:
    robot = Robot(write_checkpoint(tmp_path / "tiny"))
    yield robot
    robot.engine.close()


def test_a_restore_goes_back_with_images_prompt_and_noise(robot: Robot) -> None:
    robot.tick(0)
    robot.engine.call(lambda session: session.snapshot("here"), timeout=30.0)
    expected = robot.tick(1)
    robot.engine.call(lambda _: robot.engine.set_instruction("place the cube"), timeout=30.0)
    assert np.abs(robot.tick(1) - expected).max() > 1e-3
    robot.engine.call(lambda _: robot.engine.restore("here", Motion.REPLAN), timeout=30.0)
    assert robot.engine.status.instruction == "pick the red cube up"
    np.testing.assert_array_equal(robot.tick(1), expected)


def test_an_instruction_that_is_refused_leaves_the_old_one(robot: Robot) -> None:
    def refused(session: Session) -> None:
        with pytest.raises(UnknownInstruction, match="'towel'"):
            robot.engine.set_instruction("fold the towel")

    robot.tick(0)
    robot.engine.call(refused, timeout=30.0)
    robot.tick(0)
    assert robot.engine.status.instruction == "pick the red cube up"
    assert robot.policy.prefix_replays == 1
