# SPDX-License-Identifier: Apache-2.0
"""π0 hosted by policy_node over DDS: its cameras and joints by contract, free text, capsules."""

from __future__ import annotations

import array
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

import tiny_pi0
from lifecycle_msgs.msg import State, Transition
from PIL import Image as Picture
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from ros_rig import POLICY, RELIABLE, Inbox, Rig, bits, rig, to_ns, wait_for_readers
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Header, String

from flashrt_ros.client import VerbRefused
from flashrt_ros.demo.lifecycle import bring_up, change_state, get_state
from flashrt_ros.msg import ActionChunk, RunInfo
from flashrt_ros.ros import qos
from flashrt_ros.ros.conversions import to_time

WRONG = """version: 1
inputs:
  cameras:
    top: {topic: top_camera/image_raw, rate: fast}
    front: {topic: front_camera/image_raw}
  joints:
    - {topic: arm/joint_states, joints: [shoulder, elbow]}
"""
SAID = """3: cameras lacks 'wrist', which the policy needs; it has top, front: add a topic for \
this camera
4: inputs.cameras.top.rate is 'fast', expected a number from 0.01 to 10000
5: camera 'front' is none of the policy's, expected one of top, wrist
6: joints lacks gripper; the policy has shoulder, elbow, gripper: each needs a source"""
RIGHT = """version: 1
inputs:
  cameras:
    top: {topic: top_camera/image_raw}
    wrist:
      topic: wrist_camera/image_raw/compressed
      type: sensor_msgs/CompressedImage
      resize: {filter: area}
  joints:
    - topic: arm/joint_states
      names: {shoulder: arm_1, elbow: arm_2, gripper: hand}
  instruction: {topic: task}
"""


class Robot:
    """Two cameras that send other encodings and sizes than the policy sees, and an arm."""

    def __init__(self, made: Rig) -> None:
        self.rig = made
        node = made.node
        self.top = node.create_publisher(Image, "top_camera/image_raw", RELIABLE)
        self.wrist = node.create_publisher(
            CompressedImage, "wrist_camera/image_raw/compressed", RELIABLE
        )
        self.arm = node.create_publisher(JointState, "arm/joint_states", RELIABLE)
        self.task = node.create_publisher(String, "task", RELIABLE)
        self.info = Inbox(node, RunInfo, f"{POLICY}/run_info", qos.LATCHED)
        self.stamp_ns = 1_000_000_000

    def show(self, view: int) -> ActionChunk:
        """One observation, and the chunk that answers it."""
        self.stamp_ns += 200_000_000
        header = Header(stamp=to_time(self.stamp_ns))
        seen = tiny_pi0.images(view)
        height, width = tiny_pi0.CAMERAS["top"]
        bgr = np.ascontiguousarray(seen["top"][:, :, ::-1])
        large = np.repeat(np.repeat(seen["wrist"], 2, axis=0), 2, axis=1)
        file = io.BytesIO()
        Picture.fromarray(large).save(file, "PNG")
        positions = tiny_pi0.positions(view).astype(float).tolist()
        self.arm.publish(
            JointState(header=header, name=["hand", "arm_2", "arm_1"], position=positions[::-1])
        )
        self.wrist.publish(
            CompressedImage(header=header, format="png", data=array.array("B", file.getvalue()))
        )
        self.top.publish(
            Image(
                header=header,
                height=height,
                width=width,
                encoding="bgr8",
                step=3 * width,
                data=array.array("B", bgr.tobytes()),
            )
        )
        return self.rig.chunks.wait(
            lambda chunks: any(to_ns(c.header.stamp) == self.stamp_ns for c in chunks),
            f"the chunk of {self.stamp_ns} ns",
        )[-1]


