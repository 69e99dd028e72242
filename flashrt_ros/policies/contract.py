# SPDX-License-Identifier: Apache-2.0
"""Which message is which input of a policy, and which action goes where.

Values only: `contract_file` reads them from YAML, `contract_check` fits them to a policy's spec.
docs/contract.md describes every key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from flashrt_ros.policies.observation import JOINTS

INSTRUCTION = "instruction"


class MessageType(str, Enum):
    """ROS types that an input may have, as a graph names them."""

    IMAGE = "sensor_msgs/msg/Image"
    COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
    JOINT_STATE = "sensor_msgs/msg/JointState"
    WRENCH = "geometry_msgs/msg/WrenchStamped"
    ARRAY = "std_msgs/msg/Float64MultiArray"
    STRING = "std_msgs/msg/String"

    def __str__(self) -> str:
        return self.value

    @property
    def stamped(self) -> bool:
        """Whether it has a header. An input without one is stamped when it is received."""
        return self not in (MessageType.ARRAY, MessageType.STRING)


class JointField(str, Enum):
    """Arrays of a JointState."""

    POSITION = "position"
    VELOCITY = "velocity"
    EFFORT = "effort"

    def __str__(self) -> str:
        return self.value


class Filter(str, Enum):
    """How an image is resized. All but `NEAREST` average what they shrink (antialiasing)."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    AREA = "area"


class Fit(str, Enum):
    """What becomes of an image of another aspect ratio."""

    STRETCH = "stretch"
    """Both sides are scaled on their own."""
    PAD = "pad"
    """The whole image, as large as it fits, centred on black."""


class StampSource(str, Enum):
    """Where an input's stamp is from."""

    HEADER = "header"
    RECEIPT = "receipt"


class BelowRate(str, Enum):
    """What happens while an input comes more slowly than its required rate."""

    WARN = "warn"
    HOLD = "hold"


@dataclass(frozen=True)
class Qos:
    """Quality of service of one subscription or publisher."""

    reliability: str = "best_effort"
    durability: str = "volatile"
    depth: int = 5


@dataclass(frozen=True)
class Timing:
    """What is asked of the time of an input's messages.

    Attributes:
        stamp: from the header, or the node's clock when the message is received.
        await_new: no tick until a message came that no tick has seen.
        rate: required, Hz; None: any.
        below_rate: what happens below it.
        max_age: between its stamp and the node's clock when it is used, s; None: any.
        max_skew: between its stamp and the observation's, s; None: the contract's.
    """

    stamp: StampSource = StampSource.HEADER
    await_new: bool = False
    rate: float | None = None
    below_rate: BelowRate = BelowRate.WARN
    max_age: float | None = None
    max_skew: float | None = None


@dataclass(frozen=True)
class Crop:
    """A part of the message's image, in its pixels, cut out before resizing."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Resize:
    """How an image gets the size that the policy takes."""

    filter: Filter = Filter.BILINEAR
    fit: Fit = Fit.STRETCH


@dataclass(frozen=True)
class Input:
    """One topic that is one input.

    Attributes:
        name: of the input: the policy's camera or vector, or a name for a source of joint states.
        topic: relative to the node's namespace, or absolute.
        type: of its messages.
        timing: see `Timing`.
        qos: None: the node's default for that kind of input.
        required: without it there is no observation. Only what the policy calls optional may be
            False: it is then left out of an observation while it is missing, never filled in.
        line: in the contract's file; 0: nowhere.
    """

    name: str
    topic: str
    type: MessageType
    timing: Timing = Timing()
    qos: Qos | None = None
    required: bool = True
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class CameraInput(Input):
    """A camera: decoded to uint8 rgb `[height, width, 3]`.

    crop, resize: see there. size: (height, width) of the policy's image, known once the contract
    is checked against a policy; until then None. max_pixels: a larger image is refused.
    """

    crop: Crop | None = None
    resize: Resize | None = None
    size: tuple[int, int] | None = None
    max_pixels: int = 1 << 24


@dataclass(frozen=True)
class JointsInput(Input):
    """Measured positions of some of the policy's joints: float64 `[joints]`, rad or m.

    joints: the policy's names; empty until the check: those that no other source has. names: the
    policy's name to the message's, where they differ.
    """

    joints: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class VectorInput(Input):
    """A vector of numbers: float64 `[length]`.

    A WrenchStamped gives force xyz, N, and torque xyz, Nm. A JointState gives the array `values` of
    `joints`, in that order, with `names` as in `JointsInput`; `joints` may be empty: the policy's.
    length: of the policy's vector, None until the check.
    """

    values: JointField = JointField.POSITION
    joints: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None


SensorInput: TypeAlias = CameraInput | JointsInput | VectorInput


class OutputType(str, Enum):
    """Messages that an output may send."""

    JOINT_TRAJECTORY = "joint_trajectory"
    FLOAT64_MULTI_ARRAY = "float64_multi_array"
    TWIST = "twist"
    TWIST_STAMPED = "twist_stamped"

    @property
    def is_twist(self) -> bool:
        """Whether its actions are velocities."""
        return self in (OutputType.TWIST, OutputType.TWIST_STAMPED)

    @property
    def is_streamed(self) -> bool:
        """Whether a message holds one moment, so that it has to be sent at a rate."""
        return self is not OutputType.JOINT_TRAJECTORY


class ActionSpace(str, Enum):
    """What a policy's action of a joint means."""

    ABSOLUTE = "absolute"
    RELATIVE = "relative"


