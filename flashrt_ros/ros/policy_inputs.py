# SPDX-License-Identifier: Apache-2.0
"""What a policy node listens to: images, joint states, the instruction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.lifecycle import LifecycleNode
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.policies import (
    Ends,
    Observation,
    ObservationAssembler,
    Pairing,
    PolicyEngine,
)
from flashrt_ros.ros import conversions, images, qos

_OVERRIDABLE = QoSOverridingOptions.with_default_policies()


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
