# SPDX-License-Identifier: Apache-2.0
"""Append rows shared between capsules.

Rows live in slabs. A slab holds consecutive rows of one lineage and hangs on the slab that has the
rows before it, so capsules of one lineage are a path of slabs, and branches are a tree:

    slab A rows 0..128 ── slab B rows 128..192 ── slab D rows 192..256
                      └── slab C rows  96..224      (a branch that left A at row 96)

`RowsRef(slab, stop)` is rows 0 .. stop of the path that ends in `slab`. A slab can be filled
further as long as nobody else did so first; rows that a reference covers are never written again.
Counts of holders are kept by hand, under the store's lock: memory is given back at a known moment
and never while a copy reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from .layout import Column
from .memory import Block, Pool

# Slabs of a lineage that grows step by step double up to this size, so that a snapshot each tick
# does not make a chain of crumbs; a branch starts small again, so that many branches stay cheap.
_SLAB_BYTES = 1 << 20


@dataclass(frozen=True)
class RowsRef:
    """Rows 0 .. stop of a lineage; `slab` holds the last of them (slab.start < stop)."""

    slab: Slab
    stop: int


@dataclass(eq=False)
class Slab:
    """Rows start .. start + capacity of one row group on one lineage."""

    parent: RowsRef | None
    start: int
    capacity: int
    shapes: tuple[tuple[int, int], ...]  # (outer, inner) of each plane, see RowLayout
    block: Block
    filled: int  # first row that nobody has taken
    holders: int = 0  # capsules and copies that end here, and held slabs that hang on this one
    guests: int = 0  # of these the copies under way
    tips: dict[str, int] = field(default_factory=dict)  # capsule id -> stop, capsules ending here
    children: set[Slab] = field(default_factory=set)  # held slabs that hang on this one

    @property
    def dead(self) -> bool:
        """The memory was given back; live rows that came from here must be stored again."""
        return self.holders == 0

    def planes(self, start: int, stop: int, *, merged: bool = False) -> list[Tensor]:
        """Rows start .. stop, one uint8 [outer, stop - start, inner] a plane.

        merged: neighbours of one inner size as one, see `merged_shapes`.
        """
        parts, offset = [], 0
        for outer, inner in merged_shapes(self.shapes) if merged else self.shapes:
            size = outer * self.capacity * inner
            plane = self.block.data[offset : offset + size].view(outer, self.capacity, inner)
            parts.append(plane[:, start - self.start : stop - self.start])
            offset += size
        return parts

    @property
    def row_nbytes(self) -> int:
        return sum(outer * inner for outer, inner in self.shapes)

    def close(self) -> None:
        """Take no more rows: the memory is about to be copied elsewhere."""
        self.filled = self.start + self.capacity

    def users(self) -> Iterator[str]:
        """Ids of the capsules whose path leads through here."""
        waiting = [self]
        while waiting:
            slab = waiting.pop()
            yield from slab.tips
            waiting.extend(slab.children)

    def being_filled(self) -> bool:
        """A capsule that is not visible yet has this slab on its path."""
        waiting = [self]
        while waiting:
            slab = waiting.pop()
            if slab.guests:
                return True
            waiting.extend(slab.children)
        return False

    def shared_stop(self, capsule_id: str, stop: int, child: Slab | None) -> int:
        """Rows below this, at most `stop`, others hold too; `child` is this capsule's way on."""
        shared = self.start
        for other in self.children:
            if other is not child and other.parent is not None:
                shared = max(shared, other.parent.stop)
        for owner, end in reversed(self.tips.items()):  # the newest reach farthest
            if owner != capsule_id and end > shared:
                shared = end
                if shared >= stop:
                    break
        return min(shared, stop)


@dataclass(frozen=True)
class Span:
    """Rows start .. stop, all in one slab."""

    slab: Slab
    start: int
    stop: int


