# SPDX-License-Identifier: Apache-2.0
"""The robot's description, as robot_state_publisher latches it: a URDF that gives joint limits."""

from __future__ import annotations

from rclpy.node import Node
from std_msgs.msg import String

from flashrt_ros.ros import qos


class RobotDescriptionInput:
    """Keeps the newest description until one is taken; then that one counts.

    Limits must not change under a moving arm, so another description that comes later is refused
    with a warning; the next configure takes it up.

    Args:
        node: listens; its namespace and remappings count.
        topic: of std_msgs/String, latched.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._log = node.get_logger()
        self._node = node
        self._newest = ""
        self._taken = ""
        self._subscription = node.create_subscription(String, topic, self._receive, qos.LATCHED)

    def destroy(self) -> None:
        """Hear nothing any more."""
        self._node.destroy_subscription(self._subscription)

    def newest(self) -> str:
        """The URDF's XML: the one that was taken, else the newest.

        Raises:
            RuntimeError: none has come yet.
        """
        text = self._taken or self._newest
        if not text:
            raise RuntimeError(
                f"no robot description has come on '{self._subscription.topic_name}' yet, so the "
                "joint limits are not known: start robot_state_publisher, then activate again"
            )
        return text

    def take(self, text: str) -> None:
        """This one counts from now on."""
        self._taken = text

    def _receive(self, message: String) -> None:
        self._newest = message.data
        if self._taken and message.data != self._taken:
            self._log.warning(
                f"another robot description came on '{self._subscription.topic_name}': the limits "
                "stay as they are until the node is configured again",
                throttle_duration_sec=1.0,
            )
