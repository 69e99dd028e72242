# SPDX-License-Identifier: Apache-2.0
"""Where capsules are kept: device memory, host memory, disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from . import shelving
from .arena import Arena, RowGroup
from .capsule import Capsule, CapsuleInfo, CapsuleMeta, FixedImage, Tier
from .catalog import Catalog
from .directory import BadFile, CapsuleDirectory
from .errors import (
    FingerprintMismatch,
    InvalidArgument,
    UnknownCapsule,
    Unsupported,
)
from .eviction import Evictor
from .layout import Geometry
from .mover import Mover
from .rows import RowsRef, Span, alive, extended, hold, own_rows, release, stop_of, truncated
from .tiers import Budgets, Counters, Memory, StoreTotals, TierStatistics

Rows = tuple["RowsRef | None", ...]


@dataclass(frozen=True)
class Reservation:
    """Memory for a capsule that is being copied; `publish` or `abandon` it."""

    image: FixedImage
    rows: Rows
    new: tuple[tuple[RowGroup, Span], ...] = ()


class Store:
    """Capsules of one model, shared by any number of its sessions. Thread-safe.

    A tier over its budget sheds what was not used for longest: device to host to disk, in the
    background. Pinned capsules stay where they are. What no tier has room for is dropped if it is
    unnamed; a named capsule is never dropped unasked, then NoSpace is raised instead.

    With a `directory` the capsules in it are there too, on tier disk.
    """

    def __init__(
        self,
        device: str | torch.device = "cpu",
        *,
        directory: str | Path | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.budgets = budgets or Budgets.default(self.device)
        self.lock = threading.RLock()
        self.memory = Memory(self.device)
        self.catalog = Catalog()
        self.counters = Counters()
        self.directory = None if directory is None else CapsuleDirectory(directory)
        self.refused: list[BadFile] = []  # files in the directory that are no whole capsules
        self.geometry: Geometry | None = None
        self._disk_bytes = 0  # of every file that a capsule here has
        self._mover = Mover("flashrt-mover")
        self._evictor = Evictor(self, self._mover)
        self._moving = threading.Lock()  # one move at a time
        if self.directory is not None:
            self._reader = shelving.Reader(self.directory, self.lock)
            entries, self.refused = self.directory.entries()
            for stored in entries:
                self.catalog.add(Capsule(stored.meta, Tier.DISK, stored=stored))
                self._disk_bytes += stored.header.nbytes

    def adopt(self, geometry: Geometry) -> None:
        """Learn how the bytes of this store's sessions lie. Raises InvalidArgument for a second."""
        with self.lock:
            if self.geometry is None:
                self.geometry = geometry
                self._stock({geometry.fixed_nbytes} - {0})
            elif self.geometry != geometry:
                raise InvalidArgument(
                    "the store belongs to sessions of another buffer table or row layout "
                    f"(digest {self.geometry.table.digest()[:12]}, {self.geometry.layout.value}; "
                    f"this arena {geometry.table.digest()[:12]}, {geometry.layout.value}); "
                    "give each model its own store"
                )

    # -- making

    def reserve(
        self, arena: Arena, trail: Sequence[RowsRef | None], rows: Sequence[int]
    ) -> Reservation:
        """Memory for the fixed bytes and for the rows that `trail` does not hold.

        Raises NoSpace when the device tier is full of what cannot leave it.
        """
        pool = self.memory.pools[Tier.DEVICE]
        refs: list[RowsRef | None] = []
        new: list[tuple[RowGroup, Span]] = []
        with self.lock:
            bases = [truncated(alive(live), n) for live, n in zip(trail, rows, strict=True)]
            need = arena.fixed.numel() + sum(
                (n - stop_of(base)) * group.layout.row_nbytes
                for group, base, n in zip(arena.groups, bases, rows, strict=True)
            )
            self._evictor.make_room(Tier.DEVICE, need)
            try:
                for group, base, count in zip(arena.groups, bases, rows, strict=True):
                    # making room may have dropped what the base hung on
                    ref, spans = extended(alive(base), count, group.layout.planes, pool)
                    hold(ref)
                    refs.append(ref)
                    new += [(group, span) for span in spans]
                image = FixedImage(pool.take(arena.fixed.numel()))
            except BaseException:
                for ref in refs:
                    release(ref)
                raise
        return Reservation(image, tuple(refs), tuple(new))

    def publish(
        self, reservation: Reservation, meta: CapsuleMeta, *, pinned: bool, overwrite: bool
    ) -> Capsule:
        """Make a capsule whose copy is done visible.

        Raises NameTaken (the reservation is then still the caller's to abandon).
        """
        with self.lock:
            self.catalog.check_name(meta.name, overwrite)
            capsule = Capsule(meta, pinned=pinned, fixed=reservation.image, rows=reservation.rows)
            reservation.image.owners.add(meta.id)
            for ref in reservation.rows:
                hold(ref, meta.id)
                release(ref)
            older = self.catalog.add(capsule)
        if older is not None:
            self.drop(older)
        self._stock(self.memory.pools[Tier.DEVICE].take_wanted())  # last: it wakes a thread
        return capsule

    def abandon(self, reservation: Reservation) -> None:
        """Give the memory of a failed copy back."""
        with self.lock:
            for ref in reservation.rows:
                release(ref)
            reservation.image.release("")

    def branch(self, source: Capsule, meta: CapsuleMeta) -> Capsule:
        """A capsule of its own that shares every byte of `source`."""
        with self.lock, self.reading(source) as (image, rows):
            for ref in rows:
                hold(ref)
            try:
                made = self.publish(Reservation(image, rows), meta, pinned=False, overwrite=False)
            except BaseException:
                for ref in rows:
                    release(ref)
                raise
            made.tier = source.tier
            return made

    # -- finding

    def find(self, ref: str | Capsule | CapsuleInfo) -> Capsule:
        """The capsule of this id or name. Raises UnknownCapsule."""
        with self.lock:
            return self.catalog.find(ref)

    def check_name(self, name: str, overwrite: bool) -> None:
        """Raise NameTaken unless the name is free, empty or may be overwritten."""
        with self.lock:
            self.catalog.check_name(name, overwrite)

    def has(self, capsule: Capsule) -> bool:
        """It was not dropped."""
        with self.lock:
            return capsule in self.catalog

    def get(self, capsule_id: str) -> Capsule | None:
        """The capsule of this id, if it is stored."""
        with self.lock:
            return self.catalog.get(capsule_id)

    def at_boundary(self, session: str, number: int) -> Capsule | None:
        """The newest capsule of a session's boundary."""
        with self.lock:
            return self.catalog.at_boundary(session, number)

    def info(self, capsule: Capsule) -> CapsuleInfo:
        """The capsule as listed; on disk `own_bytes` counts its file without shared pieces."""
        with self.lock:
            own = shared = 0
            if capsule.fixed is None:
                if capsule.stored is not None:
                    own = capsule.stored.header.nbytes
                    shared = capsule.stored.rows_nbytes
            else:
                alone = len(capsule.fixed.owners) == 1
                own, shared = (
                    capsule.fixed.block.nbytes if mine else 0 for mine in (alone, not alone)
                )
                for ref in capsule.rows:
                    if ref is not None:
                        width = ref.slab.row_nbytes
                        rows = own_rows(ref, capsule.id)
                        own += rows * width
                        shared += (ref.stop - rows) * width
            return CapsuleInfo(capsule.meta, capsule.tier, capsule.pinned, own, shared)

    def infos(self) -> list[CapsuleInfo]:
        """Every capsule, in the order in which they were made or found."""
        with self.lock:
            return [self.info(capsule) for capsule in self.catalog]

    # -- using

    @contextmanager
    def reading(self, capsule: Capsule) -> Iterator[tuple[FixedImage, Rows]]:
        """The capsule's bytes in memory, read from disk if need be; not recycled meanwhile.

        Raises Corrupt when the file on disk is damaged, UnknownCapsule when it was dropped.
        """
        if capsule.fixed is None:
            self._load(capsule, Tier.HOST if self.device.type == "cuda" else Tier.DEVICE)
        with self.memory.reading():
            with self.lock:
                image, rows = capsule.fixed, capsule.rows
                if image is None or capsule not in self.catalog:
                    raise UnknownCapsule(f"capsule {capsule.id} was dropped")
                self.catalog.touch(capsule)
            yield image, rows

    def drop(self, capsule: Capsule, *, background: bool = False) -> int:
        """Forget a capsule, on disk too. Returns the bytes given back.

        In the background, files are removed later and not counted.
        """
        with self.lock:
            self.catalog.remove(capsule)
            freed = self._release(capsule)
            stored, capsule.stored = capsule.stored, None
            self._disk_bytes -= stored.header.nbytes if stored is not None else 0
        if stored is not None and self.directory is not None:
            directory = self.directory
            if background:
                self._mover.submit(lambda: directory.remove(capsule.id))
            else:
                freed += directory.remove(capsule.id)
        return freed

    def pin(self, capsule: Capsule, pinned: bool = True) -> None:
        """Keep a capsule in its tier, or let it be moved again."""
        with self.lock:
            capsule.pinned = pinned

    def move(self, capsule: Capsule, tier: Tier) -> None:
        """Move a capsule to a tier; done when it returns.

        To DISK its file is durable then; from DISK the file stays. Raises NoSpace, Corrupt,
        Unsupported (no directory), UnknownCapsule; the capsule then is where it was.
        """
        with self._moving:
            if tier is Tier.DISK:
                self._to_disk(capsule)
            elif capsule.fixed is None:
                self._load(capsule, tier)
            else:
                shelving.place(self, capsule, tier)

    def persist(self, capsule: Capsule) -> None:
        """Write a capsule to the directory, and keep it in memory too."""
        if self.directory is None or self.geometry is None:
            raise Unsupported("this store has no directory; give it one to keep capsules on disk")
        with self.reading(capsule) as (image, rows):
            if capsule.stored is not None:
                return
            fixed, planes = shelving.on_cpu(self.geometry, image, rows)
            budget = self.budgets.disk
            if budget is not None:
                with self.lock:
                    excess = self._disk_bytes + fixed.numel() - budget
                    if excess > 0:
                        self._evictor.shed(Tier.DISK, excess)
            stored = self.directory.write(capsule.meta, self.geometry, fixed, planes)
        with self.lock:
            if capsule in self.catalog:
                capsule.stored = stored
                self._disk_bytes += stored.header.nbytes
                return
        self.directory.remove(capsule.id)  # dropped while it was written
        raise UnknownCapsule(f"capsule {capsule.id} was dropped")

    def flush(self, timeout: float | None = None) -> bool:
        """Wait for the moves in the background."""
        return self._mover.flush(timeout)

    def close(self) -> None:
        """End the background thread after the move under way."""
        self._mover.close()

    def take_evicted(self, session: str) -> list[CapsuleInfo]:
        """Capsules of a session that were dropped to make room since the last call."""
        return self._evictor.take(session)

    def totals(self) -> StoreTotals:
        """How many capsules and bytes there are; kept all along, so that asking costs nothing."""
        device, host = (self.memory.pools[tier].used_bytes for tier in (Tier.DEVICE, Tier.HOST))
        return StoreTotals(len(self.catalog), device, host, self._disk_bytes)

    def statistics(self) -> tuple[TierStatistics, ...]:
        """What each tier holds."""
        with self.lock:
            rows = []
            for tier in Tier:
                used = free = 0
                if tier is Tier.DISK:
                    used = self._disk_bytes
                else:
                    used = self.memory.pools[tier].used_bytes
                    free = self.memory.pools[tier].free_bytes
                count = sum(capsule.tier is tier for capsule in self.catalog)
                rows.append(TierStatistics(tier, count, used, free, self.budgets.of(tier)))
            return tuple(rows)

    # -- moving

    def _stock(self, sizes: Set[int]) -> None:
        """Let the background touch fresh pages, so that the next snapshot need not."""
        if self.device.type == "cpu":
            for nbytes in sizes:
                self._mover.submit(partial(self.memory.pools[Tier.DEVICE].stock, nbytes))

    def _release(self, capsule: Capsule) -> int:
        freed = 0
        if capsule.fixed is not None:
            freed += sum(release(ref, capsule.id) for ref in capsule.rows)
            freed += capsule.fixed.release(capsule.id)
            capsule.fixed = None
        return freed

    def _to_disk(self, capsule: Capsule) -> None:
        self.persist(capsule)
        with self.lock:
            if capsule in self.catalog:
                self._release(capsule)
                capsule.tier = Tier.DISK

    def _load(self, capsule: Capsule, tier: Tier) -> None:
        stored, geometry = capsule.stored, self.geometry
        if stored is None:
            raise UnknownCapsule(f"capsule {capsule.id} was dropped")
        if geometry is None:
            raise Unsupported("no session uses this store yet: its buffer table is not known")
        if stored.table != geometry.table:
            raise FingerprintMismatch(
                f"capsule {capsule.id} has the buffer table {stored.table.digest()[:12]}, this "
                f"store's sessions {geometry.table.digest()[:12]}"
            )
        with self.lock:
            self._evictor.make_room(tier, stored.header.nbytes + stored.rows_nbytes)
        pool = self.memory.pools[tier]
        with self.memory.reading():
            loaded = self._reader.read(stored, geometry, capsule.rows, pool)
            with self.lock:
                if capsule in self.catalog and capsule.fixed is None:
                    loaded.image.owners.add(capsule.id)
                    for ref in loaded.rows:
                        hold(ref, capsule.id)
                        release(ref)
                    capsule.fixed, capsule.rows, capsule.tier = loaded.image, loaded.rows, tier
                    self.counters.loads += 1
                    return
        self.abandon(Reservation(loaded.image, loaded.rows))