TWIST_COMPONENTS = tuple(f"{kind}.{axis}" for kind in ("linear", "angular") for axis in "xyz")


@dataclass(frozen=True)
class GripperOutput:
    """How the action of a gripper becomes a controller's value.

    The action's range `policy_closed` .. `policy_open` is stretched to `closed` .. `open`. With a
    threshold (a fraction of the way to open, 0 .. 1) the gripper is either closed or open.
    """

    action: str
    policy_closed: float = 0.0
    policy_open: float = 1.0
    closed: float = 0.0
    open: float = 1.0
    threshold: float | None = None


@dataclass(frozen=True)
class Output:
    """One topic that gets some of the actions.

    Attributes:
        type: of its messages.
        topic: relative to the node's namespace, or absolute.
        actions: the policy's names, in the order of the message; empty until the check: all.
        names: the policy's name to the controller's, where they differ (joint_trajectory).
        components: of a twist, one for each action.
        space: whether actions are positions, or differences to the position that was measured at
            the observation. A twist's are velocities, whatever this says.
        gripper: None: the actions have none, or it is a joint like others.
        frame_id: of a stamped twist's header.
        velocities: of a joint_trajectory: whether its points carry velocities, the slopes of the
            chunk (0 at its end). A controller then goes in cubic splines, else in straight lines.
        qos: None: that of commands.
        line: in the contract's file; 0: nowhere.
    """

    type: OutputType
    topic: str
    actions: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    space: ActionSpace = ActionSpace.ABSOLUTE
    gripper: GripperOutput | None = None
    frame_id: str = ""
    velocities: bool = False
    qos: Qos | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class TimeRules:
    """What holds for all inputs.

    max_skew: between an input's stamp and the observation's, s; None: the node's parameter.
    future_tolerance: a stamp that is further ahead of the node's clock is refused, s.
    jump_back: stamps of an input that go back by more have begun anew, s.
    """

    max_skew: float | None = None
    future_tolerance: float = 0.5
    jump_back: float = 1.0


@dataclass(frozen=True)
class Contract:
    """Inputs and outputs of a policy node.

    joint_names: the policy's, in its order, known once the contract is checked against it; source:
    the file, or what else it is from; text: the file's content, empty for a default; lines: of the
    sections, by name.
    """

    cameras: tuple[CameraInput, ...] = ()
    joints: tuple[JointsInput, ...] = ()
    vectors: tuple[VectorInput, ...] = ()
    instruction: Input | None = None
    outputs: tuple[Output, ...] = ()
    time: TimeRules = TimeRules()
    joint_names: tuple[str, ...] = ()
    source: str = ""
    text: str = field(default="", repr=False)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def inputs(self) -> Iterator[SensorInput]:
        """Every input but the instruction: cameras, joints, vectors."""
        yield from self.cameras
        yield from self.joints
        yield from self.vectors

    def input(self, name: str) -> SensorInput:
        """The input of that name. Raises KeyError."""
        for each in self.inputs:
            if each.name == name:
                return each
        raise KeyError(f"the contract has no input '{name}'")


@dataclass(frozen=True)
class Problem:
    """What is wrong with a contract, and in which line (0: in the file as a whole)."""

    source: str
    line: int
    text: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {self.text}"


class ContractError(ValueError):
    """A contract that cannot be used, with everything that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        super().__init__("\n".join([f"contract with {count}:", *map(str, self.problems)]))


def default_joints(topic: str = JOINTS) -> JointsInput:
    """Joint states of every joint, as a node without a contract reads them."""
    return JointsInput(JOINTS, topic, MessageType.JOINT_STATE)
