# SPDX-License-Identifier: Apache-2.0
"""The policy's whole state is in its buffers: what a capsule holds continues bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import flashrt_ros.models
from flashrt_ros.models import PolicyModel, load_policy
from flashrt_ros.runtime import Arena, Role, Session
from flashrt_ros.sim.world import ArmWorld

CHECKPOINT = Path(flashrt_ros.models.__file__).parents[1] / "checkpoints" / "cued_reach"


class Robot:
    """A policy, its session and its world, in step."""

    def __init__(self, seed: int = 0) -> None:
        self.policy: PolicyModel = load_policy(CHECKPOINT)
        self.arena = Arena(self.policy.buffer_specs())
        self.policy.bind(self.arena, seed=seed)
        self.session = Session(self.arena, fingerprint=self.policy.fingerprint)
        self.world = ArmWorld(5)
        spec = self.policy.spec
        self.times = (np.arange(spec.chunk_length) + 1) * spec.chunk_dt

    def run(self, instruction: str, ticks: int) -> list[bytes]:
        chunks = []
        self.policy.write_instruction(instruction)
        for _ in range(ticks):
            seen = self.world.observe()
            self.policy.write_observation({"camera": seen.image}, seen.positions)
            self.policy.tick()
            self.session.commit(stamp_ns=seen.stamp_ns)
            chunks.append(self.policy.chunk().tobytes())
            self.world.command(seen.stamp_ns, self.times, self.policy.chunk())
            self.world.advance_tick()
        return chunks


@pytest.fixture(scope="module")
def robot() -> Robot:
    torch.set_num_threads(1)
    return Robot()


def test_a_restored_policy_in_a_world_put_back_acts_bit_for_bit_as_if_uninterrupted(robot) -> None:
    robot.run("wait", 13)
    capsule, place = robot.session.snapshot(), robot.world.save()
    uninterrupted = robot.run("reach", 12)
    robot.world.light_lamp("blue", 5)
    robot.run("go home", 11)

    robot.world.load(place)
    robot.session.restore(capsule)
    assert robot.run("reach", 12) == uninterrupted

    robot.world.load(place)
    robot.session.restore(capsule, roles={Role.KV})
    assert robot.run("reach", 12) != uninterrupted

    robot.world.load(place)
    robot.session.reset()
    assert robot.run("reach", 12) != uninterrupted


def test_another_process_worth_of_addresses_continues_the_same(robot) -> None:
    robot.run("wait", 5)
    state = {spec.name: robot.arena[spec.name].clone() for spec in robot.policy.buffer_specs()}
    place = robot.world.save()
    expected = robot.run("reach the red block", 6)
    other = Robot(seed=77)
    for name, value in state.items():
        other.arena[name].fill_(1)  # garbage first: what is not copied would show
        other.arena[name].copy_(value)
    other.world.load(place)
    assert other.run("reach the red block", 6) == expected


def test_noise_is_a_function_of_seed_and_step(robot) -> None:
    robot.session.reset()
    robot.world.reset(6)
    place = robot.world.save()
    first = robot.run("wait", 2)
    robot.session.reset()
    robot.world.load(place)
    assert robot.run("wait", 2) == first
    robot.session.reset()
    robot.world.load(place)
    robot.arena["random.seed"].fill_(1)
    assert robot.run("wait", 2) != first


def test_a_tick_moves_no_buffer_and_raises_the_step(robot) -> None:
    before = {spec.name: robot.arena[spec.name].data_ptr() for spec in robot.policy.buffer_specs()}
    step = int(robot.arena["random.step"])
    robot.run("wait", 3)
    assert {name: robot.arena[name].data_ptr() for name in before} == before
    assert int(robot.arena["random.step"]) == step + 3


def test_binding_leaves_the_initial_state_whatever_was_there() -> None:
    policy = load_policy(CHECKPOINT)
    arena = Arena(policy.buffer_specs())
    for spec in policy.buffer_specs():
        arena[spec.name].fill_(1)
    policy.bind(arena, seed=9)
    assert int(arena["random.seed"]) == 9
    for spec in policy.buffer_specs():
        if spec.name != "random.seed":
            assert not arena[spec.name].any(), spec.name


def test_previous_chunk_is_the_one_before(robot) -> None:
    robot.run("wait", 1)
    before = robot.arena["action.chunk"].clone()
    robot.run("wait", 1)
    assert torch.equal(robot.arena["action.previous"], before)