def configure_with(made: Rig, contract: Path) -> None:
    value = Parameter("contract", value=str(contract)).to_parameter_msg()
    answer = made.caller.call(
        SetParameters, f"{POLICY}/set_parameters", SetParameters.Request(parameters=[value])
    )
    assert answer.results[0].successful, answer.results[0].reason


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Robot]:
    """A node that was first given a wrong contract, and then a right one."""
    folder = tmp_path_factory.mktemp("pi0")
    checkpoint = tiny_pi0.write_checkpoint(folder / "tiny")
    wrong, right = folder / "wrong.yaml", folder / "right.yaml"
    wrong.write_text(WRONG)
    right.write_text(RIGHT)
    with rig("/pi0", folder) as made:
        made.start_policy(
            f"model:={checkpoint}",
            f"contract:={wrong}",
            "lockstep:=true",
            "instruction:='pick the red cube up'",
        )
        with pytest.raises(RuntimeError, match="unconfigured"):
            change_state(made.caller, POLICY, Transition.TRANSITION_CONFIGURE)
        status = made.policy.wait_for_status(lambda status: "contract" in status.last_error)
        assert get_state(made.caller, POLICY).id == State.PRIMARY_STATE_UNCONFIGURED
        lines = [line.removeprefix(f"{wrong}:") for line in status.last_error.splitlines()]
        assert "\n".join(lines[1:]) == SAID
        configure_with(made, right)
        bring_up(made.caller, POLICY)
        one = Robot(made)
        wait_for_readers(one.top, one.wrist, one.arm, one.task)
        yield one


def test_chunks_name_every_input_by_contract_and_its_stamp(robot: Robot) -> None:
    chunk = robot.show(0)
    assert list(chunk.joint_names) == list(tiny_pi0.JOINTS)
    assert chunk.instruction == "pick the red cube up"
    assert list(chunk.input_names) == ["top", "wrist", "joint_states"]
    assert {to_ns(stamp) for stamp in chunk.input_stamps} == {robot.stamp_ns}
    commit = robot.rig.boundaries.wait(
        lambda events: any(e.event == e.COMMIT and e.boundary == chunk.boundary for e in events),
        "the chunk's boundary",
    )
    digests = next(e for e in commit if e.boundary == chunk.boundary).input_digests
    assert len(set(digests)) == 3
    assert all(len(digest) == 32 for digest in digests)


def test_the_contract_and_its_topics_are_in_the_run_info(robot: Robot) -> None:
    info = robot.info.wait_count(1, "the run info")[-1]
    assert info.contract == RIGHT
    assert dict(zip(info.input_names, info.input_topics, strict=True)) == {
        "top": "/pi0/top_camera/image_raw",
        "wrist": "/pi0/wrist_camera/image_raw/compressed",
        "joint_states": "/pi0/arm/joint_states",
        "instruction": "/pi0/task",
    }
    assert "sensor_msgs/msg/CompressedImage" in info.input_types


def test_the_policy_sees_what_the_contract_says(robot: Robot) -> None:
    """The same pixels and positions as the model gets when it is called without ROS."""
    from flashrt_ros.models import load_policy
    from flashrt_ros.runtime import Arena

    robot.rig.policy.reset()
    chunk = robot.show(3)
    info = robot.info.wait_count(1, "the run info")[-1]
    model = load_policy(Path(info.model_path))
    model.bind(Arena(model.buffer_specs()), seed=info.seed)
    model.write_instruction(chunk.instruction)
    model.write_observation(tiny_pi0.images(3), tiny_pi0.positions(3))
    model.tick()
    assert bits(chunk) == model.chunk().astype(np.float64).tobytes()


def test_free_text_on_the_contracts_topic_changes_what_the_policy_does(robot: Robot) -> None:
    robot.rig.policy.reset()
    before = bits(robot.show(1))
    robot.rig.policy.reset()
    robot.task.publish(String(data="place the cube"))
    robot.rig.policy.wait_for_status(lambda status: status.instruction == "place the cube")
    after = robot.show(1)
    assert after.instruction == "place the cube"
    assert bits(after) != before
    with pytest.raises(VerbRefused, match="towel"):
        robot.rig.policy.set_instruction("fold the towel")
    robot.rig.policy.set_instruction("pick the red cube up")


def test_a_restored_capsule_continues_bit_for_bit_under_the_same_observations(
    robot: Robot,
) -> None:
    robot.rig.policy.reset()
    robot.show(0)
    robot.rig.policy.snapshot("here", overwrite=True)
    first = [bits(robot.show(view)) for view in (1, 2, 3)]
    assert len(set(first)) == 3
    robot.rig.policy.set_instruction("place the cube")
    assert bits(robot.show(1)) not in first
    answer = robot.rig.policy.restore("here")
    assert answer.steps_not_recomputed == 1
    assert [bits(robot.show(view)) for view in (1, 2, 3)] == first
