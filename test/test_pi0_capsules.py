# SPDX-License-Identifier: Apache-2.0
"""Capsules of a π0 policy: the same chunk bits after a restore, and none without each role."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_pi0 import images, positions, write_checkpoint

from flashrt_ros.models.pi0 import Pi0Policy, adopt_pi0
from flashrt_ros.runtime import Arena, Role, Session, Store


@dataclass
class Robot:
    """A policy with its arena and session."""

    policy: Pi0Policy
    arena: Arena
    session: Session

    def see(self, view: int, prompt: str | None = None) -> None:
        if prompt is not None:
            self.policy.write_instruction(prompt)
        self.policy.write_observation(images(view), positions(view))

    def tick(self) -> np.ndarray:
        self.policy.tick()
        self.session.commit(stamp_ns=self.session.live.number + 1)
        return self.policy.chunk()

    def replays(self) -> int:
        return self.policy.prefix_replays


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("pi0") / "tiny")


def make(folder: Path, store: Store | None = None, garbage: bool = False) -> Robot:
    policy = adopt_pi0(folder)
    arena = Arena(policy.buffer_specs())
    policy.bind(arena, seed=3)
    if garbage:
        generator = torch.Generator().manual_seed(9)
        for spec in arena.table:
            noise = torch.randint(1, 50, spec.shape, generator=generator)
            arena[spec.name].copy_(noise)
    return Robot(policy, arena, Session(arena, fingerprint=policy.fingerprint, store=store, seed=3))


@pytest.fixture
def robot(folder: Path) -> Robot:
    """Two ticks on different views, so that nothing is as it was at the beginning."""
    robot = make(folder)
    robot.see(0, "pick the red cube up")
    robot.tick()
    robot.see(1)
    robot.tick()
    return robot


def go_elsewhere(robot: Robot) -> None:
    """Change every buffer: other views, a prompt of another length, three steps."""
    for view in (5, 6, 7):
        robot.see(view, "place the cube")
        robot.tick()


def test_a_restored_policy_repeats_its_chunks_bit_for_bit(robot: Robot) -> None:
    capsule = robot.session.snapshot("here")
    without_new_inputs = robot.tick()
    robot.see(2)
    with_new_inputs = robot.tick()
    for _ in range(3):
        go_elsewhere(robot)
        robot.session.restore(capsule)
        np.testing.assert_array_equal(robot.tick(), without_new_inputs)
        robot.see(2)
        np.testing.assert_array_equal(robot.tick(), with_new_inputs)


def test_the_prefix_is_reused_after_a_restore_exactly_when_it_fits(robot: Robot) -> None:
    robot.tick()
    capsule = robot.session.snapshot("here")
    replays = robot.replays()
    go_elsewhere(robot)
    robot.session.restore(capsule)
    assert robot.replays() == replays
    robot.see(1)
    robot.tick()
    assert robot.replays() == replays
    robot.see(2)
    robot.tick()
    assert robot.replays() == replays + 1


def test_inputs_written_after_the_prefix_are_seen_after_a_restore(robot: Robot) -> None:
    """The capsule's rows are of older images than its inputs: both are state."""
    robot.see(2)
    capsule = robot.session.snapshot("between")
    replays = robot.replays()
    expected = robot.tick()
    go_elsewhere(robot)
    robot.session.restore(capsule)
    np.testing.assert_array_equal(robot.tick(), expected)
    assert robot.replays() == replays + 1


def test_a_capsule_continues_in_an_arena_of_garbage(folder: Path, robot: Robot) -> None:
    store = robot.session.store
    capsule = robot.session.snapshot("here")
    expected = [robot.tick()]
    robot.see(2)
    expected.append(robot.tick())
    other = make(folder, store, garbage=True)
    other.session.restore(capsule)
    np.testing.assert_array_equal(other.tick(), expected[0])
    other.see(2)
    np.testing.assert_array_equal(other.tick(), expected[1])


@pytest.mark.parametrize("left_out", [Role.KV, Role.RANDOM, Role.IO, Role.META])
def test_without_a_role_the_chunk_is_another(robot: Robot, left_out: Role) -> None:
    capsule = robot.session.snapshot("here")
    expected = robot.tick()
    go_elsewhere(robot)
    robot.session.restore(capsule, roles=set(Role) - {left_out})
    assert np.abs(robot.tick() - expected).max() > 1e-4


def test_without_the_actions_the_chunk_before_is_another(robot: Robot) -> None:
    capsule = robot.session.snapshot("here")
    before = robot.policy.chunk()
    go_elsewhere(robot)
    robot.session.restore(capsule, roles=set(Role) - {Role.ACTION})
    robot.tick()
    assert np.abs(robot.arena["action.previous"][0].numpy() - before).max() > 1e-4


def test_reset_goes_back_to_before_the_first_instruction(robot: Robot) -> None:
    robot.session.reset()
    with pytest.raises(ValueError, match="no instruction yet"):
        robot.policy.tick()


def test_two_policies_of_one_checkpoint_do_not_meet(folder: Path, robot: Robot) -> None:
    capsule = robot.session.snapshot("here")
    alone = robot.tick()
    robot.session.restore(capsule)
    other = make(folder)
    other.see(9, "place the cube")
    other.tick()
    np.testing.assert_array_equal(robot.tick(), alone)


def test_a_capsule_of_other_euler_steps_is_refused(folder: Path, robot: Robot) -> None:
    from flashrt_ros.runtime.errors import FingerprintMismatch

    capsule = robot.session.snapshot("here")
    other = adopt_pi0(folder, steps=4)
    arena = Arena(other.buffer_specs())
    other.bind(arena, seed=3)
    session = Session(arena, fingerprint=other.fingerprint, store=robot.session.store)
    with pytest.raises(FingerprintMismatch, match="config"):
        session.restore(capsule)
