# SPDX-License-Identifier: Apache-2.0
"""Parameters with descriptors: declared, ranged, and read into one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node


@dataclass(frozen=True)
class Parameter:
    """One parameter: its default value decides its type."""

    name: str
    default: Any
    description: str
    low: float | None = None
    high: float | None = None
    constraints: str = ""
    read_only: bool = False

    def declare(self, node: Node) -> None:
        """Declare it on a node, unless it is declared already (a second configure)."""
        if not node.has_parameter(self.name):
            node.declare_parameter(self.name, self.default, self._descriptor())

    def _descriptor(self) -> ParameterDescriptor:
        descriptor = ParameterDescriptor(
            description=self.description,
            additional_constraints=self.constraints,
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


def read(node: Node, name: str) -> Any:
    """The value of a declared parameter."""
    return node.get_parameter(name).value
