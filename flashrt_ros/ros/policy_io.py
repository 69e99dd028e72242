# SPDX-License-Identifier: Apache-2.0
"""The topics of a policy node: what it listens to, and what it publishes."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Callable

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.lifecycle import LifecycleNode
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.msg import ActionChunk, Boundary
from flashrt_ros.policies import (
    ChunkOutput,
    CommandOutput,
    Ends,
    EngineEvent,
    Observation,
    ObservationAssembler,
    Pairing,
    PolicyEngine,
)
from flashrt_ros.ros import conversions, images, qos
from flashrt_ros.runtime import Session

_OVERRIDABLE = QoSOverridingOptions.with_default_policies()


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
        self._boundaries.publish(
            conversions.to_boundary(event, self._session.id, self._session.seed, now)
        )

    def on_status(self) -> None:
        """Publish the latched status."""
        self._on_status()


class PolicyInputs:
    """Subscribes to the inputs, checks every message, and offers complete observations.

    A bad message is counted, named in the diagnostics and makes the arm hold until the next good
    observation; it never raises out of a callback.

    Args:
        node: the node.
        engine: gets the observations and faults.
        spec: what the policy takes.
        lockstep: every observation is answered, images and joints carry the same stamp.
        max_skew: largest difference of the stamps in one observation, s.
    """

    def __init__(
        self,
        node: LifecycleNode,
        engine: PolicyEngine,
        spec: PolicySpec,
        *,
        lockstep: bool,
        max_skew: float,
    ) -> None:
        self._node = node
        self._engine = engine
        self._spec = spec
        self.errors: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.last_error = ""
        self.assembler = ObservationAssembler(
            spec.cameras,
            len(spec.joint_names),
            pairing=Pairing.EXACT if lockstep else Pairing.NEAREST,
            max_skew_s=max_skew,
            repeat=lockstep,
        )
        group = MutuallyExclusiveCallbackGroup()
        profile = qos.LOCKSTEP_INPUT if lockstep else qos.SENSOR
        options = {"callback_group": group, "qos_overriding_options": _OVERRIDABLE}
        self._subscriptions = [
            node.create_subscription(
                Image, f"{camera}/image_raw", self._image_callback(camera), profile, **options
            )
            for camera in spec.cameras
        ]
        self._subscriptions += [
            node.create_subscription(
                JointState, "joint_states", self._on_joint_state, profile, **options
            ),
            node.create_subscription(
                String, "instruction", self._on_instruction, 10, callback_group=group
            ),
        ]

    def destroy(self) -> None:
        """Remove the subscriptions from the node."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []

    def _image_callback(self, camera: str) -> Callable[[Image], None]:
        def on_image(message: Image) -> None:
            stamp_ns = conversions.to_ns(message.header.stamp)
            self.received[camera] += 1
            try:
                image = images.to_rgb(message)
                observation = self.assembler.add_image(camera, stamp_ns, image)
            except ValueError as error:
                self._refuse(camera, str(error), stamp_ns)
            else:
                self._offer(observation)

        return on_image

    def _on_joint_state(self, message: JointState) -> None:
        stamp_ns = conversions.to_ns(message.header.stamp)
        self.received["joint_states"] += 1
        try:
            positions = conversions.joint_positions(message, self._spec.joint_names)
            observation = self.assembler.add_joints(stamp_ns, positions)
        except ValueError as error:
            self._refuse("joint_states", str(error), stamp_ns)
        else:
            self._engine.measure(positions)
            self._offer(observation)

    def _on_instruction(self, message: String) -> None:
        self.received["instruction"] += 1
        text = message.data

        def verb(_: object) -> None:
            try:
                self._engine.set_instruction(text)
            except Exception as error:
                self._refuse("instruction", str(error), None, Ends.INSTRUCTION)

        self._engine.submit(verb)

    def _offer(self, observation: Observation | None) -> None:
        if observation is not None:
            self._engine.offer(observation)

    def _refuse(
        self, source: str, reason: str, stamp_ns: int | None, ends: Ends = Ends.OBSERVATION
    ) -> None:
        self.errors[source] += 1
        self.last_error = f"{source}: {reason}"
        self._node.get_logger().warning(self.last_error, throttle_duration_sec=1.0)
        self._engine.fault(self.last_error, stamp_ns=stamp_ns, ends=ends)
