# SPDX-License-Identifier: Apache-2.0
"""Moving a capsule's bytes between memory tiers, and between memory and disk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from .capsule import Capsule, FixedImage, Tier
from .directory import CapsuleDirectory, StoredCapsule
from .errors import Corrupt, UnknownCapsule
from .layout import Geometry, RowLayout
from .memory import Block, Pool, copy_bytes, synchronise
from .metadata import Piece
from .rows import RowsRef, Slab, alive, hold, release, set_column_rows, spans, stop_of
from .streams import copying
from .tiers import Part, fastest_tier, parts_of

if TYPE_CHECKING:
    from .store import Store


@dataclass(frozen=True)
class Loaded:
    """A capsule read from disk; each of `rows` is held once."""

    image: FixedImage
    rows: tuple[RowsRef | None, ...]


def place(store: Store, capsule: Capsule, tier: Tier) -> None:
    """Move a capsule that is in memory to another memory tier.

    Only parts that no capsule of a faster tier uses are moved. One call at a time.
    """
    memory = store.memory
    with memory.reading():
        with store.lock:
            if capsule not in store.catalog or capsule.fixed is None:
                raise UnknownCapsule(f"capsule {capsule.id} was dropped")
            before, capsule.tier = capsule.tier, tier
            moves: list[tuple[Part, Block, Block]] = []
            try:
                for part in parts_of(capsule):
                    if memory.unified:
                        break  # the same memory: nothing to move
                    wanted = fastest_tier(part, store.catalog)
                    if memory.tier_of(part) is not wanted:
                        if isinstance(part, Slab):
                            part.close()
                        new = memory.pools[wanted].take(part.block.nbytes)
                        moves.append((part, part.block, new))
            except BaseException:
                capsule.tier = before
                for _, _, new in moves:
                    new.release()
                raise
        with copying(store.device, after_replays=False):
            for _, old, new in moves:
                copy_bytes(new.data, old.data)
        with store.lock:
            for part, old, new in moves:
                gone = part.dead if isinstance(part, Slab) else not part.owners
                if gone or part.block is not old:
                    new.release()
                else:
                    part.block = new
                    old.release()


def on_cpu(
    geometry: Geometry, image: FixedImage, rows: Sequence[RowsRef | None]
) -> tuple[Tensor, list[list[Tensor]]]:
    """A capsule's bytes as the directory writes them: fixed, and each group's whole planes."""
    planes = []
    for layout, ref in zip(geometry.groups, rows, strict=True):
        parts = [span.slab.planes(span.start, span.stop) for span in spans(ref)]
        planes.append(
            [
                torch.cat([part[index].cpu() for part in parts], dim=1)
                if parts
                else torch.empty(outer, 0, inner, dtype=torch.uint8)
                for index, (outer, inner) in enumerate(layout.planes)
            ]
        )
    return image.block.data.cpu(), planes


class Reader:
    """Reads capsules from a directory into memory; rows that are there already are shared."""

    def __init__(self, directory: CapsuleDirectory, lock: AbstractContextManager[object]) -> None:
        self._directory = directory
        self._lock = lock  # the store's
        # (slab that it hangs on, piece) -> slab, as long as it lives
        self._slabs: WeakValueDictionary[tuple[int, str], Slab] = WeakValueDictionary()

    def read(
        self,
        stored: StoredCapsule,
        geometry: Geometry,
        known: Sequence[RowsRef | None],
        pool: Pool,
    ) -> Loaded:
        """Read and check a capsule. Rows that are still in memory (`known`) are not read.

        Raises Corrupt; nothing is left behind then.
        """
        rows: list[RowsRef | None] = []
        image = FixedImage(pool.take(geometry.fixed_nbytes))
        try:
            copy_bytes(image.block.data, self._fixed(stored, geometry))
            for index, layout in enumerate(geometry.groups):
                with self._lock:
                    rows.append(alive(known[index]) if known else None)
                    hold(rows[index])
                for piece in stored.pieces:
                    if piece.counter == layout.counter and piece.stop > stop_of(rows[index]):
                        longer = self._lengthened(stored, piece, layout, rows[index], pool)
                        with self._lock:
                            release(rows[index])
                        rows[index] = longer
            synchronise(pool.device)
        except BaseException:
            with self._lock:
                for ref in rows:
                    release(ref)
                image.release("")
            raise
        return Loaded(image, tuple(rows))

    def _fixed(self, stored: StoredCapsule, geometry: Geometry) -> Tensor:
        staged = torch.zeros(geometry.fixed_nbytes, dtype=torch.uint8)
        for spec, data in self._directory.fixed(stored):
            if len(data) != spec.nbytes:
                raise Corrupt(f"{stored.header.path}: {spec.name} has {len(data)} bytes")
            staged[geometry.span(spec.name)] = _tensor(data)
        return staged

    def _lengthened(
        self,
        stored: StoredCapsule,
        piece: Piece,
        layout: RowLayout,
        base: RowsRef | None,
        pool: Pool,
    ) -> RowsRef:
        """`base` and the rows of a piece, held once."""
        key = (0 if base is None else id(base.slab), piece.id)
        with self._lock:
            found = self._slabs.get(key)
            if found is not None and not found.dead and found.parent == base:
                shared = RowsRef(found, piece.stop)
                hold(shared)
                return shared
        start = stop_of(base)
        block = pool.take((piece.stop - start) * layout.row_nbytes)
        slab = Slab(base, start, piece.stop - start, layout.planes, block, piece.stop)
        try:
            planes = slab.planes(start, piece.stop)
            columns = zip(layout.columns, self._directory.rows(stored, piece), strict=True)
            for column, (_, data) in columns:
                rows = _tensor(data).view(piece.stop - piece.start, column.spec.row_nbytes)
                set_column_rows(planes[column.plane], column, rows[start - piece.start :])
        except BaseException:
            block.release()
            raise
        with self._lock:
            longer = RowsRef(slab, piece.stop)
            hold(longer)
            self._slabs[key] = slab
        return longer


def _tensor(data: bytearray) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
