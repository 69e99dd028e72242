# SPDX-License-Identifier: Apache-2.0
"""One live state: an arena, the registered state of the layers above, and what of it is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .arena import Arena
from .buffers import Role
from .capsule import Capsule, CapsuleMeta, FixedImage, StateValue
from .errors import FingerprintMismatch, InvalidArgument, NeedsReset
from .rows import alive, common_rows, stop_of, truncated
from .store import Rows, Store
from .transfer import Copied, freeze, thaw, thaw_roles

RowCounts = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class StateItem:
    """State of a layer above that belongs into a capsule: an instruction, a chunk, a cursor.

    `get()` returns a JSON value. `check(value)` raises ValueError or a RuntimeFault when the value
    could not be set; it runs before anything is touched. `set(value)` must then not fail.
    """

    name: str
    get: Callable[[], Any]
    check: Callable[[Any], None]
    set: Callable[[Any], None]


class LiveState:
    """What replays change. Knows bytes and rows; boundaries and epochs are the session's.

    The trail is, for each row group, the stored rows that equal the live ones byte for byte: what
    a snapshot need not copy and a restore need not touch.
    """

    def __init__(self, arena: Arena, store: Store) -> None:
        self.arena = arena
        self._store = store
        self._items: dict[str, StateItem] = {}
        self._trail: Rows = tuple(None for _ in arena.groups)

    def register(self, item: StateItem) -> None:
        if item.name in self._items:
            raise InvalidArgument(f"state item {item.name!r} is registered already")
        self._items[item.name] = item

    def count_rows(self, rows: int | Mapping[str, int] | None) -> RowCounts:
        """Valid rows by counter: as told, or read from the counters (which synchronises CUDA).

        Raises InvalidArgument for a count that the arena has no room for.
        """
        groups = self.arena.groups
        if rows is None:
            counts = [self.arena.row_count(group.counter) for group in groups]
        elif not isinstance(rows, int):
            counts = [int(rows[group.counter]) for group in groups]
        elif len(groups) == 1:
            counts = [rows]
        else:
            raise InvalidArgument(
                f"rows={rows} for {len(groups)} row counters; give a mapping by counter name"
            )
        for group, count in zip(groups, counts, strict=True):
            if not 0 <= count <= group.layout.capacity:
                raise InvalidArgument(
                    f"row counter {group.counter} is {count}; expected 0 .. {group.layout.capacity}"
                )
        return tuple((group.counter, count) for group, count in zip(groups, counts, strict=True))

    def committed(self, counts: RowCounts) -> None:
        """A replay is done: rows above the counts are no longer those that were stored."""
        self._trail = tuple(
            truncated(ref, count) for ref, (_, count) in zip(self._trail, counts, strict=True)
        )

    def forget_trail(self) -> None:
        """Nothing is known about the live rows: a copy failed half-way."""
        self._trail = tuple(None for _ in self._trail)

    def values(self) -> tuple[StateValue, ...]:
        """The registered state, frozen."""
        return tuple(StateValue(item.name, json.dumps(item.get())) for item in self._items.values())

    def freeze(self, meta: CapsuleMeta, *, pinned: bool, overwrite: bool) -> Capsule:
        """Copy what no capsule has and publish the capsule when the copy is done.

        Raises NoSpace or NameTaken; nothing is left behind then.
        """
        counts = [count for _, count in meta.record.rows]
        reservation = self._store.reserve(self.arena, self._trail, counts)
        try:
            freeze(self.arena, reservation.image, reservation.new)
            capsule = self._store.publish(reservation, meta, pinned=pinned, overwrite=overwrite)
        except BaseException:
            self._store.abandon(reservation)
            raise
        self._trail = reservation.rows
        return capsule

    def check_values(self, capsule: Capsule) -> dict[str, Any]:
        """The registered state of a capsule, after every item agreed that it can be set."""
        stored = {item.name: item.value() for item in capsule.meta.state}
        if stored.keys() != self._items.keys():
            raise FingerprintMismatch(
                f"capsule {capsule.id} carries the state items {sorted(stored)}, this session "
                f"has {sorted(self._items)}; a capsule is restored whole or not at all"
            )
        for name, value in stored.items():
            try:
                self._items[name].check(value)
            except ValueError as error:
                raise InvalidArgument(
                    f"capsule {capsule.id}: state item {name!r} cannot be set: {error}"
                ) from error
        return stored

    def check_sizes(self, capsule: Capsule, image: FixedImage, rows: Rows) -> None:
        """Raise FingerprintMismatch unless every byte has its place in the arena."""
        if image.block.nbytes != self.arena.fixed.numel():
            raise FingerprintMismatch(
                f"capsule {capsule.id} has {image.block.nbytes} fixed bytes, "
                f"the arena {self.arena.fixed.numel()}"
            )
        for group, ref, (counter, count) in zip(
            self.arena.groups, rows, capsule.meta.record.rows, strict=True
        ):
            if counter != group.counter or stop_of(ref) != count or count > group.layout.capacity:
                raise FingerprintMismatch(
                    f"capsule {capsule.id} has {stop_of(ref)} rows where its record says {count} "
                    f"by {counter}; the arena has room for {group.layout.capacity} by "
                    f"{group.counter}"
                )

    def thaw(
        self,
        image: FixedImage,
        rows: Rows,
        values: Mapping[str, Any],
        roles: frozenset[Role] | None,
    ) -> Copied:
        """Put a capsule's bytes and registered state back; with `roles` only their buffers.

        Raises NeedsReset when it fails: the state is mixed then.
        """
        trail = tuple(alive(ref) for ref in self._trail)
        try:
            if roles is not None:
                copied = thaw_roles(self.arena, image, rows, trail, roles)
                self._trail = tuple(
                    truncated(live, common_rows(live, stored))
                    for live, stored in zip(trail, rows, strict=True)
                )
                return copied
            copied = thaw(self.arena, image, rows, trail)
            for name, value in values.items():
                self._items[name].set(value)
        except BaseException as error:
            self.forget_trail()
            raise NeedsReset(
                f"the copy into the live state failed half-way ({type(error).__name__}: {error}); "
                "the state is mixed and nothing may run on it: call reset()"
            ) from error
        self._trail = rows
        return copied
