# SPDX-License-Identifier: Apache-2.0
"""A contract from its YAML file; docs/contract.md describes every key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.policies.contract import (
    INSTRUCTION,
    TWIST_COMPONENTS,
    ActionSpace,
    BelowRate,
    CameraInput,
    Contract,
    ContractError,
    Crop,
    Filter,
    Fit,
    GripperOutput,
    Input,
    JointField,
    JointsInput,
    MessageType,
    Output,
    OutputType,
    Problem,
    Qos,
    Resize,
    StampSource,
    TimeRules,
    Timing,
    VectorInput,
)
from flashrt_ros.policies.contract_check import default_contract, resolve
from flashrt_ros.policies.observation import JOINTS
from flashrt_ros.policies.yaml_sections import Report, Section, root_section

VERSION = 1
_TOPIC = re.compile(r"(~/|/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")
_LARGEST = 1 << 16  # pixels of a side, and depth of a queue


class _RosType(str, Enum):
    @classmethod
    def _missing_(cls, value: object) -> _RosType | None:
        """The long form, with msg between, means the same."""
        short = str(value).replace("/msg/", "/")
        return next((each for each in cls if each.value == short), None)


class _CameraType(_RosType):
    IMAGE = "sensor_msgs/Image"
    COMPRESSED = "sensor_msgs/CompressedImage"


class _VectorType(_RosType):
    WRENCH = "geometry_msgs/WrenchStamped"
    ARRAY = "std_msgs/Float64MultiArray"
    JOINT_STATE = "sensor_msgs/JointState"


class _Reliability(str, Enum):
    BEST_EFFORT = "best_effort"
    RELIABLE = "reliable"


class _Durability(str, Enum):
    VOLATILE = "volatile"
    TRANSIENT_LOCAL = "transient_local"


@dataclass(frozen=True)
class Reading:
    """What could be read of a contract, and what is wrong with it."""

    contract: Contract
    problems: tuple[Problem, ...]


def load_contract(path: str, spec: PolicySpec) -> Contract:
    """The contract of a node, checked against its policy.

    Args:
        path: a YAML file; empty: the default contract of the policy.
        spec: of the policy.

    Raises:
        ContractError: with everything that is wrong in the file, and with it for this policy.
    """
    if not path:
        return default_contract(spec)
    try:
        text = Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError([Problem(path, 0, f"cannot be read: {error}")]) from error
    reading = read_contract(text, path)
    if not reading.contract.lines:  # nothing of it could be read
        raise ContractError(reading.problems)
    return resolve(reading.contract, spec, reading.problems)


def read_contract(text: str, source: str) -> Reading:
    """Read a contract's YAML; `source` names it in problems. It is not checked against a policy."""
    report = Report(source)
    root = root_section(text, report)
    if root is None:
        return Reading(Contract(source=source, text=text), tuple(report.problems))
    root.integer("version", None, VERSION, VERSION)
    inputs = root.section("inputs")
    if inputs is None and "inputs" not in root:
        report.add(0, "inputs is missing, expected a mapping of cameras, joints, vectors")
    outputs = tuple(_output(section) for section in root.items("outputs"))
    lines = {"inputs": root.line_of("inputs"), "outputs": root.line_of("outputs")}
    contract = Contract(outputs=outputs, time=_time(root), source=source, text=text, lines=lines)
    if inputs is not None:
        contract = _with_inputs(contract, inputs, lines)
    root.finish()
    return Reading(contract, tuple(report.problems))


def _with_inputs(contract: Contract, inputs: Section, lines: dict[str, int]) -> Contract:
    sections = ("cameras", "joints", "vectors")
    found = Contract(
        cameras=tuple(_camera(name, each) for name, each in inputs.sections("cameras")),
        joints=tuple(_joints(each) for each in inputs.items("joints")),
        vectors=tuple(_vector(name, each) for name, each in inputs.sections("vectors")),
        instruction=_instruction(inputs.section(INSTRUCTION)),
        outputs=contract.outputs,
        time=contract.time,
        source=contract.source,
        text=contract.text,
        lines=lines | {name: inputs.line_of(name) for name in sections if name in inputs},
    )
    inputs.finish()
    return found


def _time(root: Section) -> TimeRules:
    section = root.section("time")
    if section is None:
        return TimeRules()
    default = TimeRules()
    rules = TimeRules(
        section.number("max_skew", None, 0.0, 3600.0),
        section.number("future_tolerance", default.future_tolerance, 0.0, 3600.0) or 0.0,
        section.number("jump_back", default.jump_back, 0.0, 3600.0) or 0.0,
    )
    section.finish()
    return rules


def _camera(name: str, section: Section) -> CameraInput:
    kind = section.choice("type", _CameraType, _CameraType.IMAGE)
    required = section.flag("required", True)
    camera = CameraInput(
        name,
        _topic(section),
        _message_type(kind),
        _timing(section, await_new=required),
        _qos(section),
        required,
        section.line_of("topic"),
        crop=_crop(section.section("crop")),
        resize=_resize(section.section("resize")),
        max_pixels=section.integer("max_pixels", 1 << 24, 1, 1 << 30) or 1,
    )
    section.finish()
    return camera


def _crop(section: Section | None) -> Crop | None:
    if section is None:
        return None
    crop = Crop(
        section.integer("x", 0, 0, _LARGEST) or 0,
        section.integer("y", 0, 0, _LARGEST) or 0,
        section.integer("width", None, 1, _LARGEST) or 1,
        section.integer("height", None, 1, _LARGEST) or 1,
    )
    section.finish()
    return crop


