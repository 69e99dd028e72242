# SPDX-License-Identifier: Apache-2.0
"""Publishes diagnostics of a node (REP-107)."""

from __future__ import annotations

from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node
from std_msgs.msg import Header


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


def _text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
