# SPDX-License-Identifier: Apache-2.0
"""Outputs of every kind over DDS, and that a stream of commands obeys an interrupt at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import TwistStamped
from lifecycle_msgs.msg import Transition
from ros_rig import PATIENCE, POLICY, FakeCamera, Inbox, Rig, commit_id, rig
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.demo.lifecycle import bring_up, change_state
from flashrt_ros.policies import CommandOutput, Motion, Trajectory
from flashrt_ros.policies.actuation import Actuation, gripper_values, slopes
from flashrt_ros.policies.contract import GripperOutput, Output, OutputType
from flashrt_ros.ros import conversions
from flashrt_ros.ros.command_outputs import check_rate

JOINTS = ("a", "b", "finger")
ARRAY = Output(OutputType.FLOAT64_MULTI_ARRAY, "hand/commands", ("finger", "a"))

CONTRACT = """version: 1
inputs:
  cameras: {camera: {topic: camera/image_raw}}
  joints: [{topic: joint_states}]
  instruction: {topic: instruction}
outputs:
  - type: joint_trajectory
    topic: arm/joint_trajectory
    actions: [waist, shoulder]
    names: {waist: arm_1, shoulder: arm_2}
    velocities: true
  - type: float64_multi_array
    topic: forearm/commands
    actions: [wrist_pitch, elbow]
  - type: twist_stamped
    topic: base/cmd_vel
    actions: [wrist_roll]
    components: [angular.z]
    frame_id: base_link
