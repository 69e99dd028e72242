# SPDX-License-Identifier: Apache-2.0
"""What a policy node publishes: chunks, commands, boundaries."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

from rclpy.lifecycle import LifecycleNode

from flashrt_ros.msg import ActionChunk, Boundary
from flashrt_ros.policies import ChunkOutput, CommandOutput, EngineEvent
from flashrt_ros.policies.contract import Output, OutputType
from flashrt_ros.policies.stream import CommandStream, Sample
from flashrt_ros.ros import conversions, qos
from flashrt_ros.ros.boundary_detail import describe
from flashrt_ros.ros.boundary_seal import complete
from flashrt_ros.ros.command_outputs import TrajectoryOutput, check_rate, open_streamed
from flashrt_ros.ros.parameters import read
from flashrt_ros.runtime import Session

DEFAULT_OUTPUT = Output(OutputType.JOINT_TRAJECTORY, "joint_trajectory")


class PolicyOutputs:
    """Publishes what the engine tells; its methods run on the replay thread.

    Trajectories leave as they are given. Outputs that hold one moment (arrays, twists) get samples
    of the trajectory under way, `command_rate` times a second, from a thread of their own.

    Args:
        node: a lifecycle node; chunks and commands leave it only while it is active.
        joint_names: the policy's joints, in the order of its actions.
        session: the engine's; boundary events carry its id and seed.
        on_status: called when the status changed.
        outputs: of a contract; none: JointTrajectory on `joint_trajectory`.
        command_rate: Hz.
        clock: the engine's, ns.

    Raises:
        ValueError: outputs that the rate, or lockstep, does not go with.
    """

    def __init__(
        self,
        node: LifecycleNode,
        joint_names: tuple[str, ...],
        session: Session,
        on_status: Callable[[], None],
        *,
        outputs: Sequence[Output] = (),
        command_rate: float = 50.0,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        outputs = tuple(outputs) or (DEFAULT_OUTPUT,)
        check_rate(outputs, command_rate, lockstep=read(node, "lockstep"))
        self._node = node
        self._joint_names = joint_names
        self._session = session
        self._on_status = on_status
        self._state_digest_every: int = read(node, "state_digest_every")
        self._durations: deque[float] = deque(maxlen=512)
        self._chunks = node.create_lifecycle_publisher(ActionChunk, "~/action_chunk", qos.STREAM)
        self._trajectories = [
            TrajectoryOutput(node, output, joint_names)
            for output in outputs
            if not output.type.is_streamed
        ]
        self._streamed = [
            open_streamed(node, output, joint_names)
            for output in outputs
            if output.type.is_streamed
        ]
        self.stream: CommandStream | None = None
        """Sends at a rate; None where no output needs it."""
        if self._streamed:
            self.stream = CommandStream(command_rate, clock, self._on_sample)
            self.stream.start()
        self._boundaries = node.create_publisher(Boundary, "~/boundary", qos.STREAM)

    def destroy(self) -> None:
        """End the stream and remove the publishers from the node."""
        if self.stream is not None:
            self.stream.close()
        self._node.destroy_lifecycle_publisher(self._chunks)
        for trajectory in self._trajectories:
            trajectory.destroy()
        for streamed in self._streamed:
            streamed.destroy()
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
        """Publish a command, or let the stream follow it: nothing older leaves from then on."""
        if self.stream is not None:
            self.stream.follow(command)
        for output in self._trajectories:
            output.send(command)

    def finish(self) -> None:
        """Let the hold under way come to rest in every output, then send nothing."""
        if self.stream is not None:
            self.stream.finish(patience=1.0)

    def _on_sample(self, sample: Sample) -> None:
        for output in self._streamed:
            output.send(sample)

    def on_event(self, event: EngineEvent) -> None:
        """Publish a boundary or an applied verb."""
        if self.stream is not None:
            self.stream.void(event.epoch)  # a clock that jumped back voids without a command
        now = self._node.get_clock().now().to_msg()
        session = self._session
        message = conversions.to_boundary(event, session.id, session.seed, now)
        describe(message, event)
        self._boundaries.publish(complete(message, event, session, self._state_digest_every))

    def on_status(self) -> None:
        """Publish the latched status."""
        self._on_status()
