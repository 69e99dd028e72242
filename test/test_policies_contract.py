# SPDX-License-Identifier: Apache-2.0
"""A contract's YAML: everything that is wrong at once, with file and line; nothing guessed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.policies.contract import (
    ActionSpace,
    BelowRate,
    Contract,
    ContractError,
    Crop,
    Filter,
    Fit,
    GripperOutput,
    JointField,
    MessageType,
    OutputType,
    Qos,
    Resize,
    StampSource,
    TimeRules,
)
from flashrt_ros.policies.contract_check import default_contract, resolve
from flashrt_ros.policies.contract_file import load_contract, read_contract

EXAMPLE = Path(__file__).parent.parent / "config" / "contract_example.yaml"
SPEC = PolicySpec(
    cameras={"top": (224, 224, 3), "wrist": (96, 128, 3)},
    joint_names=("shoulder", "elbow", "wrist", "gripper"),
    chunk_length=10,
    chunk_dt=0.02,
    tick_period=0.1,
    vectors={"wrench": 6, "speed": 3, "touch": 4},
    optional=frozenset({"touch"}),
)
SMALL = PolicySpec({"camera": (4, 4, 3)}, ("a", "b"), 3, 0.05, 0.1)
MINIMAL = """version: 1
inputs:
  cameras:
    camera: {topic: eye}
  joints:
    - {topic: joint_states}
"""


def problems(text: str, spec: PolicySpec = SMALL) -> list[str]:
    """What is wrong with a contract, by line."""
    reading = read_contract(text, "arm.yaml")
    try:
        resolve(reading.contract, spec, reading.problems)
    except ContractError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_the_example_parses_and_says_what_it_reads_like() -> None:
    contract = load_contract(str(EXAMPLE), SPEC)
    top, wrist = contract.cameras
    assert (top.name, top.topic, top.type) == ("top", "top_camera/image_raw", MessageType.IMAGE)
    assert top.crop == Crop(80, 0, 480, 480)
    assert top.resize == Resize(Filter.BILINEAR, Fit.STRETCH)
    assert top.qos == Qos("best_effort", "volatile", 2)
    assert (top.timing.rate, top.timing.below_rate) == (25.0, BelowRate.HOLD)
    assert (top.timing.await_new, top.timing.max_age, top.size) == (True, 0.15, (224, 224))
    assert wrist.type is MessageType.COMPRESSED_IMAGE
    assert wrist.resize == Resize(Filter.AREA, Fit.PAD)
    assert (wrist.timing.await_new, wrist.timing.max_skew, wrist.max_pixels) == (
        False,
        0.5,
        4000000,
    )
    arm, hand = contract.joints
    assert arm.joints == ("shoulder", "elbow", "wrist")
    assert arm.names["elbow"] == "arm_joint_2"
    assert (hand.name, hand.joints) == ("hand", ("gripper",))
    wrench, speed, touch = contract.vectors
    assert (wrench.type, wrench.length) == (MessageType.WRENCH, 6)
    assert (speed.values, speed.length) == (JointField.VELOCITY, 3)
    assert (touch.required, touch.length) == (False, 4)
    assert not touch.type.stamped
    assert contract.instruction is not None
    assert contract.instruction.qos == Qos("reliable", "transient_local", 1)
    assert contract.time == TimeRules(0.05, 0.2, 1.0)
    arm_out, hand_out = contract.outputs
    assert (arm_out.type, arm_out.space) == (OutputType.JOINT_TRAJECTORY, ActionSpace.ABSOLUTE)
    assert hand_out.actions == ("gripper",)
    assert hand_out.gripper == GripperOutput("gripper", 0.0, 1.0, 0.0, 0.08, 0.5)
    assert contract.joint_names == SPEC.joint_names
    assert contract.text == EXAMPLE.read_text()


def test_every_key_is_documented_and_in_the_example() -> None:
    """The message about a key that is none lists those that are: ask it in every section."""
    nothing = "{zz: 1}"
    text = f"""zz: 1
time: {nothing}
inputs:
  zz: 1
  cameras: {{c: {{zz: 1, crop: {nothing}, resize: {nothing}, qos: {nothing}}}}}
  joints: [{nothing}]
  vectors: {{v: {{zz: 1, type: sensor_msgs/JointState}}}}
  instruction: {nothing}
outputs:
  - {{zz: 1, type: joint_trajectory, gripper: {nothing}}}
  - {{zz: 1, type: twist}}
