# SPDX-License-Identifier: Apache-2.0
"""Capsules over DDS in lockstep: world put back, policy restored, the same actions again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from ros_rig import POLICY, SIM, Rig, bits, rig
from rosbags.highlevel import AnyReader
from sensor_msgs.msg import Image

from flashrt_ros.client import VerbRefused
from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.msg import Boundary, SimState
from flashrt_ros.policies import Motion
from flashrt_ros.replay.recorder import BagRecorder, Topic, typestore_with
from flashrt_ros.runtime import Code

TICKS = 12


@pytest.fixture(scope="module")
def lockstep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A simulator and a policy that wait for each other."""
    with rig("/lockstep", tmp_path_factory.mktemp("lockstep")) as made:
        made.start_sim("mode:=lockstep")
        made.start_policy("lockstep:=true", "use_sim_time:=true")
        bring_up(made.caller, POLICY)
        yield made


def run(made: Rig, ticks: int = TICKS) -> list[bytes]:
    """Run some ticks; the chunks of each, byte for byte."""
    made.chunks.clear()
    made.sim.run(ticks)
    return [bits(chunk) for chunk in made.chunks.wait_count(ticks, "chunks")]


def begin(made: Rig, seed: int) -> None:
    """A new episode: cue shown, then dark; capsule and world saved at the same boundary."""
    made.sim.reset(seed)
    made.policy.reset()
    made.policy.set_instruction("wait")
    made.sim.run(15)
    made.policy.set_instruction("reach")
    made.policy.snapshot("here", overwrite=True)
    made.sim.save("here")


def wander(made: Rig) -> None:
    """Another task, another cue: what the policy remembers is overwritten."""
    made.sim.light_lamp("blue", 6)
    made.policy.set_instruction("go home")
    made.sim.run(TICKS)


def test_restored_policy_repeats_its_actions_bit_for_bit_ten_times(lockstep: Rig) -> None:
    begin(lockstep, seed=71)
    uninterrupted = run(lockstep)
    assert len(set(uninterrupted)) == TICKS
    for _ in range(10):
        wander(lockstep)
        lockstep.sim.load("here")
        restored = lockstep.policy.restore("here")
        assert restored.capsule.instruction == "reach"
        assert run(lockstep) == uninterrupted


@pytest.mark.parametrize("roles", [["kv"], ["kv", "random"], ["recurrent"], ["kv", "conv", "io"]])
def test_restoring_only_some_roles_does_not_repeat_them(lockstep: Rig, roles: list[str]) -> None:
    begin(lockstep, seed=72)
    uninterrupted = run(lockstep)
    wander(lockstep)
    lockstep.sim.load("here")
    lockstep.policy.restore("here", ablate_only_roles=roles)
    lockstep.policy.set_instruction("reach")
    assert run(lockstep) != uninterrupted


def test_rollback_goes_back_along_the_lineage_bit_for_bit(lockstep: Rig) -> None:
    begin(lockstep, seed=73)
    uninterrupted = run(lockstep)
    lockstep.sim.load("here")
    back = lockstep.policy.rollback(count=TICKS)
    assert back.result.step == 15
    assert run(lockstep) == uninterrupted


def test_rollback_to_a_boundary_of_another_branch_is_refused(lockstep: Rig) -> None:
    begin(lockstep, seed=74)
    run(lockstep, 3)
    left = lockstep.policy.list().result.boundary
    lockstep.policy.restore("here")
    run(lockstep, 2)
    with pytest.raises(VerbRefused) as refusal:
        lockstep.policy.rollback(boundary=left)
    assert refusal.value.code is Code.INVALID_ARGUMENT
    assert "is not on the lineage" in str(refusal.value)


def test_interrupted_world_goes_on_with_the_arm_held(lockstep: Rig) -> None:
    begin(lockstep, seed=75)
    run(lockstep, 8)
    lockstep.policy.interrupt()
    lockstep.sim.run(15)  # let it come to rest
    before = lockstep.sim.path()[-1].joint_positions
    lockstep.commands.clear()
    lockstep.sim.run(5)
    after = lockstep.sim.path()[-1].joint_positions
    assert list(after) == pytest.approx(list(before), abs=1e-3)
    assert all(len(command.points) == 1 for command in lockstep.commands.all())
    lockstep.policy.resume(Motion.REPLAN)
    assert len(run(lockstep, 2)) == 2


def test_recorded_bag_has_every_tick_and_opens_with_its_own_definitions(
    lockstep: Rig, tmp_path: Path
) -> None:
    topics = [
        Topic("camera/image_raw", Image),
        Topic(f"{POLICY}/boundary", Boundary),
        Topic(f"{SIM}/state", SimState, latched=True),
    ]
    recorder = BagRecorder(lockstep.node, tmp_path / "bag", topics)
    begin(lockstep, seed=76)
    run(lockstep)
    lockstep.settle()
    recorder.close()
    images, steps = [], []
    with AnyReader([tmp_path / "bag"]) as reader:
        for connection, _, data in reader.messages():
            message = reader.deserialize(data, connection.msgtype)
            if connection.topic.endswith("image_raw"):
                images.append(message.header.stamp.sec * 10**9 + message.header.stamp.nanosec)
            elif connection.topic.endswith("boundary") and message.event == Boundary.COMMIT:
                steps.append(message.step)
    assert len(images) == len(set(images)) == 15 + TICKS
    assert steps[-TICKS:] == list(range(16, 16 + TICKS))


def test_definitions_come_with_the_package() -> None:
    assert "flashrt_ros/msg/Boundary" in typestore_with("flashrt_ros").fielddefs
