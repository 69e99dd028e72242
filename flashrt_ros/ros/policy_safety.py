# SPDX-License-Identifier: Apache-2.0
"""The safety of a policy node, from its parameters; docs/safety.md explains each."""

from __future__ import annotations

from collections.abc import Sequence

from rclpy.node import Node

from flashrt_ros.policies.limits import JointLimits, LimitActions
from flashrt_ros.policies.limits_file import load_limits
from flashrt_ros.policies.safety import Safety, SafetyOptions
from flashrt_ros.ros.parameters import Parameter, read
from flashrt_ros.ros.robot_description import RobotDescriptionInput

PARAMETERS = (
    Parameter(
        "limits",
        "",
        "YAML file of joint limits, as MoveIt and ros2_control have it; empty: none.",
    ),
    Parameter("urdf", "", "URDF file, or its XML: limits of position and velocity; empty: none."),
    Parameter(
        "robot_description_topic",
        "",
        "Latched topic of the URDF, such as robot_description, instead of 'urdf': the node is not "
        "activated before it has come; empty: none.",
    ),
    Parameter(
        "limit_action",
        "clamp, jump=hold",
        "What a breach of a limit does: clamp or hold, for all or as <kind>=<action>, "
        "kinds: position, velocity, acceleration, jump.",
    ),
    Parameter(
        "ramp_duration",
        0.5,
        "The first commands after a hold are blended in over this time, s; 0: not. "
        "Never in lockstep.",
        0.0,
        10.0,
        live=True,
    ),
    Parameter(
        "tick_deadline",
        0.0,
        "Longest tick, s; 0: any. The first tick is not judged. Never in lockstep.",
        0.0,
        60.0,
        live=True,
    ),
    Parameter("deadline_misses", 3, "Hold after so many late ticks in a row.", 1, 1000, live=True),
    Parameter(
        "clock_timeout",
        1.0,
        "Hold when the node's clock stands still for this wall time, s; 0: never. "
        "Never in lockstep.",
        0.0,
        60.0,
        live=True,
    ),
    Parameter(
        "emergency_stop_required",
        False,
        "The emergency stop counts as pressed while nobody publishes that it is released.",
    ),
    Parameter(
        "emergency_stop_timeout",
        0.0,
        "The emergency stop counts as pressed when nothing was published about it for this wall "
        "time, s; 0: once is enough.",
        0.0,
        60.0,
    ),
)
LIVE = tuple(parameter.name for parameter in PARAMETERS if parameter.live)


def make_safety(node: Node, joint_names: Sequence[str], velocities: tuple[int, ...] = ()) -> Safety:
    """What keeps a policy's commands safe.

    Args:
        node: has the parameters.
        joint_names: the policy's.
        velocities: columns of its actions that are velocities.

    Raises:
        OSError, ValueError: a file can't be read or can't be meant; the message says which.
    """
    urdf, topic = read(node, "urdf"), read(node, "robot_description_topic")
    if urdf and topic:
        raise ValueError(
            f"'urdf' and 'robot_description_topic' ('{topic}') are both given, expected one of them"
        )
    lockstep = read(node, "lockstep")
    # With a description still to come, the YAML file alone need not have every joint.
    limits = None if topic else _limits(node, joint_names, urdf, velocities)
    if limits is not None and not limits.are_set and not lockstep:
        node.get_logger().warning(
            "no joint limits: give parameter 'limits', 'urdf' or 'robot_description_topic' before "
            "a real arm is connected"
        )
    options = SafetyOptions(
        limits=limits,
        actions=LimitActions.parse(read(node, "limit_action").split(",")),
        ramp_duration=read(node, "ramp_duration"),
        tick_deadline=read(node, "tick_deadline"),
        deadline_misses=read(node, "deadline_misses"),
        clock_timeout=read(node, "clock_timeout"),
        displaced=read(node, "continue_tolerance"),
    )
    return Safety(
        joint_names,
        options,
        velocities=velocities,
        lockstep=lockstep,
        hold_duration=read(node, "hold_duration"),
    )


def limit_by_description(
    node: Node,
    description: RobotDescriptionInput,
    safety: Safety,
    joint_names: Sequence[str],
    velocities: tuple[int, ...] = (),
) -> None:
    """Take the limits from the description that has come; before the node acts.

    Raises:
        RuntimeError: none has come yet.
        OSError, ValueError: it, or the YAML file, can't be read or can't be meant.
    """
    text = description.newest()
    safety.guard.limit(_limits(node, joint_names, text, velocities))
    description.take(text)


def _limits(
    node: Node, joint_names: Sequence[str], urdf: str, velocities: tuple[int, ...]
) -> JointLimits:
    """The limits by the YAML file and a URDF; what is not limited is logged."""
    loaded = load_limits(joint_names, path=read(node, "limits"), urdf=urdf, velocities=velocities)
    if loaded.ignored:
        node.get_logger().warning(f"limits that are not enforced: {', '.join(loaded.ignored)}")
    if loaded.unlimited:
        node.get_logger().warning(
            f"velocities without limits, as no URDF has them: {', '.join(loaded.unlimited)}; give "
            "parameter 'limits' too"
        )
    return loaded.limits
