# SPDX-License-Identifier: Apache-2.0
"""The topic `emergency_stop`, heard by a thread that nothing else holds up."""

from __future__ import annotations

import threading
import time

from rclpy.clock import Clock, ClockType
from rclpy.event_handler import (
    QoSRequestedIncompatibleQoSInfo,
    QoSSubscriptionMatchedInfo,
    SubscriptionEventCallbacks,
)
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Bool

from flashrt_ros.policies import PolicyEngine
from flashrt_ros.ros import qos

PRESSED = "emergency stop"
UNHEARD = "emergency stop: nobody has said yet that it is released"
GONE = "emergency stop: whoever published it is gone"
DEAF = "emergency stop: a publisher of it is best effort and cannot be relied on"

_WATCH_PERIOD = 0.05  # s
_VOLATILE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)


class EmergencyStopInput:
    """Presses and releases the engine's emergency stop; true presses, false releases.

    It has a node, an executor and a thread of its own: a press waits for no image that is decoded,
    no verb and no transition of the policy's node, and for no tick. As the one thread that waits
    for nothing it also looks whether a tick under way ends.

    There are two subscriptions. The latched one gets what was said before this node came; only
    the other one hears a publisher that is not latched, as `ros2 topic pub` is by default. Most
    messages come twice so, and the second one changes nothing.

    Args:
        node: the policy's; its name, namespace and remappings are taken over.
        engine: whose switch it is.
        required: without a publisher that has said false, it counts as pressed.
        timeout: it counts as pressed when nothing was said for so long, s; 0: once is enough.
    """

    def __init__(
        self, node: Node, engine: PolicyEngine, *, required: bool, timeout: float = 0.0
    ) -> None:
        self._log = node.get_logger()
        self._engine = engine
        self._required = required
        self._timeout = timeout
        self._heard = time.monotonic()
        if required or timeout > 0.0:
            self._press(UNHEARD)
        self._node = Node(
            f"{node.get_name()}_emergency_stop",
            namespace=node.get_namespace(),
            context=node.context,
            use_global_arguments=False,  # they may rename every node of the process
            start_parameter_services=False,
            enable_rosout=False,
        )
        topic = node.resolve_topic_name("emergency_stop")
        # rclpy's own answer to a publisher that is not latched is a warning; here it is heard.
        latched = SubscriptionEventCallbacks(use_default_callbacks=False)
        events = SubscriptionEventCallbacks(
            incompatible_qos=self._on_incompatible,
            matched=self._on_matched,
        )
        self._node.create_subscription(
            Bool, topic, self._on_message, qos.LATCHED, event_callbacks=latched
        )
        self._node.create_subscription(
            Bool, topic, self._on_message, _VOLATILE, event_callbacks=events
        )
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._node.create_timer(_WATCH_PERIOD, self._watch, clock=steady)
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._spin, name="emergency-stop", daemon=True)
        self._thread.start()

    def destroy(self) -> None:
        """End the thread and remove the node."""
        self._executor.shutdown()
        self._thread.join()
        self._node.destroy_node()

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            pass  # the process ends

    def _on_message(self, message: Bool) -> None:
        self._heard = time.monotonic()
        if message.data:
            self._press(PRESSED)
        elif self._engine.safety.emergency.pressed:
            self._engine.release_emergency_stop()
            self._log.warning("emergency stop released: the arm stays held until a resume")

    # DDS tells at once of a publisher that ends in order, and of one that is killed when the lease
    # of its participant is over (20 s by default in Fast DDS). One that hangs it doesn't tell of:
    # liveliness would, but whoever requests a lease hears no publisher that offers none.

    def _on_matched(self, info: QoSSubscriptionMatchedInfo) -> None:
        if self._required and info.current_count_change < 0 and info.current_count == 0:
            self._press(GONE)

    def _watch(self) -> None:
        self._engine.watch_tick()
        if 0.0 < self._timeout < time.monotonic() - self._heard:
            self._press(f"emergency stop: nothing said about it for {self._timeout:g} s")

    def _on_incompatible(self, info: QoSRequestedIncompatibleQoSInfo) -> None:
        self._press(DEAF)

    def _press(self, reason: str) -> None:
        if not self._engine.safety.emergency.pressed:
            self._engine.press_emergency_stop(reason)
            self._log.error(f"{reason}: the arm is held")
