# SPDX-License-Identifier: Apache-2.0
"""What a policy node listens to: the topics of its contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from geometry_msgs.msg import WrenchStamped
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray, String

from flashrt_ros.policies import (
    Ends,
    EngineState,
    Observation,
    ObservationAssembler,
    PolicyEngine,
)
from flashrt_ros.policies.contract import (
    INSTRUCTION,
    BelowRate,
    Contract,
    Input,
    JointsInput,
    MessageType,
    SensorInput,
)
from flashrt_ros.policies.stamps import StampsWentBack
from flashrt_ros.ros import qos
from flashrt_ros.ros.decoding import decode_array, stamp_of

_CLASSES: Mapping[MessageType, Any] = {
    MessageType.IMAGE: Image,
    MessageType.COMPRESSED_IMAGE: CompressedImage,
    MessageType.JOINT_STATE: JointState,
    MessageType.WRENCH: WrenchStamped,
    MessageType.ARRAY: Float64MultiArray,
    MessageType.STRING: String,
}
_OVERRIDABLE = QoSOverridingOptions.with_default_policies()


class PolicyInputs:
    """Subscribes to the inputs, checks every message, and offers complete observations.

    A bad message is counted, named in the diagnostics and makes the arm hold until the next good
    observation; it never raises out of a callback. One of an optional input is counted and named
    only. An input that grows too old, or comes too slowly where the contract says hold, holds the
    arm likewise.

    Args:
        node: the node.
        engine: gets the observations and faults.
        contract: checked against the engine's policy.
        lockstep: every observation is answered, all inputs carry the same stamp.
        max_skew: for inputs and contracts that do not say, s.

    Raises:
        ValueError: lockstep with an input that has no stamp.
    """

    def __init__(
        self,
        node: LifecycleNode,
        engine: PolicyEngine,
        contract: Contract,
        *,
        lockstep: bool,
        max_skew: float,
    ) -> None:
        self._node = node
        self._engine = engine
        self.contract = contract
        self.errors: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.last_error = ""
        self.sources: dict[str, tuple[str, str]] = {}
        """Input name to the topic, fully resolved, and its type."""
        self.assembler = ObservationAssembler(contract, lockstep=lockstep, max_skew_s=max_skew)
        self._told: set[str] = set()
        self._subscriptions: list[Any] = []
        self._timer: Any = None
        group = MutuallyExclusiveCallbackGroup()
        sensor = qos.LOCKSTEP_INPUT if lockstep else qos.SENSOR
        for source in contract.inputs:
            self._subscribe(source, self._sensor_callback(source), sensor, group)
        if contract.instruction is not None:
            self._subscribe(contract.instruction, self._on_instruction, qos.INSTRUCTION, group)
        if not lockstep and any(_can_expire(source) for source in contract.inputs):
            # Ages grow without messages, so somebody has to look. On a clock that never stands
            # still: it is the node's clock that ages are measured with.
            steady = Clock(clock_type=ClockType.STEADY_TIME)
            self._timer = node.create_timer(0.05, self._watch, callback_group=group, clock=steady)

    def destroy(self) -> None:
        """Remove the subscriptions from the node."""
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
            self._timer = None
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []

    def problem(self, now_ns: int) -> str:
        """What an operator should know of the inputs now; empty: nothing."""
        missing = self.assembler.missing()
        told = [f"nothing yet from {', '.join(missing)}"] if missing else []
        told += (self.assembler.slow(now_ns) | self.assembler.obstacles(now_ns)).values()
        if not told and self.assembler.withheld:
            told = [f"no observation: {self.assembler.withheld}"]
        return "; ".join(told)

    def _subscribe(
        self, source: Input, callback: Callable[[Any], None], default: QoSProfile, group: Any
    ) -> None:
        # rclpy keeps such parameters for the node's life. Where the contract or the mode says which
        # QoS is meant, they would put an earlier configuration's in its place.
        overridable = default is qos.SENSOR and source.qos is None
        subscription = self._node.create_subscription(
            _CLASSES[source.type],
            source.topic,
            callback,
            default if source.qos is None else qos.of_contract(source.qos),
            callback_group=group,
            qos_overriding_options=_OVERRIDABLE if overridable else None,
        )
        self._subscriptions.append(subscription)
        self.sources[source.name] = (subscription.topic_name, str(source.type))

    def _sensor_callback(self, source: SensorInput) -> Callable[[Any], None]:
        def on_message(message: Any) -> None:
            now_ns = int(self._node.get_clock().now().nanoseconds)
            self.received[source.name] += 1
            stamp_ns = stamp_of(source, message, now_ns)
            try:
                array = decode_array(source, message)
                observation = self.assembler.add(source.name, stamp_ns, array, now_ns)
            except ValueError as error:
                self._refuse(source, str(error), stamp_ns)
            except StampsWentBack as jump:
                self._begin_anew(str(jump))
            else:
                if isinstance(source, JointsInput):
                    positions = self.assembler.positions()
                    if positions is not None:
                        self._engine.measure(positions)
                self._offer(observation)

        return on_message

    def _on_instruction(self, message: String) -> None:
        self.received[INSTRUCTION] += 1
        text = message.data

        def verb(_: object) -> None:
            try:
                self._engine.set_instruction(text)
            except Exception as error:
                self._fault(INSTRUCTION, str(error), None, Ends.INSTRUCTION)

        self._engine.submit(verb)

    def _offer(self, observation: Observation | None) -> None:
        if observation is not None:
            self._told.clear()
            self._engine.offer(observation)

    def _watch(self) -> None:
        """Hold the arm when an input has become unusable with time; once, until it is usable."""
        state = self._engine.status.state
        if state in (EngineState.INACTIVE, EngineState.WAITING):
            return  # nothing moves, and before the first observation nothing may be sent
        obstacles = self.assembler.obstacles(int(self._node.get_clock().now().nanoseconds))
        # A verb may have ended the hold meanwhile: the obstacle is still there.
        moving = state is EngineState.RUNNING
        for name, reason in obstacles.items():
            if name not in self._told or moving:
                self._node.get_logger().warning(reason, throttle_duration_sec=1.0)
                self._engine.fault(reason)
        self._told = set(obstacles)

    def explain_silence(self, now_ns: int) -> str:
        """Which inputs keep an observation from being complete: the oldest one, by its age."""
        missing = self.assembler.missing()
        if missing:
            return f"nothing yet from {', '.join(missing)}"
        newest = self.assembler.newest_ns()
        name = min(newest, key=lambda each: newest[each], default="")
        return f"{name} is {(now_ns - newest[name]) * 1e-9:.2f} s old" if name else ""

    def _begin_anew(self, reason: str) -> None:
        """A sender's time went back though the node's clock did not: a bag played in a loop."""
        self._node.get_logger().warning(
            f"{reason}: inputs dropped, epoch raised", throttle_duration_sec=1.0
        )
        self.assembler.clear()
        self._engine.clock_jumped()

    def _refuse(self, source: SensorInput, reason: str, stamp_ns: int) -> None:
        if source.required:
            self._fault(source.name, reason, stamp_ns, Ends.OBSERVATION)
        else:
            self._count(source.name, reason)

    def _count(self, name: str, reason: str) -> None:
        self.errors[name] += 1
        self.last_error = f"{name}: {reason}"
        self._node.get_logger().warning(self.last_error, throttle_duration_sec=1.0)

    def _fault(self, name: str, reason: str, stamp_ns: int | None, ends: Ends) -> None:
        self._count(name, reason)
        self._engine.fault(self.last_error, stamp_ns=stamp_ns, ends=ends)


def _can_expire(source: SensorInput) -> bool:
    timing = source.timing
    return timing.max_age is not None or (
        timing.rate is not None and timing.below_rate is BelowRate.HOLD
    )
