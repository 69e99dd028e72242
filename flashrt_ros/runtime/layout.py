# SPDX-License-Identifier: Apache-2.0
"""Where each buffer lies in the bytes of an arena and of a capsule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from .buffers import BufferSpec, BufferTable, Kind

_ALIGN = 256  # bytes; what CUDA's allocator gives and more than any vector load needs


class Layout(str, Enum):
    """How append buffers that share a row counter lie in memory.

    SHAPE: each as its shape says. A cache of shape [heads, rows, width] has a head's keys back to
    back, which attention reads up to three times faster than rows outermost; a range of rows is
    one copy for each head.
    ROW: one block, row after row through all buffers. A range of rows is one copy for everything,
    and attention strides over the rows of all other layers. (Both measured: docs/benchmarks.md.)
    """

    SHAPE = "shape"
    ROW = "row"


@dataclass(frozen=True)
class Column:
    """Where a buffer's rows lie: bytes offset .. offset + nbytes of a plane's last dimension."""

    spec: BufferSpec
    plane: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class RowLayout:
    """Append buffers with one row counter. A plane is uint8 [outer, rows, inner]."""

    counter: str
    capacity: int
    columns: tuple[Column, ...]
    planes: tuple[tuple[int, int], ...]  # (outer, inner) of each

    @property
    def row_nbytes(self) -> int:
        return sum(outer * inner for outer, inner in self.planes)


@dataclass(frozen=True)
class Geometry:
    """The layout of a buffer table: equal geometries have interchangeable bytes."""

    table: BufferTable
    layout: Layout
    fixed_nbytes: int
    offsets: tuple[tuple[str, int], ...]  # of the fixed buffers, by name
    groups: tuple[RowLayout, ...]  # by the counter's name

    @staticmethod
    def of(table: BufferTable, layout: Layout = Layout.SHAPE) -> Geometry:
        offsets, end = [], 0
        for spec in table:
            if spec.kind is Kind.FIXED:
                offsets.append((spec.name, end))
                end += _aligned(spec.nbytes)
        groups = tuple(_group(table, counter, layout) for counter in table.counters())
        return Geometry(table, layout, end, tuple(offsets), groups)

    def span(self, name: str) -> slice:
        """Bytes of a fixed buffer within all fixed bytes."""
        start = dict(self.offsets)[name]
        return slice(start, start + self.table[name].nbytes)


def _group(table: BufferTable, counter: str, layout: Layout) -> RowLayout:
    specs = [s for s in table if s.kind is Kind.APPEND and s.row_counter == counter]
    columns, planes = [], []
    if layout is Layout.SHAPE:
        for plane, spec in enumerate(specs):
            outer = math.prod(spec.shape[: spec.row_dim])
            columns.append(Column(spec, plane, 0, spec.row_nbytes // outer))
            planes.append((outer, spec.row_nbytes // outer))
    else:
        inner = 0
        for spec in specs:
            columns.append(Column(spec, 0, inner, spec.row_nbytes))
            inner += _aligned(spec.row_nbytes)
        planes.append((1, inner))
    return RowLayout(counter, specs[0].capacity, tuple(columns), tuple(planes))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN
