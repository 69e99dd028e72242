# SPDX-License-Identifier: Apache-2.0
"""The topics that command something, one class a kind of message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from geometry_msgs.msg import Twist, TwistStamped
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Float64MultiArray, Header, MultiArrayDimension
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.policies import CommandOutput
from flashrt_ros.policies.actuation import Actuation, slopes
from flashrt_ros.policies.contract import Output, OutputType
from flashrt_ros.policies.stream import Sample
from flashrt_ros.ros import conversions, qos


class StreamedOutput(Protocol):
    """An output whose messages hold one moment."""

    def send(self, sample: Sample) -> None:
        """Publish a sample; on the stream's thread."""

    def destroy(self) -> None:
        """Remove the publisher from the node."""


class _Publishing:
    """A publisher on a lifecycle node: silent while the node is not active."""

    def __init__(self, node: LifecycleNode, kind: Any, output: Output) -> None:
        profile = qos.COMMAND if output.qos is None else qos.of_contract(output.qos)
        self._node = node
        self._publisher = node.create_lifecycle_publisher(kind, output.topic, profile)

    def destroy(self) -> None:
        """Remove the publisher from the node."""
        self._node.destroy_lifecycle_publisher(self._publisher)


class TrajectoryOutput(_Publishing):
    """JointTrajectory for joint_trajectory_controller: a whole command in one message."""

    def __init__(self, node: LifecycleNode, output: Output, joint_names: Sequence[str]) -> None:
        super().__init__(node, JointTrajectory, output)
        self._actuation = Actuation(output, joint_names)
        self._velocities = output.velocities

    def send(self, command: CommandOutput) -> None:
        """Publish a command."""
        trajectory, actuation = command.due or command.trajectory, self._actuation
        positions = actuation.values(trajectory.positions)
        velocities = slopes(trajectory.times, positions) if self._velocities else None
        message = conversions.to_joint_trajectory(command, actuation.names, positions, velocities)
        self._publisher.publish(message)


class ArrayOutput(_Publishing):
    """Float64MultiArray for forward_command_controller, or a gripper's: positions of one moment."""

    def __init__(self, node: LifecycleNode, output: Output, joint_names: Sequence[str]) -> None:
        super().__init__(node, Float64MultiArray, output)
        self._actuation = Actuation(output, joint_names)

    def send(self, sample: Sample) -> None:
        """Publish a sample. Its layout's label says of which command: epoch and sequence."""
        values = self._actuation.values(sample.positions).tolist()
        message = Float64MultiArray(data=values)
        # forward_command_controller reads `data` alone.
        label = conversions.commit_text(sample.command)
        message.layout.dim = [MultiArrayDimension(label=label, size=len(values), stride=1)]
        self._publisher.publish(message)


class TwistOutput(_Publishing):
    """Twist or TwistStamped: velocities of one moment, zero where the policy gives none."""

    def __init__(self, node: LifecycleNode, output: Output, joint_names: Sequence[str]) -> None:
        self._stamped = output.type is OutputType.TWIST_STAMPED
        super().__init__(node, TwistStamped if self._stamped else Twist, output)
        self._actuation = Actuation(output, joint_names)
        self._components = [component.split(".") for component in output.components]
        self._frame_id = output.frame_id

    def send(self, sample: Sample) -> None:
        """Publish a sample."""
        twist = Twist()
        values = self._actuation.values(sample.positions).tolist()
        for (kind, axis), value in zip(self._components, values, strict=True):
            setattr(getattr(twist, kind), axis, value)
        if self._stamped:
            header = Header(stamp=conversions.to_time(sample.time_ns), frame_id=self._frame_id)
            self._publisher.publish(TwistStamped(header=header, twist=twist))
        else:
            self._publisher.publish(twist)


def open_streamed(
    node: LifecycleNode, output: Output, joint_names: Sequence[str]
) -> StreamedOutput:
    """The output of a kind that is sent at a rate."""
    if output.type.is_twist:
        return TwistOutput(node, output, joint_names)
    return ArrayOutput(node, output, joint_names)


def check_rate(outputs: Sequence[Output], rate: float, *, lockstep: bool) -> None:
    """Raise ValueError where outputs and `command_rate` do not go together."""
    streamed = [output.topic for output in outputs if output.type.is_streamed]
    if streamed and lockstep:
        raise ValueError(
            f"lockstep sends one answer to each observation and nothing in between, but "
            f"{', '.join(streamed)} would be sent at a rate: use joint_trajectory"
        )
    if streamed and rate == 0.0:
        raise ValueError(
            f"command_rate is 0, but {', '.join(streamed)} hold one moment each: set command_rate "
            "to the rate of their controllers, 50 to 200 Hz"
        )