"""
    found = "\n".join(problems(text))
    listed = re.findall(r"zz is no key here, expected one of ([a-z_, ]+)", found)
    keys = {key.strip() for names in listed for key in names.split(",")}
    assert len(listed) == 13
    assert {"version", "policy_open", "components", "durability", "field"} <= keys
    document = (EXAMPLE.parent.parent / "docs" / "contract.md").read_text()
    assert sorted(key for key in keys if f"`{key}`" not in document) == []
    example = EXAMPLE.read_text()
    assert sorted(key for key in keys if f"{key}:" not in example) == ["components"]


def test_without_a_file_the_topics_follow_from_the_policy() -> None:
    contract = load_contract("", SPEC)
    assert {each.name: each.topic for each in contract.inputs} == {
        "top": "top/image_raw",
        "wrist": "wrist/image_raw",
        "joint_states": "joint_states",
        "wrench": "wrench",
        "speed": "speed",
        "touch": "touch",
    }
    assert [each.name for each in contract.inputs if not each.required] == ["touch"]
    assert contract.joints[0].joints == SPEC.joint_names
    assert contract.instruction is not None
    assert contract.instruction.topic == "instruction"
    assert [output.topic for output in contract.outputs] == ["joint_trajectory"]


def test_a_minimal_file_means_what_the_default_means() -> None:
    text = MINIMAL.replace("eye", "camera/image_raw") + "  instruction: {topic: instruction}\n"
    text += "outputs: [{type: joint_trajectory, topic: joint_trajectory}]\n"
    given = resolve(read_contract(text, "arm.yaml").contract, SMALL)
    default = default_contract(SMALL)
    assert replace(given, source="", text="") == replace(default, source="")


def test_every_problem_is_reported_at_once_with_its_line() -> None:
    text = """version: 2
inputs:
  cameras:
    camera:
      topic: two words
      rate: -3
      max_ages: 0.1
      resize: {filter: lanczos}
      crop: {x: 0, y: 0, width: 0}
    side: {topic: side}
  joints:
    - topic: joint_states
      joints: [a, c, a]
      names: {d: e}
  vectors:
    wrench: {topic: wrench, type: geometry_msgs/Wrench}
speed: 3
"""
    assert (
        "\n".join(problems(text))
        == """\
