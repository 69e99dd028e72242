# SPDX-License-Identifier: Apache-2.0
"""What an operator sees of a policy node on /diagnostics; docs/operation.md lists the keys."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node

from flashrt_ros.policies import EngineState, EngineStatus
from flashrt_ros.policies.stream import CommandStream
from flashrt_ros.ros.diagnostics import DiagnosticsPublisher, percentiles
from flashrt_ros.ros.meters import Meters, Rates
from flashrt_ros.ros.policy_inputs import PolicyInputs
from flashrt_ros.runtime import Store

_OK, _WARN, _ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
_LEVELS = {
    EngineState.INACTIVE: _OK,
    EngineState.RUNNING: _OK,
    EngineState.WAITING: _WARN,
    EngineState.HOLDING: _WARN,
    EngineState.NEEDS_RESET: _ERROR,
}


class PolicyDiagnostics:
    """Four statuses of a configured policy node: policy, timing, inputs, capsules.

    Args:
        node: for its name and clock.
        hardware_id: what the statuses belong to: the policy's name.
        meters: measured what was sent.
        inputs: counts what was received.
        store: has the capsules.
        stream: sends commands at a rate; None: no output needs it.
    """

    def __init__(
        self,
        node: Node,
        hardware_id: str,
        meters: Meters,
        inputs: PolicyInputs,
        store: Store,
        stream: CommandStream | None = None,
    ) -> None:
        self._node = node
        self._meters = meters
        self._inputs = inputs
        self._store = store
        self._stream = stream
        self._rates = Rates()
        self._misses = 0
        self._publisher = DiagnosticsPublisher(node, hardware_id)

    def destroy(self) -> None:
        """Remove the publisher from the node."""
        self._publisher.destroy()

    def publish(self, status: EngineStatus) -> None:
        """Publish all of them; called once a period."""
        meters = self._meters
        sent = {"chunk": meters.chunks, "command": meters.commands, "boundary": meters.boundaries}
        rates = self._rates.update({**sent, **self._inputs.received})
        self._publisher.publish(
            self._policy(status),
            self._timing(status, {name: rates[name] for name in sent}),
            self._received(rates),
            self._publisher.capsules(self._store),
        )

    def _policy(self, status: EngineStatus) -> DiagnosticStatus:
        values = {
            "state": status.state.name,
            "boundary": status.boundary,
            "step": status.step,
            "epoch": status.epoch,
            "sequence": status.sequence,
            "instruction": status.instruction,
            "execution": status.execution,
            "run": status.run,
            "emergency stop": status.emergency_stop,
            "ticks": status.ticks,
            "faults": status.faults,
            "deadline misses": status.deadline_misses,
            "limit breaches": status.limit_breaches,
            "last limit breach": status.last_breach,
            "last error": status.last_error,
        }
        message = status.reason or status.state.name.lower()
        return self._publisher.status("policy", _LEVELS[status.state], message, values)

    def _timing(self, status: EngineStatus, rates: dict[str, float]) -> DiagnosticStatus:
        meters = self._meters
        values: dict[str, object] = {f"{name} rate Hz": rate for name, rate in rates.items()}
        for name, samples in (
            ("inference", meters.inference),
            ("replay", meters.replay),
            ("tick to publish", meters.tick_to_publish),
            ("observation to command", meters.observation_to_command),
        ):
            values |= percentiles(name, samples)
        if self._stream is not None:
            counts = self._stream.counts
            values["streamed commands"] = counts.sent
            values["streamed late"] = counts.late
            values["streamed skipped"] = counts.skipped
            values["streamed failed"] = counts.failed
            values["streamed latest s"] = counts.worst_s
        misses = status.deadline_misses
        values["deadline misses"] = misses
        fresh, self._misses = misses - self._misses, misses
        if fresh > 0:
            message = f"{fresh} deadlines missed since the last message"
            return self._publisher.status("timing", _WARN, message, values)
        return self._publisher.status("timing", _OK, "in time", values)

    def _received(self, rates: dict[str, float]) -> DiagnosticStatus:
        inputs = self._inputs
        now_ns = self._node.get_clock().now().nanoseconds
        values: dict[str, object] = {}
        for name, stamp_ns in inputs.assembler.newest_ns().items():
            values[f"{name} age s"] = (now_ns - stamp_ns) * 1e-9
        for name, count in inputs.received.items():
            values[f"{name} rate Hz"] = rates.get(name, 0.0)
            values[f"{name} received"] = count
            values[f"{name} refused"] = inputs.errors.get(name, 0)
        for report in inputs.assembler.reports(now_ns):
            if report.required_rate is not None:
                values[f"{report.name} required rate Hz"] = report.required_rate
            if not report.required:
                values[f"{report.name} left out"] = report.left_out
        values["out of order or duplicate"] = inputs.assembler.dropped
        values["last refusal"] = inputs.last_error
        if problem := inputs.problem(now_ns):
            return self._publisher.status("inputs", _WARN, problem, values)
        level = _WARN if inputs.errors else _OK
        return self._publisher.status("inputs", level, inputs.last_error or "complete", values)
