# SPDX-License-Identifier: Apache-2.0
"""What a language node says of itself: the latched status and the diagnostics."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Header

from flashrt_ros.models.language import Generated, LanguageEngine
from flashrt_ros.msg import RuntimeStatus
from flashrt_ros.ros import qos
from flashrt_ros.ros.diagnostics import DiagnosticsPublisher, percentiles
from flashrt_ros.ros.meters import Rates, Samples


class LanguageReporter:
    """Publishes `~/status` and, while configured, `/diagnostics` of a language node."""

    def __init__(self, node: LifecycleNode) -> None:
        self._node = node
        self._status = node.create_publisher(RuntimeStatus, "~/status", qos.LATCHED)
        self._known = RuntimeStatus()  # what stays the same while configured
        self._diagnostics: DiagnosticsPublisher | None = None
        self._first_token = Samples()
        self._counts = {"request": 0, "token": 0, "reused token": 0}
        self._rates = Rates()

    def open(self, engine: LanguageEngine, model: str, plan: str) -> None:
        """Begin with diagnostics, and keep what need not be computed for every message."""
        session = engine.session
        self._known = RuntimeStatus(
            model=model,
            fingerprint=session.fingerprint.digest(),
            session=session.id,
            plan=plan,
            tiers=["device", "host", "disk"],
        )
        self._diagnostics = DiagnosticsPublisher(self._node, model)

    def close(self) -> None:
        """End with them. Idempotent."""
        self._known = RuntimeStatus()
        if self._diagnostics is not None:
            self._diagnostics.destroy()
            self._diagnostics = None

    def generated(self, text: Generated) -> None:
        """A text is whole."""
        self._first_token.add(text.first_token_s)
        self._counts["request"] += 1
        self._counts["token"] += len(text.tokens)
        if text.started is not None:
            self._counts["reused token"] += text.started.reused

    def publish_status(self, engine: LanguageEngine | None, last_error: str) -> None:
        """Publish the latched status. `last_error`: a failed configure, say."""
        message = self._known
        message.header = Header(stamp=self._node.get_clock().now().to_msg())
        message.last_error = last_error
        if engine is not None:
            session = engine.session
            message.state = RuntimeStatus.RUNNING if engine.busy else RuntimeStatus.WAITING
            message.reason = session.fault if session.needs_reset else ""
            if session.needs_reset:
                message.state = RuntimeStatus.NEEDS_RESET
            message.seed = session.seed % 2**64
            message.boundary = session.live.number
            message.step = session.live.step
            message.epoch = session.epoch
            totals = session.store.totals()
            message.capsules = totals.capsules
            message.capsule_bytes = totals.memory_bytes + totals.disk_bytes
            message.tier_bytes = [totals.device_bytes, totals.host_bytes, totals.disk_bytes]
        self._status.publish(message)

    def publish_diagnostics(self, engine: LanguageEngine, under_way: int) -> None:
        """Publish what an operator wants to see; nothing while unconfigured."""
        if self._diagnostics is None:
            return
        session = engine.session
        rates = self._rates.update(self._counts)
        values: dict[str, object] = {
            "boundary": session.live.number,
            "epoch": session.epoch,
            "requests under way": under_way,
            **{f"{name}s": count for name, count in self._counts.items()},
            "token rate Hz": rates["token"],
            **percentiles("first token", self._first_token),
            "last error": session.fault,
        }
        level, message = DiagnosticStatus.OK, "busy" if engine.busy else "waiting"
        if session.needs_reset:
            level, message = DiagnosticStatus.ERROR, session.fault
        language = self._diagnostics.status("language", level, message, values)
        self._diagnostics.publish(language, self._diagnostics.capsules(session.store))