arm.yaml:1: version is '2', expected a whole number from 1 to 1
arm.yaml:5: inputs.cameras.camera.topic is 'two words', expected a ROS topic such as \
camera/image_raw
arm.yaml:6: inputs.cameras.camera.rate is '-3', expected a number from 0.01 to 10000
arm.yaml:7: inputs.cameras.camera.max_ages is no key here, expected one of await_new, \
below_rate, crop, max_age, max_pixels, max_skew, qos, rate, required, resize, \
stamp, topic, type; is max_age meant?
arm.yaml:8: inputs.cameras.camera.resize.filter is 'lanczos', expected one of nearest, \
bilinear, bicubic, area
arm.yaml:9: inputs.cameras.camera.crop.width is '0', expected a whole number from 1 to 65536
arm.yaml:9: inputs.cameras.camera.crop.height is missing, expected a whole number from 1 to 65536
arm.yaml:10: camera 'side' is none of the policy's, expected one of camera
arm.yaml:11: joints lacks b; the policy has a, b: each needs a source
arm.yaml:12: joints 'joint_states': joint 'c' is none of the policy's, expected one of a, b
arm.yaml:12: joints 'joint_states': names has 'd', which is no joint of this source, expected \
one of a, c
arm.yaml:13: inputs.joints[0].joints has 'a' twice, expected each once
arm.yaml:16: inputs.vectors.wrench.type is 'geometry_msgs/Wrench', expected one of \
geometry_msgs/WrenchStamped, std_msgs/Float64MultiArray, sensor_msgs/JointState
arm.yaml:16: vector 'wrench' is none of the policy's, expected one of none
arm.yaml:17: speed is no key here, expected one of inputs, outputs, time, version"""
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version: 1\n", "", "version is missing"),
        ("{topic: eye}", "{}", "inputs.cameras.camera.topic is missing, expected a text"),
        ("{topic: eye}", "{topic: }", "topic is empty, expected a text"),
        ("{topic: eye}", "[eye]", "inputs.cameras.camera is a list, expected a mapping"),
        ("camera: {topic: eye}", "eye: {topic: eye}", "arm.yaml:3: cameras lacks 'camera'"),
        ("{topic: eye}", "{topic: eye, topic: ear}", "topic is there twice, first in line 4"),
        ("{topic: eye}", "{topic: eye, required: false}", "the policy cannot do without it"),
        ("{topic: eye}", "{topic: eye, required: maybe}", "'maybe', expected true or false"),
        ("{topic: eye}", "{topic: eye, max_age: .nan}", "'.nan', expected a number from 0.001"),
        ("{topic: eye}", "{topic: eye, below_rate: hold}", "is given without rate"),
        ("{topic: eye}", "{topic: eye, type: sensor_msgs/PointCloud2}", "PointCloud2', expected"),
        ("{topic: eye}", "{topic: eye, qos: {depth: 0}}", "depth is '0', expected a whole number"),
        ("{topic: eye}", "{topic: eye, qos: {depth: 1.5}}", "depth is '1.5', expected a whole"),
        ("{topic: eye}", "{topic: eye, crop: {width: 8, height: 8}}", "or add resize"),
        ("- {topic: joint_states}", "{topic: x}", "inputs.joints is a mapping, expected a list"),
        ("- {topic: joint_states}", "- 3", "inputs.joints[0] is '3', expected a mapping"),
        ("- {topic: joint_states}", "- {topic: x, joints: a}", "'a', expected a list of names"),
        ("- {topic: joint_states}", "- {topic: x, joints: [a]}", "joints lacks b"),
        (
            "- {topic: joint_states}",
            "- {topic: x, name: camera}",
            "input 'camera' is there more than once",
        ),
        (
            "- {topic: joint_states}",
            "- {topic: x}\n    - {topic: y, name: other}",
            "arm.yaml:7: joints 'other' names no joints",
        ),
        (
            "{topic: joint_states}",
            "{topic: eye}",
            "reads sensor_msgs/msg/JointState from 'eye', whi",
        ),
        (
            "- {topic: joint_states}",
            "- {topic: x, names: {a: j, b: j}}",
            "is 'j', which another one is too",
        ),
    ],
)
def test_one_fault_is_named(old: str, new: str, said: str) -> None:
    assert problems(MINIMAL) == []
    assert old in MINIMAL
    found = problems(MINIMAL.replace(old, new))
    assert any(said in problem for problem in found), found
    assert all(problem.startswith("arm.yaml:") for problem in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "arm.yaml: is empty, expected a mapping"),
        ("- 1", "arm.yaml: is a list, expected a mapping"),
        ("version: 1\ninputs: {a: b", "arm.yaml:2: not YAML"),
        ("version: 1\n\tinputs: 3", "arm.yaml:2: not YAML"),
        ("version: 1", "arm.yaml: inputs is missing"),
        ("version: 1\ninputs: &a {cameras: *a}", "cameras lacks 'camera'"),
    ],
)
def test_a_file_that_is_no_contract_is_refused_by_name(text: str, said: str) -> None:
    found = problems(text)
    assert any(problem.startswith(said) or said in problem for problem in found), found


EDITS = ["", "x", "-1", "[", "}", ": ", "\n", "  ", "&a ", "*a", "!!"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_done_to_a_file_the_answer_is_a_contract_or_its_problems(
    data: st.DataObject,
) -> None:
    text = EXAMPLE.read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(start + 30, len(text))))
        new = data.draw(
            st.sampled_from(["", "x", "-1", "[", "}", ": ", "\n", "  ", "&a ", "*a", "!!"])
        )
        text = text[:start] + new + text[stop:]
    reading = read_contract(text, "arm.yaml")
    try:
        contract = resolve(reading.contract, SPEC, reading.problems)
    except ContractError as error:
        problems_found = [str(problem) for problem in error.problems]
    else:
        assert {each.name for each in contract.cameras} == {"top", "wrist"}
        joints = [joint for each in contract.joints for joint in each.joints]
        assert sorted(joints) == sorted(SPEC.joint_names)
        return
    assert problems_found
    assert all(problem.startswith("arm.yaml") for problem in problems_found)


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"nowhere\.yaml: cannot be read"):
        load_contract(str(tmp_path / "nowhere.yaml"), SMALL)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ContractError, match=r"binary\.yaml: cannot be read"):
        load_contract(str(tmp_path / "binary.yaml"), SMALL)
    (tmp_path / "control.yaml").write_bytes(b"a: \x01")
    with pytest.raises(ContractError, match="not YAML"):
        load_contract(str(tmp_path / "control.yaml"), SMALL)


def vectors(entry: str) -> str:
    return MINIMAL + f"  vectors:\n    v: {{topic: v, {entry}}}\n"


@pytest.mark.parametrize(
    ("entry", "length", "said"),
    [
        ("type: geometry_msgs/WrenchStamped", 5, "gets 6 numbers of geometry_msgs/msg/Wrench"),
        ("type: sensor_msgs/JointState, field: effort", 3, "gets 2 numbers of sensor_msgs"),
        ("type: sensor_msgs/JointState, names: {c: d}", 2, "names has 'c'"),
        ("type: std_msgs/Float64MultiArray, stamp: header", 2, "this type has none"),
        ("type: std_msgs/Float64MultiArray, field: effort", 2, "field is no key here"),
        ("rate: 3", 2, "type is missing"),
    ],
)
def test_a_vector_that_does_not_fit_the_policy_is_named(entry: str, length: int, said: str) -> None:
    spec = replace(SMALL, vectors={"v": length})
    assert any(said in problem for problem in problems(vectors(entry), spec))


def test_an_optional_input_can_neither_be_awaited_nor_hold() -> None:
    spec = replace(SMALL, vectors={"v": 2}, optional=frozenset({"v"}))
    entry = "type: std_msgs/Float64MultiArray, required: false"
    assert problems(vectors(entry), spec) == []
    assert problems(MINIMAL, spec) == []
    for extra in ("await_new: true", "rate: 5, below_rate: hold"):
        found = problems(vectors(f"{entry}, {extra}"), spec)
        assert "an optional input cannot stop the policy" in found[0]


def test_stamps_may_be_those_of_the_receipt_where_a_driver_gives_none() -> None:
    text = MINIMAL.replace("{topic: eye}", "{topic: eye, stamp: receipt}")
    contract = resolve(read_contract(text, "arm.yaml").contract, SMALL)
    assert contract.cameras[0].timing.stamp is StampSource.RECEIPT


def test_the_long_form_of_a_type_means_the_same() -> None:
    text = MINIMAL.replace("{topic: eye}", "{topic: eye, type: sensor_msgs/msg/CompressedImage}")
    contract: Contract = read_contract(text, "arm.yaml").contract
    assert contract.cameras[0].type is MessageType.COMPRESSED_IMAGE


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{topic: out}", "outputs[0].type is missing"),
        ("{type: wheel, topic: out}", "'wheel', expected one of joint_trajectory"),
        ("{type: joint_trajectory, topic: out, actions: [a, c]}", "action 'c' is none"),
        ("{type: joint_trajectory, topic: out, names: {c: x}}", "names has 'c'"),
        ("{type: twist, topic: out}", "has 0 components for 2 actions (a, b)"),
        (
            "{type: twist, topic: out, components: [linear.x, angular.w]}",
            "has 'angular.w', expected some of linear.x",
        ),
        ("{type: joint_trajectory, topic: out, space: polar}", "'polar', expected one of absolute"),
        ("{type: joint_trajectory, topic: out, gripper: {}}", "gripper.action is missing"),
        (
            "{type: joint_trajectory, topic: out, actions: [a], gripper: {action: b}}",
            "gripper's action 'b' is none of its actions",
        ),
        (
            "{type: joint_trajectory, topic: out, gripper: {action: b, policy_open: 0.0}}",
            "policy_open is 0, as policy_closed is",
        ),
        (
            "{type: joint_trajectory, topic: out, gripper: {action: b, threshold: 3}}",
            "threshold is '3', expected a number from 0 to 1",
        ),
        ("{type: float64_multi_array, topic: out, names: {a: x}}", "names is no key here"),
    ],
)
def test_an_output_that_does_not_fit_the_policy_is_named(entry: str, said: str) -> None:
    found = problems(f"{MINIMAL}outputs:\n  - {entry}\n")
    assert any(said in problem for problem in found), found
    assert all(problem.startswith(("arm.yaml:7", "arm.yaml:8")) for problem in found)


def test_a_spec_refuses_names_that_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match="camera both camera and vector"):
        replace(SMALL, vectors={"camera": 3})
    with pytest.raises(ValueError, match="lidar optional but no input"):
        replace(SMALL, optional=frozenset({"lidar"}))