def merged_shapes(shapes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(outer, inner) of planes that lie back to back, neighbours of one inner size as one plane:
    every layer's keys and values of a model are so a single strided copy."""
    merged: list[tuple[int, int]] = []
    for outer, inner in shapes:
        if merged and merged[-1][1] == inner:
            merged[-1] = (merged[-1][0] + outer, inner)
        else:
            merged.append((outer, inner))
    return merged


def column_rows(plane: Tensor, column: Column) -> Tensor:
    """A buffer's rows out of a plane: uint8 [outer, n, inner] to contiguous [n, bytes of a row]."""
    cut = plane[:, :, column.offset : column.offset + column.nbytes]
    return cut.transpose(0, 1).reshape(cut.shape[1], column.spec.row_nbytes).contiguous()


def set_column_rows(plane: Tensor, column: Column, rows: Tensor) -> None:
    """Inverse of column_rows: write uint8 [n, bytes of a row] into a plane of n rows."""
    shaped = rows.view(rows.shape[0], plane.shape[0], column.nbytes).transpose(0, 1)
    plane[:, :, column.offset : column.offset + column.nbytes].copy_(shaped)


def common_rows(a: RowsRef | None, b: RowsRef | None) -> int:
    """How many leading rows two references share. Costs the distance to where they part."""
    while a is not None and b is not None:
        if a.slab is b.slab:
            return min(a.stop, b.stop)
        # a slab starts after every slab that it hangs on: the later one cannot be common
        if a.slab.start >= b.slab.start:
            a = a.slab.parent
        else:
            b = b.slab.parent
    return 0


def truncated(ref: RowsRef | None, rows: int) -> RowsRef | None:
    """The reference to the leading `rows` rows (or fewer) of the same path."""
    while ref is not None and ref.slab.start >= rows:
        ref = ref.slab.parent
    if ref is None or ref.stop <= rows:
        return ref
    return RowsRef(ref.slab, rows)


def alive(ref: RowsRef | None) -> RowsRef | None:
    """The longest leading part whose memory is still there."""
    while ref is not None and ref.slab.dead:
        ref = ref.slab.parent
    return ref


def stop_of(ref: RowsRef | None) -> int:
    return 0 if ref is None else ref.stop


def spans(ref: RowsRef | None, start: int = 0) -> list[Span]:
    """Rows start .. ref.stop, slab by slab, in order."""
    parts: list[Span] = []
    while ref is not None and ref.stop > start:
        parts.append(Span(ref.slab, max(ref.slab.start, start), ref.stop))
        ref = ref.slab.parent
    parts.reverse()
    return parts


def extended(
    ref: RowsRef | None, rows: int, shapes: tuple[tuple[int, int], ...], pool: Pool
) -> tuple[RowsRef | None, list[Span]]:
    """A reference to `rows` rows whose leading part is `ref`, and the spans to fill.

    Under the store's lock. The caller holds the result before it lets go of the lock.
    """
    new: list[Span] = []
    stop = stop_of(ref)
    if ref is not None and stop < rows and ref.slab.filled == stop and ref.slab.block.pool is pool:
        slab = ref.slab
        end = min(rows, slab.start + slab.capacity)
        if end > stop:
            slab.filled = end
            new.append(Span(slab, stop, end))
            ref, stop = RowsRef(slab, end), end
    if stop < rows:
        row_nbytes = sum(outer * inner for outer, inner in shapes)
        capacity = _capacity(ref, rows - stop, _SLAB_BYTES // row_nbytes)
        slab = Slab(ref, stop, capacity, shapes, pool.take(capacity * row_nbytes), rows)
        new.append(Span(slab, stop, rows))
        ref = RowsRef(slab, rows)
    return ref, new


def _capacity(parent: RowsRef | None, need: int, most: int) -> int:
    """Rows of a new slab: what is needed, with room for more unless that is much already."""
    room = 4 * need
    if parent is not None:
        slab = parent.slab
        grows = parent.stop == slab.start + slab.capacity and not slab.children
        if grows and slab.capacity <= most:
            room = max(room, 2 * slab.capacity)
    return max(need, min(room, most))


def hold(ref: RowsRef | None, capsule_id: str = "") -> None:
    """Keep the memory of a path. With an id: for a capsule, else for a copy under way."""
    if ref is None:
        return
    if capsule_id:
        ref.slab.tips[capsule_id] = ref.stop
    else:
        ref.slab.guests += 1
    slab: Slab | None = ref.slab
    while slab is not None:
        slab.holders += 1
        if slab.holders > 1 or slab.parent is None:
            return
        slab.parent.slab.children.add(slab)
        slab = slab.parent.slab


def release(ref: RowsRef | None, capsule_id: str = "") -> int:
    """Undo one hold. Returns the bytes given back."""
    if ref is None:
        return 0
    if capsule_id:
        del ref.slab.tips[capsule_id]
    else:
        ref.slab.guests -= 1
    freed = 0
    slab: Slab | None = ref.slab
    while slab is not None:
        slab.holders -= 1
        if slab.holders > 0:
            return freed
        freed += slab.block.nbytes
        slab.block.release()
        if slab.parent is None:
            return freed
        slab.parent.slab.children.discard(slab)
        slab = slab.parent.slab
    return freed


def own_rows(ref: RowsRef | None, capsule_id: str) -> int:
    """Rows of a path that no other capsule holds."""
    own, child = 0, None
    while ref is not None:
        shared = ref.slab.shared_stop(capsule_id, ref.stop, child)
        own += ref.stop - shared
        if shared > ref.slab.start:
            return own
        child, ref = ref.slab, ref.slab.parent
    return own


def slabs_of(refs: Sequence[RowsRef | None]) -> Iterator[Slab]:
    """Every slab of these paths, once."""
    seen: set[int] = set()
    for ref in refs:
        while ref is not None and id(ref.slab) not in seen:
            seen.add(id(ref.slab))
            yield ref.slab
            ref = ref.slab.parent
