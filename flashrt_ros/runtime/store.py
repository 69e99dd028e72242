# SPDX-License-Identifier: Apache-2.0
"""Where capsules are kept: an index by id, name and boundary, over memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from .arena import Arena, RowGroup
from .capsule import Capsule, CapsuleInfo, CapsuleMeta, FixedImage, Tier
from .errors import NameTaken, UnknownCapsule
from .memory import Pool
from .rows import RowsRef, Span, alive, extended, hold, own_rows, release, stop_of, truncated

Ref = "str | Capsule | CapsuleInfo"


@dataclass(frozen=True)
class Reservation:
    """Memory for a capsule that is being copied; `publish` or `abandon` it."""

    image: FixedImage
    rows: tuple[RowsRef | None, ...]
    new: tuple[tuple[RowGroup, Span], ...] = field(default=())


class Store:
    """Capsules of one model, shared by any number of its sessions. Thread-safe."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.lock = threading.RLock()
        self._pool = Pool(self.device)
        self._capsules: dict[str, Capsule] = {}
        self._names: dict[str, Capsule] = {}
        self._boundaries: dict[tuple[str, int], list[Capsule]] = {}

    # -- making

    def reserve(
        self, arena: Arena, trail: Sequence[RowsRef | None], rows: Sequence[int]
    ) -> Reservation:
        """Memory for the fixed bytes and for the rows that `trail` does not hold."""
        refs: list[RowsRef | None] = []
        new: list[tuple[RowGroup, Span]] = []
        with self.lock:
            try:
                for group, live, count in zip(arena.groups, trail, rows, strict=True):
                    base = truncated(alive(live), count)
                    ref, spans = extended(base, count, group.widths, self._pool)
                    hold(ref)
                    refs.append(ref)
                    new += [(group, span) for span in spans]
                image = FixedImage(self._pool.take(arena.fixed.numel()), holders=1)
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
            self.check_name(meta.name, overwrite)
            older = self._names.get(meta.name) if meta.name else None
            capsule = Capsule(
                meta, pinned=pinned, fixed=reservation.image, rows=reservation.rows
            )
            for ref in reservation.rows:
                hold(ref, meta.id)
                release(ref)
            self._capsules[meta.id] = capsule
            self._boundaries.setdefault((meta.session, meta.record.number), []).append(capsule)
            if older is not None:
                self.drop(older)
            if meta.name:
                self._names[meta.name] = capsule
            return capsule

    def abandon(self, reservation: Reservation) -> None:
        """Give the memory of a failed copy back."""
        with self.lock:
            for ref in reservation.rows:
                release(ref)
            self._release_image(reservation.image)

    def branch(self, source: Capsule, meta: CapsuleMeta, *, overwrite: bool = False) -> Capsule:
        """A capsule of its own that shares every byte of `source`."""
        with self.lock, self.reading(source) as (image, rows):
            image.holders += 1
            for ref in rows:
                hold(ref)
            reservation = Reservation(image, rows)
            try:
                return self.publish(reservation, meta, pinned=False, overwrite=overwrite)
            except BaseException:
                self.abandon(reservation)
                raise

    # -- finding

    def check_name(self, name: str, overwrite: bool) -> None:
        """Raise NameTaken unless the name is free, empty or may be overwritten."""
        with self.lock:
            if name and name in self._names and not overwrite:
                raise NameTaken(
                    f"a capsule named {name!r} exists (id {self._names[name].id}); "
                    "choose another name or ask to overwrite it"
                )

    def find(self, ref: str | Capsule | CapsuleInfo) -> Capsule:
        """The capsule of this id or name. Raises UnknownCapsule."""
        key = ref if isinstance(ref, str) else ref.id
        with self.lock:
            capsule = self._capsules.get(key) or self._names.get(key)
            if capsule is None:
                raise UnknownCapsule(
                    f"no capsule has the id or name {key!r}; {len(self._capsules)} are stored, "
                    f"named: {', '.join(sorted(self._names)) or 'none'}"
                )
            return capsule

    def at_boundary(self, session: str, number: int) -> Capsule | None:
        """The newest capsule of a session's boundary."""
        with self.lock:
            known = self._boundaries.get((session, number))
            return known[-1] if known else None

    def capsules(self) -> list[Capsule]:
        with self.lock:
            return list(self._capsules.values())

    def info(self, capsule: Capsule) -> CapsuleInfo:
        with self.lock:
            own = shared = 0
            if capsule.fixed is not None:
                if capsule.fixed.holders > 1:
                    shared += capsule.fixed.block.nbytes
                else:
                    own += capsule.fixed.block.nbytes
                for ref in capsule.rows:
                    if ref is None:
                        continue
                    width = sum(ref.slab.widths)
                    rows = own_rows(ref, capsule.id)
                    own += rows * width
                    shared += (stop_of(ref) - rows) * width
            return CapsuleInfo(capsule.meta, capsule.tier, capsule.pinned, own, shared)

    # -- using

    @contextmanager
    def reading(
        self, capsule: Capsule
    ) -> Iterator[tuple[FixedImage, tuple[RowsRef | None, ...]]]:
        """The capsule's bytes, kept from being given back meanwhile."""
        with self.lock:
            image, rows = capsule.fixed, capsule.rows
            if image is None or capsule.id not in self._capsules:
                raise UnknownCapsule(f"capsule {capsule.id} was dropped")
            image.holders += 1
            for ref in rows:
                hold(ref)
        try:
            yield image, rows
        finally:
            with self.lock:
                self._release_image(image)
                for ref in rows:
                    release(ref)

    def drop(self, capsule: Capsule) -> int:
        """Forget a capsule. Returns the bytes given back."""
        with self.lock:
            if self._capsules.pop(capsule.id, None) is None:
                raise UnknownCapsule(f"capsule {capsule.id} was dropped already")
            if self._names.get(capsule.name) is capsule:
                del self._names[capsule.name]
            key = (capsule.meta.session, capsule.boundary)
            self._boundaries[key].remove(capsule)
            if not self._boundaries[key]:
                del self._boundaries[key]
            freed = sum(release(ref, capsule.id) for ref in capsule.rows)
            if capsule.fixed is not None:
                freed += self._release_image(capsule.fixed)
            return freed

    def _release_image(self, image: FixedImage) -> int:
        image.holders -= 1
        if image.holders:
            return 0
        freed = image.block.nbytes
        image.block.release()
        return freed
