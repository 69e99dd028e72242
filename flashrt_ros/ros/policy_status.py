# SPDX-License-Identifier: Apache-2.0
"""What a policy node says of itself: the latched status and the diagnostics."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Header

from flashrt_ros.msg import RuntimeStatus
from flashrt_ros.ros import qos
from flashrt_ros.ros.diagnostics import DiagnosticsPublisher
from flashrt_ros.ros.policy_inputs import PolicyInputs
from flashrt_ros.ros.policy_parts import Parts


class PolicyReporter:
    """Publishes `~/status` and, while configured, `/diagnostics` of a policy node."""

    def __init__(self, node: LifecycleNode) -> None:
        self._node = node
        self._status = node.create_publisher(RuntimeStatus, "~/status", qos.LATCHED)
        self._diagnostics: DiagnosticsPublisher | None = None

    def open_diagnostics(self, hardware_id: str) -> None:
        """Begin with diagnostics: the node is configured."""
        self._diagnostics = DiagnosticsPublisher(self._node, hardware_id)

    def close_diagnostics(self) -> None:
        """End them. Idempotent."""
        if self._diagnostics is not None:
            self._diagnostics.destroy()
            self._diagnostics = None

    def publish_status(self, parts: Parts, last_error: str) -> None:
        """Publish the latched status. `last_error`: the node's own, a failed configure say."""
        now = self._node.get_clock().now().to_msg()
        message = RuntimeStatus(header=Header(stamp=now), last_error=last_error)
        if parts.engine is not None and parts.model is not None and parts.session is not None:
            status = parts.engine.status
            capsules = parts.session.capsules()
            message.state = status.state.value
            message.reason = status.reason
            message.model = parts.model.name
            message.fingerprint = parts.session.fingerprint.digest()
            message.session = parts.session.id
            message.seed = parts.session.seed
            message.boundary = status.boundary
            message.step = status.step
            message.epoch = status.epoch
            message.sequence = status.sequence
            message.instruction = status.instruction
            message.capsules = len(capsules)
            message.capsule_bytes = sum(info.own_bytes for info in capsules)
            message.last_error = status.last_error or last_error
        self._status.publish(message)

    def publish_diagnostics(self, parts: Parts) -> None:
        """Publish what an operator wants to see; nothing while unconfigured."""
        if parts.engine is None or parts.inputs is None or parts.outputs is None:
            return
        if self._diagnostics is None:
            return
        median, worst = parts.outputs.latency()
        capsules = parts.engine.session.capsules()
        engine = self._diagnostics.engine(
            parts.engine.status,
            {
                "inference p50 ms": f"{median * 1e3:.2f}",
                "inference p99 ms": f"{worst * 1e3:.2f}",
                "capsules": len(capsules),
                "capsule bytes": sum(info.own_bytes for info in capsules),
            },
        )
        self._diagnostics.publish(engine, self._inputs_diagnostics(parts.inputs))

    def _inputs_diagnostics(self, inputs: PolicyInputs) -> DiagnosticStatus:
        assert self._diagnostics is not None
        now_ns = self._node.get_clock().now().nanoseconds
        values: dict[str, object] = {
            f"{name} age s": f"{(now_ns - stamp_ns) * 1e-9:.3f}"
            for name, stamp_ns in inputs.assembler.newest_ns().items()
        }
        values |= {f"{name} received": count for name, count in inputs.received.items()}
        values |= {f"{name} refused": count for name, count in inputs.errors.items()}
        values["out of order or duplicate"] = inputs.assembler.dropped
        values["last refusal"] = inputs.last_error
        missing = inputs.assembler.missing()
        if missing:
            message = f"nothing yet from {', '.join(missing)}"
            return self._diagnostics.status("inputs", DiagnosticStatus.WARN, message, values)
        level = DiagnosticStatus.WARN if inputs.errors else DiagnosticStatus.OK
        return self._diagnostics.status("inputs", level, inputs.last_error or "complete", values)
