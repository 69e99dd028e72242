# SPDX-License-Identifier: Apache-2.0
"""The allocation that holds every buffer of a live state, at addresses that never change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from .buffers import BufferSpec, BufferTable, Kind
from .errors import InternalFault, InvalidArgument
from .memory import allocate

_ALIGN = 256  # bytes; what CUDA's allocator gives and more than any vector load needs


class Layout(str, Enum):
    """How append buffers that share a row counter lie in memory.

    Rows are outermost either way, so a range of rows of a buffer is one contiguous copy.
    """

    BUFFER = "buffer"  # a block for each buffer: attention walks one buffer's rows back to back
    ROW = "row"  # one block, row after row through all buffers: a range of rows is one copy


@dataclass(frozen=True)
class Column:
    """Where a buffer's rows lie in its group: bytes `offset .. offset + nbytes` of a plane's row."""

    spec: BufferSpec
    plane: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class RowGroup:
    """Append buffers with one row counter.

    `planes` are uint8 [capacity, width]; a range of rows of the group is one copy a plane.
    """

    counter: str
    capacity: int
    columns: tuple[Column, ...]
    planes: tuple[Tensor, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(plane.shape[1] for plane in self.planes)

    @property
    def row_nbytes(self) -> int:
        return sum(self.widths)


class Arena:
    """Every buffer of one live state.

    All fixed buffers are one allocation, so that freezing them is one copy. `seal()` closes the
    set; the first access to a tensor lays the buffers out and has the same effect on `add`.
    """

    def __init__(
        self,
        specs: Iterable[BufferSpec] = (),
        device: str | torch.device = "cpu",
        *,
        layout: Layout | str = Layout.BUFFER,
    ) -> None:
        self.device = torch.device(device)
        self.layout = Layout(layout)
        self.sealed = False
        self._specs = list(specs)
        self._table: BufferTable | None = None
        self._fixed = torch.empty(0, dtype=torch.uint8)
        self._spans: dict[str, tuple[int, int]] = {}
        self._groups: tuple[RowGroup, ...] = ()
        self._tensors: dict[str, Tensor] = {}
        self._addresses: dict[str, int] = {}

    # -- before sealing

    def add(self, spec: BufferSpec) -> None:
        """Declare one more buffer. Raises InvalidArgument once the buffers are laid out."""
        if self._table is not None:
            raise InvalidArgument(
                f"buffer {spec.name}: the set is closed (sealed={self.sealed}, "
                f"{len(self._table)} buffers); declare every buffer before the first access"
            )
        self._specs.append(spec)

    def seal(self) -> BufferTable:
        """Close the set. From here on no buffer can be added, resized or moved."""
        table = self._laid_out()
        self.sealed = True
        return table

    # -- tensors

    @property
    def table(self) -> BufferTable:
        return self._laid_out()

    def __getitem__(self, name: str) -> Tensor:
        """The buffer's tensor: always the same object at the same address."""
        self._laid_out()
        try:
            return self._tensors[name]
        except KeyError:
            raise InvalidArgument(
                f"no buffer {name!r} in this arena; it has {', '.join(self._tensors) or 'none'}"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._laid_out_tensors()

    def __iter__(self) -> Iterator[str]:
        return iter(self._laid_out_tensors())

    def moved(self) -> list[str]:
        """Names of buffers that are no longer where and what they were when laid out."""
        self._laid_out()
        return [
            spec.name
            for spec in self.table
            if self._tensors[spec.name].data_ptr() != self._addresses[spec.name]
            or tuple(self._tensors[spec.name].shape) != spec.shape
            or self._tensors[spec.name].dtype != spec.dtype
        ]

    def check_unmoved(self) -> None:
        """Raise InternalFault when a buffer was resized, replaced or moved."""
        moved = self.moved()
        if moved:
            raise InternalFault(
                f"buffers moved or changed shape after they were laid out: {', '.join(moved)}; "
                "write into a buffer, never replace its storage"
            )

    # -- bytes, for snapshots and restores

    @property
    def fixed(self) -> Tensor:
        """All fixed buffers, uint8 [fixed bytes], padding included."""
        self._laid_out()
        return self._fixed

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        """Append buffers by row counter, ordered by the counter's name."""
        self._laid_out()
        return self._groups

    def span(self, name: str) -> tuple[int, int]:
        """(offset, bytes) of a fixed buffer in `fixed`."""
        self._laid_out()
        return self._spans[name]

    def row_bytes(self, name: str) -> Tensor:
        """An append buffer's rows, uint8 [capacity, bytes of a row]."""
        for group in self.groups:
            for column in group.columns:
                if column.spec.name == name:
                    plane = group.planes[column.plane]
                    return plane[:, column.offset : column.offset + column.nbytes]
        raise InvalidArgument(f"no append buffer {name!r} in this arena")

    def row_count(self, counter: str) -> int:
        """Valid rows by the counter buffer. Synchronises a CUDA device."""
        return int(self[counter].item())

    # -- layout

    def _laid_out_tensors(self) -> dict[str, Tensor]:
        self._laid_out()
        return self._tensors

    def _laid_out(self) -> BufferTable:
        if self._table is None:
            table = BufferTable.of(self._specs)
            self._lay_fixed(table)
            self._groups = tuple(self._lay_group(table, name) for name in table.counters())
            self._tensors = {spec.name: self._tensors[spec.name] for spec in table}
            self._addresses = {name: t.data_ptr() for name, t in self._tensors.items()}
            self._table = table
        return self._table

    def _lay_fixed(self, table: BufferTable) -> None:
        end = 0
        for spec in table:
            if spec.kind is Kind.FIXED:
                self._spans[spec.name] = (end, spec.nbytes)
                end += -(-spec.nbytes // _ALIGN) * _ALIGN
        self._fixed = allocate(end, self.device)
        for spec in table:
            if spec.kind is Kind.FIXED:
                start, size = self._spans[spec.name]
                flat = self._fixed[start : start + size].view(spec.dtype)
                self._tensors[spec.name] = flat.view(spec.shape)

    def _lay_group(self, table: BufferTable, counter: str) -> RowGroup:
        specs = [s for s in table if s.kind is Kind.APPEND and s.row_counter == counter]
        capacity = specs[0].capacity
        columns, widths = [], []
        if self.layout is Layout.BUFFER:
            for plane, spec in enumerate(specs):
                columns.append(Column(spec, plane, 0, spec.row_nbytes))
                widths.append(spec.row_nbytes)
        else:
            width = 0
            for spec in specs:
                columns.append(Column(spec, 0, width, spec.row_nbytes))
                width += -(-spec.row_nbytes // _ALIGN) * _ALIGN
            widths.append(width)
        planes = tuple(
            allocate(capacity * width, self.device).view(capacity, width) for width in widths
        )
        for column in columns:
            spec = column.spec
            rows = planes[column.plane][:, column.offset : column.offset + column.nbytes]
            shaped = rows.view(spec.dtype).unflatten(1, spec.row_shape or (1,))
            if not spec.row_shape:
                shaped = shaped.squeeze(1)
            self._tensors[spec.name] = shaped.movedim(0, spec.row_dim)
        return RowGroup(counter, capacity, tuple(columns), planes)
