# SPDX-License-Identifier: Apache-2.0
"""`policy_container`: several policy nodes in one process.

rclpy has no component container; this one hosts nodes of the kinds that this package has, each
with an executor and a thread of its own, so that one that is configured, which takes seconds, holds
up no callback of another. They share the interpreter, torch and its threads, and the memory of the
process: two policies that must not slow each other down belong into two processes.

    ros2 run flashrt_ros policy_container --ros-args --params-file robots.yaml \\
        -p policies:="[left/policy_node, right/policy_node]"
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.node import Node

from flashrt_ros.ros.parameters import Parameter, read
from flashrt_ros.ros.policy_node import PolicyNode
from flashrt_ros.ros.process import leave, run_nodes

PARAMETERS = (
    Parameter(
        "policies",
        ["policy_node"],
        "Names of the policy nodes to host, relative to the container's namespace or absolute.",
        read_only=True,
    ),
    Parameter("autostart", False, "Configure and activate them at the start.", read_only=True),
)
_NAME = re.compile(r"/?([A-Za-z_]\w*/)*[A-Za-z_]\w*")


class PolicyContainer(Node):
    """Says which nodes the process hosts, in the read-only parameter `policies`."""

    def __init__(self, **options: Any) -> None:
        super().__init__("policy_container", **options)
        for parameter in PARAMETERS:
            parameter.declare(self)

    def names(self) -> list[tuple[str, str]]:
        """(namespace, name) of each node to host.

        Raises:
            ValueError: none is named, one is named twice, or a name is no node name.
        """
        given: Sequence[str] = read(self, "policies")
        found = []
        for text in given:
            if not _NAME.fullmatch(text):
                raise ValueError(f"policies has '{text}', expected a node name such as 'left/arm'")
            path = text if text.startswith("/") else f"{self.get_namespace().rstrip('/')}/{text}"
            namespace, _, name = path.rpartition("/")
            found.append((namespace or "/", name))
        if not found or len(set(found)) < len(found):
            names = ", ".join(given) or "nothing"
            raise ValueError(f"policies names {names}, expected one or more different names")
        return found


def hosted(namespace: str, name: str) -> PolicyNode:
    """A policy node of this name, whatever the process's own arguments rename.

    `__ns` and `__node` of the command line are the container's, and would go for every node.
    """
    own = ["--ros-args", "-r", f"__ns:={namespace}", "-r", f"__node:={name}"]
    return PolicyNode(name, namespace=namespace, cli_args=own)


def bring_up_soon(node: PolicyNode) -> None:
    """Configure and activate, once, on the thread that spins the node."""

    def bring_up() -> None:
        timer.cancel()
        if node.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            node.trigger_activate()

    timer = node.create_timer(0.0, bring_up, clock=Clock(clock_type=ClockType.STEADY_TIME))


def main(args: list[str] | None = None) -> int:
    """Entry point of the executable `policy_container`."""

    def make() -> list[Node]:
        container = PolicyContainer()
        policies = [hosted(namespace, name) for namespace, name in container.names()]
        if read(container, "autostart"):
            for policy in policies:
                bring_up_soon(policy)
        return [container, *policies]

    return run_nodes(make, args)


if __name__ == "__main__":
    leave(main())
