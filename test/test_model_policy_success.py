# SPDX-License-Identifier: Apache-2.0
"""The shipped policy does its task, in process: a few fixed seeds, the same every time.

How good it is over many seeds is measured by `training/evaluate.py`, not here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import flashrt_ros.models
from flashrt_ros.models import load_policy
from flashrt_ros.runtime import Arena
from flashrt_ros.sim.scene import COLOURS
from flashrt_ros.sim.world import ArmWorld, SimTruth

CHECKPOINT = Path(flashrt_ros.models.__file__).parents[1] / "checkpoints" / "cued_reach"
SEEDS = (0, 1, 2, 3, 4)


class Robot:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.policy = load_policy(CHECKPOINT)
        self.arena = Arena(self.policy.buffer_specs())
        self.world = ArmWorld()
        self.times = (np.arange(self.policy.spec.chunk_length) + 1) * self.policy.spec.chunk_dt

    def begin(self, seed: int) -> None:
        self.policy.bind(self.arena, seed=seed)
        self.world.reset(seed)

    def run(self, instruction: str, ticks: int) -> SimTruth:
        self.policy.write_instruction(instruction)
        for _ in range(ticks):
            seen = self.world.observe()
            self.policy.write_observation({"camera": seen.image}, seen.positions)
            self.policy.tick()
            self.world.command(seen.stamp_ns, self.times, self.policy.chunk())
            self.world.advance_tick()
        return self.world.truth()


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot()


def touches(truth: SimTruth, colour: str) -> bool:
    return truth.touching == colour and truth.touching_for >= 0.5


def test_it_reaches_for_the_colour_that_the_lamp_showed_before_it_went_dark(robot) -> None:
    successes = []
    for seed in SEEDS:
        robot.begin(seed)
        robot.run("wait", 13)
        cue = robot.world.truth().last_cue
        successes.append(touches(robot.run("reach", 36), cue))
    assert sum(successes) >= 4, successes


def test_language_matters_it_reaches_for_the_block_that_is_named(robot) -> None:
    successes = []
    for seed in SEEDS:
        robot.begin(seed)
        colour = COLOURS[(COLOURS.index(robot.world.truth().last_cue) + 1) % 4]
        successes.append(touches(robot.run(f"reach the {colour} block", 36), colour))
    assert sum(successes) >= 4, successes


def test_without_its_memory_it_can_only_guess(robot) -> None:
    successes = []
    for seed in SEEDS:
        robot.begin(seed)
        robot.run("wait", 13)
        cue = robot.world.truth().last_cue
        for name in ("layer1.delta.recurrent", "layer2.delta.recurrent"):
            robot.arena[name].zero_()
        successes.append(touches(robot.run("reach", 32), cue))
    assert sum(successes) <= 3, successes
