# SPDX-License-Identifier: Apache-2.0
"""Parameters with descriptors: declared, ranged, and changed only when a change can take effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node

FIXED = "is fixed while the node is configured: deactivate and cleanup first, set it, configure"


@dataclass(frozen=True)
class Parameter:
    """One parameter: its default value decides its type.

    Attributes:
        choices: the values that it may have; empty: any in its range.
        live: it may change while the node is configured, and takes effect at once. Others may
            change only while it is not.
        read_only: it is read once, when the node is made.
    """

    name: str
    default: Any
    description: str
    low: float | None = None
    high: float | None = None
    constraints: str = ""
    read_only: bool = False
    choices: tuple[str, ...] = ()
    live: bool = False

    def declare(self, node: Node) -> None:
        """Declare it on a node, unless it is declared already (a second configure)."""
        if not node.has_parameter(self.name):
            node.declare_parameter(self.name, self.default, self.descriptor())

    def problem(self, value: Any) -> str:
        """What is wrong with a value that its type and range allow; empty for a good one."""
        if self.choices and value not in self.choices:
            return f"{self.name} is '{value}', expected one of {', '.join(self.choices)}"
        return ""

    def descriptor(self) -> ParameterDescriptor:
        """What `ros2 param describe` tells."""
        constraints = [self.constraints] if self.constraints else []
        if self.choices:
            constraints.append(f"One of {', '.join(self.choices)}.")
        if not self.live and not self.read_only:
            constraints.append("Fixed while the node is configured.")
        descriptor = ParameterDescriptor(
            description=self.description,
            additional_constraints=" ".join(constraints),
            read_only=self.read_only,
        )
        if self.low is None or self.high is None:
            return descriptor
        if isinstance(self.default, int):
            descriptor.integer_range = [
                IntegerRange(from_value=int(self.low), to_value=int(self.high), step=0)
            ]
        else:
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(self.low), to_value=float(self.high), step=0.0)
            ]
        return descriptor


class ParameterGuard:
    """Declares the parameters of a node, and decides which changes are taken.

    A change that could not take effect is refused with the reason, never taken and ignored. A
    value that stays as it is is no change: loading a dump of the node's own parameters succeeds.

    Args:
        node: the node.
        parameters: what it has.
        is_configured: whether the node has read those that are not `live`.
        apply: called with the new values of live parameters, after they were set while the node
            is configured.
    """

    def __init__(
        self,
        node: Node,
        parameters: Sequence[Parameter],
        is_configured: Callable[[], bool],
        apply: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._node = node
        self._known = {parameter.name: parameter for parameter in parameters}
        self._is_configured = is_configured
        self._apply = apply
        node.add_on_set_parameters_callback(self._check)
        for parameter in parameters:
            parameter.declare(node)
        node.add_post_set_parameters_callback(self._take)

    def _check(self, changes: Sequence[Any]) -> SetParametersResult:
        problems = [problem for change in changes if (problem := self._problem(change))]
        return SetParametersResult(successful=not problems, reason="; ".join(problems))

    def _problem(self, change: Any) -> str:
        known = self._known.get(change.name)
        if known is None:
            return ""
        if problem := known.problem(change.value):
            return problem
        declared = self._node.has_parameter(change.name)
        if not declared or read(self._node, change.name) == change.value:
            return ""
        if self._is_configured() and not known.live:
            return f"{change.name} {FIXED}"
        return ""

    def _take(self, changes: Sequence[Any]) -> None:
        live = {
            change.name: change.value
            for change in changes
            if change.name in self._known and self._known[change.name].live
        }
        if live and self._is_configured():
            self._apply(live)


def read(node: Node, name: str) -> Any:
    """The value of a declared parameter."""
    return node.get_parameter(name).value
