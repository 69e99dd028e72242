# SPDX-License-Identifier: Apache-2.0
"""What a policy node publishes: chunks, commands, boundaries."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from rclpy.lifecycle import LifecycleNode
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.msg import ActionChunk, Boundary
from flashrt_ros.policies import ChunkOutput, CommandOutput, EngineEvent
from flashrt_ros.ros import conversions, qos
from flashrt_ros.ros.boundary_detail import describe
from flashrt_ros.ros.boundary_seal import complete
from flashrt_ros.ros.parameters import read
from flashrt_ros.runtime import Session


class PolicyOutputs:
    """Publishes what the engine tells; its methods run on the replay thread.

    Args:
        node: a lifecycle node; chunks and commands leave it only while it is active.
        joint_names: the policy's joints, in the order of its actions.
        session: the engine's; boundary events carry its id and seed.
        on_status: called when the status changed.
    """

    def __init__(
        self,
        node: LifecycleNode,
        joint_names: tuple[str, ...],
        session: Session,
        on_status: Callable[[], None],
    ) -> None:
        self._node = node
        self._joint_names = joint_names
        self._session = session
        self._on_status = on_status
        self._state_digest_every: int = read(node, "state_digest_every")
        self._durations: deque[float] = deque(maxlen=512)
        self._chunks = node.create_lifecycle_publisher(ActionChunk, "~/action_chunk", qos.STREAM)
        self._commands = node.create_lifecycle_publisher(
            JointTrajectory, "joint_trajectory", qos.COMMAND
        )
        self._boundaries = node.create_publisher(Boundary, "~/boundary", qos.STREAM)

    def destroy(self) -> None:
        """Remove the publishers from the node."""
        self._node.destroy_lifecycle_publisher(self._chunks)
        self._node.destroy_lifecycle_publisher(self._commands)
        self._node.destroy_publisher(self._boundaries)

    def latency(self) -> tuple[float, float]:
        """Median and 99th percentile of the last replays, s; zeros before the first."""
        durations = sorted(self._durations)
        if not durations:
            return 0.0, 0.0
        return statistics.median(durations), durations[int(0.99 * (len(durations) - 1))]

    def on_chunk(self, chunk: ChunkOutput) -> None:
        """Publish a chunk for recorders and for controllers that take one."""
        self._durations.append(chunk.inference_s)
        self._chunks.publish(conversions.to_action_chunk(chunk, self._joint_names))

    def on_command(self, command: CommandOutput) -> None:
        """Publish a command for joint_trajectory_controller."""
        self._commands.publish(conversions.to_joint_trajectory(command, self._joint_names))

    def on_event(self, event: EngineEvent) -> None:
        """Publish a boundary or an applied verb."""
        now = self._node.get_clock().now().to_msg()
        session = self._session
        message = conversions.to_boundary(event, session.id, session.seed, now)
        describe(message, event)
        self._boundaries.publish(complete(message, event, session, self._state_digest_every))

    def on_status(self) -> None:
        """Publish the latched status."""
        self._on_status()
