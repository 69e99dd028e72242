# SPDX-License-Identifier: Apache-2.0
"""The latched status of a policy node."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Header

from flashrt_ros.msg import RuntimeStatus
from flashrt_ros.ros import qos
from flashrt_ros.ros.meters import Meters
from flashrt_ros.ros.policy_diagnostics import PolicyDiagnostics
from flashrt_ros.ros.policy_parts import Parts

# What the engine's status has under the same name.
_SAME = (
    "boundary", "step", "epoch", "sequence", "instruction", "reason", "execution",
    "emergency_stop", "ticks", "faults", "deadline_misses", "limit_breaches", "run",
)  # fmt: skip


class PolicyReporter:
    """Publishes `~/status` and, while configured, `/diagnostics` of a policy node.

    The replay thread only says that the status changed; the executor's thread puts the message
    together. Several changes in a row become one message, with the newest state.

    Args:
        node: the node.
        report: called on the executor's thread after `changed`.
    """

    def __init__(self, node: LifecycleNode, report: Callable[[], None]) -> None:
        self._node = node
        self._status = node.create_publisher(RuntimeStatus, "~/status", qos.LATCHED)
        # A group of its own: not held up where callbacks run on several threads.
        self._group = MutuallyExclusiveCallbackGroup()
        self._wake = node.create_guard_condition(report, callback_group=self._group)
        self._known = RuntimeStatus()  # what stays the same while configured
        self._diagnostics: PolicyDiagnostics | None = None

    def changed(self) -> None:
        """The status changed; any thread."""
        self._wake.trigger()

    def open(self, parts: Parts, meters: Meters, plan: str) -> None:
        """Begin with diagnostics, and keep what need not be computed for every message."""
        assert parts.model is not None
        assert parts.session is not None
        assert parts.inputs is not None
        session = parts.session
        self._known = RuntimeStatus(
            model=parts.model.name,
            fingerprint=session.fingerprint.digest(),
            session=session.id,
            plan=plan,
            tiers=["device", "host", "disk"],
        )
        self._diagnostics = PolicyDiagnostics(
            self._node,
            parts.model.name,
            meters,
            parts.inputs,
            session.store,
            None if parts.outputs is None else parts.outputs.stream,
        )

    def close(self) -> None:
        """End with them. Idempotent."""
        self._known = RuntimeStatus()
        if self._diagnostics is not None:
            self._diagnostics.destroy()
            self._diagnostics = None

    def publish_status(self, parts: Parts, last_error: str) -> None:
        """Publish the latched status. `last_error`: the node's own, a failed configure say."""
        message = self._known
        message.header = Header(stamp=self._node.get_clock().now().to_msg())
        message.last_error = last_error
        if parts.engine is not None and parts.session is not None:
            status = parts.engine.status
            message.state = status.state.value
            for name in _SAME:
                setattr(message, name, getattr(status, name))
            message.seed = parts.session.seed
            message.last_error = status.last_error or last_error
            totals = parts.session.store.totals()
            message.capsules = totals.capsules
            message.capsule_bytes = totals.memory_bytes + totals.disk_bytes
            message.tier_bytes = [totals.device_bytes, totals.host_bytes, totals.disk_bytes]
        self._status.publish(message)

    def publish_diagnostics(self, parts: Parts) -> None:
        """Publish what an operator wants to see; nothing while unconfigured."""
        if parts.engine is not None and self._diagnostics is not None:
            self._diagnostics.publish(parts.engine.status)