"""


# -- without a node ------------------------------------------------------------------------------


def test_gripper_is_stretched_to_the_controllers_range_and_never_beyond() -> None:
    gripper = GripperOutput("finger", policy_closed=1.0, policy_open=-1.0, closed=0.0, open=0.08)
    values = gripper_values(gripper, np.array([1.0, 0.0, -1.0, 5.0, -5.0]))
    np.testing.assert_allclose(values, [0.0, 0.04, 0.08, 0.0, 0.08])


def test_gripper_with_a_threshold_is_closed_or_open() -> None:
    gripper = GripperOutput("finger", closed=0.01, open=0.07, threshold=0.5)
    values = gripper_values(gripper, np.array([0.0, 0.5, 0.51, 1.0]))
    np.testing.assert_allclose(values, [0.01, 0.01, 0.07, 0.07])


def test_an_output_has_its_own_actions_in_its_own_order() -> None:
    output = replace(ARRAY, gripper=GripperOutput("finger", open=0.08))
    values = Actuation(output, JOINTS).values(np.array([[1.0, 2.0, 0.5], [3.0, 4.0, 1.0]]))
    np.testing.assert_allclose(values, [[0.04, 1.0], [0.08, 3.0]])
    with pytest.raises(ValueError, match="actions thumb, the policy has a, b, finger"):
        Actuation(replace(ARRAY, actions=("thumb",)), JOINTS)


def test_slopes_are_those_of_the_chunk_and_zero_at_its_end() -> None:
    times = np.array([0.1, 0.2, 0.4])
    velocities = slopes(times, np.array([[0.0], [1.0], [2.0]]))
    np.testing.assert_allclose(velocities[:, 0], [10.0, 2.0 / 0.3, 0.0])
    np.testing.assert_array_equal(slopes(times[:1], np.ones((1, 2))), np.zeros((1, 2)))


def test_a_trajectory_message_carries_velocities_where_they_are_given() -> None:
    trajectory = Trajectory(5, np.array([0.1]), np.array([[1.0, 2.0]]), np.zeros(2))
    command = CommandOutput(1, 2, 3, 4, trajectory, False)
    message = conversions.to_joint_trajectory(command, ("x",), np.array([[2.0]]), np.array([[7.0]]))
    assert list(message.points[0].positions) == [2.0]
    assert list(message.points[0].velocities) == [7.0]
    plain = conversions.to_joint_trajectory(command, ("x", "y"))
    assert list(plain.points[0].velocities) == []


def test_outputs_of_one_moment_need_a_rate_and_cannot_be_in_lockstep() -> None:
    check_rate([ARRAY], 50.0, lockstep=False)
    check_rate([Output(OutputType.JOINT_TRAJECTORY, "t")], 0.0, lockstep=True)
    with pytest.raises(ValueError, match="command_rate is 0, but hand/commands"):
        check_rate([ARRAY], 0.0, lockstep=False)
    with pytest.raises(ValueError, match="lockstep sends one answer"):
        check_rate([ARRAY], 50.0, lockstep=True)


# -- over DDS ------------------------------------------------------------------------------------


class Arm:
    """A policy node with three kinds of output, and what they sent."""

    def __init__(self, made: Rig) -> None:
        self.rig = made
        self.camera = FakeCamera(made)
        self.arm = Inbox(made.node, JointTrajectory, "arm/joint_trajectory")
        self.forearm = Inbox(made.node, Float64MultiArray, "forearm/commands")
        self.base = Inbox(made.node, TwistStamped, "base/cmd_vel")
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ends.is_set():
            self.camera.publish(self.camera.joint_state())
            self.camera.publish(self.camera.image())
            time.sleep(0.02)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arm]:
    folder = tmp_path_factory.mktemp("outputs")
    contract = folder / "contract.yaml"
    contract.write_text(CONTRACT)
    with rig("/outputs", folder) as made:
        made.start_policy(
            f"contract:={contract}",
            "observation_timeout:=0.0",
            "tick_period:=0.0",
            "command_rate:=100.0",
            "execution:=rtc",
            "ramp_duration:=0.0",
            "evaluate:=false",
        )
        arm = Arm(made)
        bring_up(made.caller, POLICY)
        arm.camera.wait_for_subscribers()
        arm.start()
        yield arm
        arm.stop()


def epochs(messages: list[Float64MultiArray]) -> list[int]:
    labels = (message.layout.dim[0].label for message in messages)
    return [int(dict(item.split("=") for item in label.split())["epoch"]) for label in labels]


def streamed(message: DiagnosticArray) -> int:
    values = {pair.key: pair.value for status in message.status for pair in status.values}
    return int(float(values.get("streamed commands", 0)))


def test_every_output_gets_its_actions_and_the_chunk_says_how_it_is_executed(arm: Arm) -> None:
    trajectory = arm.arm.wait(lambda sent: any(len(m.points) > 2 for m in sent), "a chunk")[-1]
    assert trajectory.joint_names == ["arm_1", "arm_2"]
    chunk = next(m for m in arm.arm.all() if len(m.points) > 2)
    assert len(chunk.points[0].positions) == len(chunk.points[0].velocities) == 2
    assert list(chunk.points[-1].velocities) == [0.0, 0.0]
    assert commit_id(chunk)["sequence"] > 0
    arrays = arm.forearm.wait_count(20, "arrays at a rate")
    assert {len(message.data) for message in arrays} == {2}
    twists = arm.base.wait_count(20, "twists at a rate")
    assert {twist.header.frame_id for twist in twists} == {"base_link"}
    assert all(twist.twist.linear.x == 0.0 for twist in twists)
    chunks = arm.rig.chunks.wait(
        lambda sent: any(chunk.frozen_points > 0 for chunk in sent), "a chunk with frozen points"
    )
    assert {chunk.execution for chunk in chunks} == {"rtc"}
    assert arm.rig.policy.wait_for_status(lambda status: status.execution == "rtc")
    arm.rig.diagnostics.wait(
        lambda messages: any(streamed(message) > 0 for message in messages),
        "diagnostics that count what was streamed",
    )


def test_after_an_interrupt_the_stream_is_of_the_new_epoch_and_stands_still(arm: Arm) -> None:
    made = arm.rig
    for _ in range(5):
        before = len(made.chunks.all())
        made.chunks.wait_count(before + 2, "chunks")
        epoch = made.policy.interrupt().result.epoch
        made.settle()
        for inbox in (arm.forearm, arm.base):
            inbox.clear()
        arrays = arm.forearm.wait_count(10, "a stream that goes on")
        assert set(epochs(arrays)) == {epoch}
        assert len({tuple(message.data) for message in arrays}) == 1
        twists = arm.base.wait_count(10, "a stream that goes on")
        assert {twist.twist.angular.z for twist in twists} == {0.0}
        made.policy.resume(Motion.REPLAN)


def test_epochs_in_a_stream_never_go_back_whatever_callers_do(arm: Arm) -> None:
    made = arm.rig
    made.policy.snapshot("hammer", overwrite=True)
    arm.forearm.clear()
    failures: list[BaseException] = []

    def call(index: int) -> None:
        try:
            for turn in range(6):
                motion = (Motion.REPLAN, Motion.CONTINUE)[(index + turn) % 2]
                answer = made.policy.restore("hammer", motion=motion)
                assert answer.result.epoch > 0
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=call, args=(index,)) for index in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(PATIENCE)
    assert failures == []
    count = len(arm.forearm.all())
    seen = epochs(arm.forearm.wait_count(count + 10, "a stream that goes on"))
    assert seen == sorted(seen)
    assert seen[-1] - seen[0] >= 17  # every restore raised the epoch


def test_a_deactivated_node_is_silent(arm: Arm) -> None:
    change_state(arm.rig.caller, POLICY, Transition.TRANSITION_DEACTIVATE)
    arm.rig.settle()
    arm.forearm.clear()
    arm.rig.settle()
    assert arm.forearm.all() == []
