# SPDX-License-Identifier: Apache-2.0
"""The allocation that holds every buffer of a live state, at addresses that never change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .buffers import BufferSpec, BufferTable
from .errors import InternalFault, InvalidArgument
from .layout import Geometry, Layout, RowLayout
from .memory import allocate, typed
from .rows import column_rows, merged_shapes


@dataclass(frozen=True)
class RowGroup:
    """The live rows of the append buffers with one counter: `planes`.

    A plane is uint8 [outer, capacity, inner]; see RowLayout. Where all lie in one block, `merged`
    are the same bytes in fewer planes, as `Slab.planes(merged=True)` has them; else it is empty.
    """

    layout: RowLayout
    planes: tuple[Tensor, ...]
    merged: tuple[Tensor, ...] = ()

    @property
    def counter(self) -> str:
        return self.layout.counter


class Arena:
    """Every buffer of one live state.

    All fixed buffers are one allocation, so that freezing them is one copy. `seal()` closes the
    set; the first access to a tensor lays the buffers out and has the same effect on `add`.

    one_block: the append buffers of one counter are one allocation, so that a GPU copies a range of
    rows of all layers at once. Default: off a CPU, where the compiler wants a storage a buffer.
    """

    def __init__(
        self,
        specs: Iterable[BufferSpec] = (),
        device: str | torch.device = "cpu",
        *,
        layout: Layout | str = Layout.SHAPE,
        one_block: bool | None = None,
    ) -> None:
        self.device = torch.device(device)
        self._one_block = self.device.type != "cpu" if one_block is None else one_block
        self.sealed = False
        self._layout = Layout(layout)
        self._specs = list(specs)
        self._laid: _Laid | None = None

    # -- before sealing

    def add(self, spec: BufferSpec) -> None:
        """Declare one more buffer. Raises InvalidArgument once the buffers are laid out."""
        if self._laid is not None:
            raise InvalidArgument(
                f"buffer {spec.name}: the set is closed (sealed: {self.sealed}, "
                f"{len(self.table)} buffers); declare every buffer before the first access"
            )
        self._specs.append(spec)

    def seal(self) -> BufferTable:
        """Close the set. From here on no buffer can be added, resized or moved."""
        self.sealed = True
        return self.table

    # -- tensors

    @property
    def table(self) -> BufferTable:
        return self.geometry.table

    def __getitem__(self, name: str) -> Tensor:
        """The buffer's tensor: always the same object at the same address."""
        tensors = self._state.tensors
        try:
            return tensors[name]
        except KeyError:
            raise InvalidArgument(
                f"no buffer {name!r} in this arena; it has {', '.join(tensors) or 'none'}"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._state.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.tensors)

    def moved(self) -> list[str]:
        """Names of buffers that are no longer where and what they were when laid out."""
        state = self._state
        return [
            spec.name
            for spec in self.table
            if state.tensors[spec.name].data_ptr() != state.addresses[spec.name]
            or tuple(state.tensors[spec.name].shape) != spec.shape
            or state.tensors[spec.name].dtype != spec.dtype
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
    def geometry(self) -> Geometry:
        return self._state.geometry

    @property
    def fixed(self) -> Tensor:
        """All fixed buffers, uint8 [fixed bytes], padding included."""
        return self._state.fixed

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        """Append buffers by row counter, ordered by the counter's name."""
        return self._state.groups

    def row_bytes(self, name: str, stop: int) -> Tensor:
        """A copy of an append buffer's rows 0 .. stop, uint8 [stop, bytes of a row]."""
        for group in self.groups:
            for column in group.layout.columns:
                if column.spec.name == name:
                    return column_rows(group.planes[column.plane][:, :stop], column)
        raise InvalidArgument(f"no append buffer {name!r} in this arena")

    def row_count(self, counter: str) -> int:
        """Valid rows by the counter buffer. Synchronises a CUDA device."""
        return int(self[counter].item())

    @property
    def _state(self) -> _Laid:
        if self._laid is None:
            geometry = Geometry.of(BufferTable.of(self._specs), self._layout)
            self._laid = _lay_out(geometry, self.device, self._one_block)
        return self._laid


@dataclass(frozen=True)
class _Laid:
    """The allocations and the views into them."""

    geometry: Geometry
    fixed: Tensor
    groups: tuple[RowGroup, ...]
    tensors: dict[str, Tensor]
    addresses: dict[str, int]


def _lay_out(geometry: Geometry, device: torch.device, one_block: bool) -> _Laid:
    tensors: dict[str, Tensor] = {}
    fixed = allocate(geometry.fixed_nbytes, device)
    for name, _ in geometry.offsets:
        spec = geometry.table[name]
        tensors[name] = typed(fixed[geometry.span(name)], spec.dtype).view(spec.shape)
    groups = []
    for layout in geometry.groups:
        group = _group(layout, device, one_block)
        planes = group.planes
        groups.append(group)
        for column in layout.columns:
            spec = column.spec
            plane, size = planes[column.plane], spec.dtype.itemsize
            values = typed(plane.view(-1), spec.dtype)
            if geometry.layout is Layout.SHAPE:
                tensors[spec.name] = values.view(spec.shape)
                continue
            rows = values.as_strided(
                (spec.capacity, *spec.row_shape),
                (plane.shape[2] // size, *_contiguous_strides(spec.row_shape)),
                column.offset // size,
            )
            tensors[spec.name] = rows.movedim(0, spec.row_dim)
    ordered = {spec.name: tensors[spec.name] for spec in geometry.table}
    addresses = {name: tensor.data_ptr() for name, tensor in ordered.items()}
    return _Laid(geometry, fixed, tuple(groups), ordered, addresses)


def _group(layout: RowLayout, device: torch.device, one_block: bool) -> RowGroup:
    if not one_block:
        return RowGroup(
            layout,
            tuple(
                allocate(outer * layout.capacity * inner, device).view(outer, -1, inner)
                for outer, inner in layout.planes
            ),
        )
    block = allocate(layout.capacity * layout.row_nbytes, device)
    planes, merged = (
        tuple(_cut(block, shapes, layout.capacity))
        for shapes in (layout.planes, merged_shapes(layout.planes))
    )
    return RowGroup(layout, planes, merged)


def _cut(block: Tensor, shapes: Sequence[tuple[int, int]], capacity: int) -> Iterator[Tensor]:
    """Planes [outer, capacity, inner] that lie back to back in a block."""
    offset = 0
    for outer, inner in shapes:
        size = outer * capacity * inner
        yield block[offset : offset + size].view(outer, capacity, inner)
        offset += size


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
