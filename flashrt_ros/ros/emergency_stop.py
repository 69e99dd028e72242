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
from rclpy.parameter import Parameter
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
    """Presses and releases the emergency stop of engines, one after another; true presses.

    It lives as long as the policy's node: what was said while no engine was there holds for the
    next one. It has a node, an executor and a thread of its own: a press waits for no image that
    is decoded, no verb and no transition of the policy's node, and for no tick. As the one thread
    that waits for nothing it also looks whether a tick under way ends.

    There are two subscriptions. The latched one gets what was said before this node came; only
    the other one hears a publisher that is not latched, as `ros2 topic pub` is by default. Most
    messages come twice so, and the second one changes nothing.

    Args:
        node: the policy's; its name, namespace and remappings are taken over.
    """

    def __init__(self, node: Node) -> None:
        self._log = node.get_logger()
        self._lock = threading.Lock()
        self._engine: PolicyEngine | None = None
        self._required = False
        self._timeout = 0.0
        self._said = ""  # why it counts as pressed by the last word
        self._gone = False  # nobody publishes it since the last release
        self._heard: float | None = None
        self._node = Node(
            f"{node.get_name()}_emergency_stop",
            namespace=node.get_namespace(),
            context=node.context,
            use_global_arguments=False,  # they may rename every node of the process
            start_parameter_services=False,
            enable_rosout=False,
            parameter_overrides=[Parameter("start_type_description_service", value=False)],
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
        self._timer = self._node.create_timer(_WATCH_PERIOD, self._watch, clock=steady)
        self._timer.cancel()
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._spin, name="emergency-stop", daemon=True)
        self._thread.start()

    def bind(self, engine: PolicyEngine, *, required: bool, timeout: float = 0.0) -> None:
        """Switch this engine from now on, and at once if it counts as pressed.

        required: without a publisher that has said false, it counts as pressed; timeout: it counts
        as pressed when nothing was said for so long, s; 0: once is enough.
        """
        with self._lock:
            self._engine, self._required, self._timeout = engine, required, timeout
            self._press()
        self._timer.reset()
        self._executor.wake()

    def unbind(self) -> None:
        """No engine is there any more; none is touched after this. Idempotent."""
        self._timer.cancel()
        with self._lock:
            self._engine = None

    def destroy(self) -> None:
        """End the thread and remove the node. Idempotent."""
        self.unbind()
        if self._thread.is_alive():
            self._executor.shutdown()
            self._thread.join()
            self._node.destroy_node()

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            pass  # the process ends

    def _on_message(self, message: Bool) -> None:
        with self._lock:
            self._heard = time.monotonic()
            if message.data:
                self._said = self._said or PRESSED
                self._press()
            else:
                self._said, self._gone = "", False
                self._release()

    # DDS tells at once of a publisher that ends in order, and of one that is killed when the lease
    # of its participant is over (20 s by default in Fast DDS). One that hangs it doesn't tell of:
    # liveliness would, but whoever requests a lease hears no publisher that offers none.

    def _on_matched(self, info: QoSSubscriptionMatchedInfo) -> None:
        with self._lock:
            if info.current_count_change < 0 and info.current_count == 0:
                self._gone = True
            self._press()

    def _watch(self) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.watch_tick()
                self._press()

    def _on_incompatible(self, info: QoSRequestedIncompatibleQoSInfo) -> None:
        with self._lock:
            self._said = self._said or DEAF
            self._press()

    def _verdict(self) -> str:
        """Why it counts as pressed now; empty: it is released."""
        if self._said:
            return self._said
        if self._heard is None:
            return UNHEARD if self._required or self._timeout > 0.0 else ""
        if self._required and self._gone:
            return GONE
        if 0.0 < self._timeout < time.monotonic() - self._heard:
            return f"emergency stop: nothing said about it for {self._timeout:g} s"
        return ""

    def _press(self) -> None:
        """Press the engine's switch where it belongs so; a reason that is there already stays."""
        engine, reason = self._engine, self._verdict()
        if engine is not None and reason and not engine.safety.emergency.pressed:
            engine.press_emergency_stop(reason)
            self._log.error(f"{reason}: the arm is held")

    def _release(self) -> None:
        engine = self._engine
        if engine is not None and engine.safety.emergency.pressed:
            engine.release_emergency_stop()
            self._log.warning("emergency stop released: the arm stays held until a resume")
