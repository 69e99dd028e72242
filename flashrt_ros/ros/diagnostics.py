# SPDX-License-Identifier: Apache-2.0
"""Publishes diagnostics of a node (REP-107)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node
from std_msgs.msg import Header

from flashrt_ros.ros.meters import Samples
from flashrt_ros.runtime import Store


class DiagnosticsPublisher:
    """Publishes DiagnosticArray messages of a node on /diagnostics."""

    def __init__(self, node: Node, hardware_id: str) -> None:
        self._node = node
        self._hardware_id = hardware_id
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)

    def destroy(self) -> None:
        """Remove the publisher from the node."""
        self._node.destroy_publisher(self._publisher)

    def publish(self, *statuses: DiagnosticStatus) -> None:
        """Publish statuses made by `status`."""
        stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(DiagnosticArray(header=Header(stamp=stamp), status=list(statuses)))

    def status(
        self, part: str, level: bytes, message: str, values: Mapping[str, object]
    ) -> DiagnosticStatus:
        """One status of a part of the node."""
        return DiagnosticStatus(
            level=level,
            name=f"{self._node.get_fully_qualified_name()}: {part}",
            message=message,
            hardware_id=self._hardware_id,
            values=[KeyValue(key=key, value=_text(value)) for key, value in values.items()],
        )

    def capsules(self, store: Store) -> DiagnosticStatus:
        """What each tier of a store holds, and what was moved to make room."""
        values: dict[str, object] = {}
        full = []
        for row in store.statistics():
            values[f"{row.tier} capsules"] = row.capsules
            values[f"{row.tier} bytes"] = row.used_bytes
            values[f"{row.tier} budget bytes"] = "none" if row.budget is None else row.budget
            if row.budget and row.used_bytes > 0.9 * row.budget:
                full.append(str(row.tier))
        counters = store.counters
        values |= {
            "demotions": counters.demotions,
            "evictions": counters.evictions,
            "loads from disk": counters.loads,
            "failed moves": counters.failures,
            "files refused": len(store.refused),
        }
        level, message = DiagnosticStatus.OK, "within budget"
        if counters.failures:
            level, message = DiagnosticStatus.WARN, f"{counters.failures} moves of capsules failed"
        elif full:
            level, message = DiagnosticStatus.WARN, f"nearly full: {', '.join(full)}"
        return self.status("capsules", level, message, values)


def percentiles(name: str, samples: Samples) -> dict[str, object]:
    """p50 and p99 in ms, or `-` before anything was measured."""
    return {
        f"{name} {percent} ms": "-" if math.isnan(value) else value * 1e3
        for percent, value in zip(("p50", "p99"), samples.percentiles(), strict=True)
    }


def _text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
