# SPDX-License-Identifier: Apache-2.0
"""Observations that a planner gives: read by the contract, as the live inputs are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header
from toy_policy import FeelingToyPolicy, ToyPolicy

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.msg import RecordedObservation
from flashrt_ros.policies.contract import Contract
from flashrt_ros.policies.contract_check import resolve
from flashrt_ros.policies.contract_file import read_contract
from flashrt_ros.ros.conversions import to_time
from flashrt_ros.ros.decoding import decode_array
from flashrt_ros.ros.evaluation_services import to_observation
from flashrt_ros.runtime.errors import InvalidArgument

CAMERA = "camera: {topic: image, crop: {x: 2, y: 1, width: 8, height: 8}, resize: {filter: area}%s}"
JOINTS = """
    - {name: upper, topic: upper, joints: [shoulder], names: {shoulder: arm_j1}}
    - {name: lower, topic: lower, joints: [elbow], names: {elbow: %s}}"""
WRENCH = "\n  vectors:\n    wrench: {topic: wrench, type: geometry_msgs/WrenchStamped}"


def contract_of(
    spec: PolicySpec, *, camera: str = "", elbow: str = "arm_j2", vectors: str = ""
) -> Contract:
    inputs = f"  cameras:\n    {CAMERA % camera}\n  joints:{JOINTS % elbow}{vectors}"
    text = f"version: 1\ninputs:\n{inputs}\noutputs:\n  - {{type: joint_trajectory, topic: out}}\n"
    reading = read_contract(text, "a test's contract")
    return resolve(reading.contract, spec, reading.problems)


def given(cameras: tuple[str, ...] = ("camera",)) -> RecordedObservation:
    pixels = np.random.default_rng(1).integers(0, 256, (12, 14, 3), dtype=np.uint8)
    image = Image(
        header=Header(stamp=to_time(5)),
        height=12, width=14, encoding="bgr8", step=42, data=pixels.tobytes(),
    )  # fmt: skip
    joints = JointState(
        header=Header(stamp=to_time(6)),
        name=["arm_j2", "other", "arm_j1"],
        position=[2.0, 9.0, 1.0],
    )
    return RecordedObservation(
        header=Header(stamp=to_time(4)),
        camera_names=list(cameras),
        images=[image] * len(cameras),
        joint_states=joints,
    )


def test_given_observation_is_cropped_resized_and_renamed_as_live_inputs_are() -> None:
    contract, message = contract_of(ToyPolicy().spec), given()
    seen = to_observation(message, contract)
    live = decode_array(contract.input("camera"), message.images[0])
    assert live.shape == (4, 4, 3)
    np.testing.assert_array_equal(seen.images["camera"], live)
    np.testing.assert_array_equal(seen.positions, [1.0, 2.0])
    assert seen.stamp_ns == 4
    assert seen.stamps == {"camera": 5, "upper": 6, "lower": 6}


def test_given_image_is_raw_also_where_the_topic_is_compressed() -> None:
    contract = contract_of(ToyPolicy().spec, camera=", type: sensor_msgs/CompressedImage")
    raw = to_observation(given(), contract_of(ToyPolicy().spec)).images["camera"]
    np.testing.assert_array_equal(to_observation(given(), contract).images["camera"], raw)


@pytest.mark.parametrize("cameras", [(), ("side",), ("camera", "side"), ("camera", "camera")])
def test_cameras_that_are_missing_unknown_or_twice_are_refused(cameras: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument, match="expected one for each of camera"):
        to_observation(given(cameras), contract_of(ToyPolicy().spec))


def test_vector_that_the_policy_can_do_without_is_left_out() -> None:
    vectors = "\n  vectors:\n    touch: {topic: touch, type: std_msgs/Float64MultiArray%s}"
    spec = replace(ToyPolicy().spec, vectors={"touch": 2}, optional=frozenset({"touch"}))
    seen = to_observation(given(), contract_of(spec, vectors=vectors % ", required: false"))
    assert seen.vectors == {}
    with pytest.raises(InvalidArgument, match="cannot have touch"):
        to_observation(given(), contract_of(spec, vectors=vectors % ""))


def test_vector_is_refused_by_name_with_what_to_do() -> None:
    contract = contract_of(FeelingToyPolicy().spec, vectors=WRENCH)
    with pytest.raises(InvalidArgument, match=r"cannot have wrench, which .*: leave observations"):
        to_observation(given(), contract)


def test_joints_that_only_their_topics_tell_apart_are_refused() -> None:
    contract = contract_of(ToyPolicy().spec, elbow="arm_j1")
    with pytest.raises(InvalidArgument, match="'arm_j1' means shoulder and elbow"):
        to_observation(given(), contract)


def test_image_too_small_for_the_crop_is_refused() -> None:
    message = given()
    message.images[0].height = 8
    message.images[0].data = bytes(42 * 8)
    with pytest.raises(InvalidArgument, match="too small for the crop"):
        to_observation(message, contract_of(ToyPolicy().spec))
