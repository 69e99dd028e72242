# SPDX-License-Identifier: Apache-2.0
"""A policy node's latched status, as a planner sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from flashrt_ros.msg import RuntimeStatus


class StatusView:
    """The newest status of a node.

    Args:
        node: spun by another thread.
        topic: of the status.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._changed = threading.Condition()
        self._newest: RuntimeStatus | None = None
        latched = QoSProfile(
            depth=1,
            reliability=ReliabilityPolicy.RELIABLE,
            durability=DurabilityPolicy.TRANSIENT_LOCAL,
        )
        self._subscription = node.create_subscription(
            RuntimeStatus, topic, self._on_status, latched
        )

    @property
    def newest(self) -> RuntimeStatus | None:
        """The newest status, None before the first."""
        return self._newest

    def wait(self, condition: Callable[[RuntimeStatus], bool], timeout: float) -> RuntimeStatus:
        """Wait until a status fulfils a condition.

        Raises:
            TimeoutError: none did in time; the message has the last one.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._newest is not None and condition(self._newest), timeout
            ):
                raise TimeoutError(f"no such status within {timeout} s; last: {self._newest}")
            assert self._newest is not None
            return self._newest

    def close(self) -> None:
        """Remove the subscription from the node."""
        self._node.destroy_subscription(self._subscription)

    def _on_status(self, message: RuntimeStatus) -> None:
        with self._changed:
            self._newest = message
            self._changed.notify_all()