def _resize(section: Section | None) -> Resize | None:
    if section is None:
        return None
    default = Resize()
    resize = Resize(
        section.choice("filter", Filter, default.filter), section.choice("fit", Fit, default.fit)
    )
    section.finish()
    return resize


def _joints(section: Section) -> JointsInput:
    source = JointsInput(
        section.text("name", JOINTS),
        _topic(section),
        MessageType.JOINT_STATE,
        _timing(section, await_new=False),
        _qos(section),
        section.flag("required", True),
        section.line_of("topic"),
        joints=section.texts("joints"),
        names=section.names("names"),
    )
    section.finish()
    return source


def _vector(name: str, section: Section) -> VectorInput:
    if "type" not in section:
        known = ", ".join(kind.value for kind in _VectorType)
        section.complain("type", f"is missing, expected one of {known}")
    kind = section.choice("type", _VectorType, _VectorType.ARRAY)
    values = JointField.POSITION
    joints: tuple[str, ...] = ()
    names: dict[str, str] = {}
    if kind is _VectorType.JOINT_STATE:
        values = section.choice("field", JointField, values)
        joints, names = section.texts("joints"), section.names("names")
    vector = VectorInput(
        name,
        _topic(section),
        _message_type(kind),
        _timing(section, await_new=False),
        _qos(section),
        section.flag("required", True),
        section.line_of("topic"),
        values,
        joints,
        names,
    )
    if kind is _VectorType.ARRAY and section.choice("stamp", StampSource, StampSource.RECEIPT) is (
        StampSource.HEADER
    ):
        section.complain("stamp", "is 'header', but this type has none; expected receipt")
    section.finish()
    return vector


def _instruction(section: Section | None) -> Input | None:
    if section is None:
        return None
    source = Input(
        INSTRUCTION,
        _topic(section),
        MessageType.STRING,
        qos=_qos(section, Qos(reliability="reliable", depth=10)),
        line=section.line_of("topic"),
    )
    section.finish()
    return source


def _timing(section: Section, *, await_new: bool) -> Timing:
    timing = Timing(
        section.choice("stamp", StampSource, StampSource.HEADER),
        section.flag("await_new", await_new),
        section.number("rate", None, 0.01, 10_000.0),
        section.choice("below_rate", BelowRate, BelowRate.WARN),
        section.number("max_age", None, 0.001, 3600.0),
        section.number("max_skew", None, 0.0, 3600.0),
    )
    if "below_rate" in section and "rate" not in section:
        section.complain("below_rate", "is given without rate, expected both or none")
    return timing


def _qos(section: Section, default: Qos | None = None) -> Qos | None:
    inner = section.section("qos")
    if inner is None:
        return None
    default = default or Qos()
    chosen = Qos(
        inner.choice("reliability", _Reliability, _Reliability(default.reliability)).value,
        inner.choice("durability", _Durability, _Durability(default.durability)).value,
        inner.integer("depth", default.depth, 1, _LARGEST) or 1,
    )
    inner.finish()
    return chosen


def _output(section: Section) -> Output:
    if "type" not in section:
        known = ", ".join(kind.value for kind in OutputType)
        section.complain("type", f"is missing, expected one of {known}")
    kind = section.choice("type", OutputType, OutputType.JOINT_TRAJECTORY)
    components = section.texts("components") if kind.is_twist else ()
    for component in components:
        if component not in TWIST_COMPONENTS:
            known = ", ".join(TWIST_COMPONENTS)
            section.complain("components", f"has '{component}', expected some of {known}")
    output = Output(
        kind,
        _topic(section),
        section.texts("actions"),
        section.names("names") if kind is OutputType.JOINT_TRAJECTORY else {},
        components,
        section.choice("space", ActionSpace, ActionSpace.ABSOLUTE),
        _gripper(section.section("gripper")),
        section.text("frame_id", "") if kind is OutputType.TWIST_STAMPED else "",
        section.flag("velocities", False) if kind is OutputType.JOINT_TRAJECTORY else False,
        _qos(section, Qos(reliability="reliable", depth=10)),
        section.line_of("topic"),
    )
    section.finish()
    return output


def _gripper(section: Section | None) -> GripperOutput | None:
    if section is None:
        return None
    default = GripperOutput("")
    limit = 1e6

    def value(key: str, otherwise: float) -> float:
        found = section.number(key, otherwise, -limit, limit)
        return otherwise if found is None else found

    gripper = GripperOutput(
        section.text("action"),
        value("policy_closed", default.policy_closed),
        value("policy_open", default.policy_open),
        value("closed", default.closed),
        value("open", default.open),
        section.number("threshold", None, 0.0, 1.0),
    )
    if gripper.policy_closed == gripper.policy_open:
        section.complain("policy_open", f"is {gripper.policy_open:g}, as policy_closed is")
    section.finish()
    return gripper


def _topic(section: Section) -> str:
    topic = section.text("topic")
    if topic and not _TOPIC.fullmatch(topic):
        section.complain("topic", f"is '{topic}', expected a ROS topic such as camera/image_raw")
    return topic


def _message_type(kind: _RosType) -> MessageType:
    package, _, name = kind.value.partition("/")
    return MessageType(f"{package}/msg/{name}")
