# SPDX-License-Identifier: Apache-2.0
"""Where each buffer lies in the bytes of an arena and of a capsule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .buffers import BufferSpec, BufferTable, Kind

_ALIGN = 256  # bytes; what CUDA's allocator gives and more than any vector load needs


class Layout(str, Enum):
    """How append buffers that share a row counter lie in memory.

    Rows are outermost either way, so a range of rows of a buffer is one contiguous copy.
    """

    BUFFER = "buffer"  # a block for each buffer: attention walks one buffer's rows back to back
    ROW = "row"  # one block, row after row through all buffers: a range of rows is one copy


@dataclass(frozen=True)
class Column:
    """Where a buffer's rows lie: bytes offset .. offset + nbytes of each row of a plane."""

    spec: BufferSpec
    plane: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class RowLayout:
    """Append buffers with one row counter. A plane is uint8 [capacity, width]."""

    counter: str
    capacity: int
    columns: tuple[Column, ...]
    widths: tuple[int, ...]

    @property
    def row_nbytes(self) -> int:
        return sum(self.widths)


@dataclass(frozen=True)
class Geometry:
    """The layout of a buffer table: equal geometries have interchangeable bytes."""

    table: BufferTable
    layout: Layout
    fixed_nbytes: int
    offsets: tuple[tuple[str, int], ...]  # of the fixed buffers, by name
    groups: tuple[RowLayout, ...]  # by the counter's name

    @staticmethod
    def of(table: BufferTable, layout: Layout = Layout.BUFFER) -> Geometry:
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
    columns, widths = [], []
    if layout is Layout.BUFFER:
        for plane, spec in enumerate(specs):
            columns.append(Column(spec, plane, 0, spec.row_nbytes))
            widths.append(spec.row_nbytes)
    else:
        width = 0
        for spec in specs:
            columns.append(Column(spec, 0, width, spec.row_nbytes))
            width += _aligned(spec.row_nbytes)
        widths.append(width)
    return RowLayout(counter, specs[0].capacity, tuple(columns), tuple(widths))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN
