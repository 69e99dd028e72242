# SPDX-License-Identifier: Apache-2.0
"""The shipped policy reaches its block while inference costs the world's time.

A few fixed seeds in process, the same every time. docs/execution.md has what was measured on more.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from execution_rig import Bench, wait_for

import flashrt_ros.models
from flashrt_ros.models import load_policy
from flashrt_ros.policies import Observation
from flashrt_ros.policies.execution import Execution, ExecutionOptions
from flashrt_ros.sim.world import ArmWorld

CHECKPOINT = Path(flashrt_ros.models.__file__).parents[1] / "checkpoints" / "cued_reach"
SEEDS = (0, 1, 2)
DELAY = 0.06  # s of the 0.1 s between two observations


class Robot:
    """World and engine in lockstep; a command reaches the world when inference is done."""

    def __init__(self, mode: Execution, seed: int, delay: float = DELAY) -> None:
        torch.set_num_threads(1)
        policy = load_policy(CHECKPOINT)
        policy.guided = mode is Execution.RTC  # type: ignore[attr-defined]
        options = ExecutionOptions(mode=mode, simulated_delay=delay)
        self.bench = Bench(options, policy=policy, lockstep=True, seed=seed)
        self.world = ArmWorld(seed)
        self.delay = delay

    def say(self, text: str) -> None:
        self.bench.call(self.bench.engine.set_instruction, text)

    def run(self, ticks: int) -> None:
        bench, world = self.bench, self.world
        for _ in range(ticks):
            seen = world.observe()
            stamps = {"camera": seen.stamp_ns}
            count = len(bench.commands)
            bench.engine.offer(
                Observation(seen.stamp_ns, {"camera": seen.image}, seen.positions, stamps)
            )
            wait_for(lambda count=count: len(bench.commands) > count)
            sent = bench.commands[-1].trajectory
            world.advance(self.delay)
            world.command(sent.start_ns, sent.times, sent.positions)
            world.advance(0.1 - self.delay)


def reach(mode: Execution, seed: int, delay: float = DELAY) -> bool:
    """One episode: see the cue, wait, reach."""
    robot = Robot(mode, seed, delay)
    try:
        robot.run(13)
        robot.say("reach")
        robot.run(36)
        truth = robot.world.truth()
        return bool(truth.touching == truth.last_cue and truth.touching_for >= 0.5)
    finally:
        robot.bench.close()


@pytest.mark.parametrize("mode", [Execution.ASYNCHRONOUS, Execution.RTC])
def test_it_reaches_its_block_although_inference_takes_most_of_a_tick(mode: Execution) -> None:
    successes = {seed: reach(mode, seed) for seed in SEEDS}
    assert all(successes.values()), successes


def test_the_chunk_under_way_is_what_the_arm_was_told(tmp_path: Path) -> None:
    """What real-time chunking takes for executed is what the world's controller executes."""
    robot = Robot(Execution.RTC, seed=0)
    try:
        robot.run(6)
        commits = robot.bench.commits()
        assert [c.detail["conditioning"]["frozen"] for c in commits] == [0, 2, 2, 2, 2, 2]
        before, after = robot.bench.commands[-2:]
        # The frozen points, at 50 and 100 ms, were those of the older chunk at 150 and 200 ms.
        np.testing.assert_allclose(
            after.trajectory.positions[1], before.trajectory.positions[3], atol=1e-6
        )
    finally:
        robot.bench.close()
