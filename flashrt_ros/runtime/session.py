# SPDX-License-Identifier: Apache-2.0
"""A live state and its history: boundaries, verbs, events."""

from __future__ import annotations

import json
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from . import errors
from .arena import Arena
from .buffers import Kind, Role
from .capsule import Capsule, CapsuleInfo, CapsuleMeta, StateValue
from .events import Event, EventKind, Listener, RestoreReport, Subscribers
from .fingerprint import Fingerprint, MatchPolicy
from .lineage import BoundaryRecord, Lineage, chained_digest
from .rows import RowsRef, alive, common_rows, stop_of, truncated
from .store import Store
from .thinning import AutoSnapshots, least_missed
from .transfer import Trail, freeze, state_digest, thaw, thaw_roles

T = TypeVar("T")
_NAME_RULE = "a letter or digit, then up to 63 letters, digits, '.', '_' or '-'"


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


class Session:
    """One live state. Verbs run on the replay thread, between replays; others `submit`."""

    def __init__(
        self,
        arena: Arena,
        *,
        fingerprint: Fingerprint,
        store: Store | None = None,
        seed: int = 0,
        session_id: str | None = None,
        auto: AutoSnapshots | None = None,
        policy: MatchPolicy = MatchPolicy.STRICT,
    ) -> None:
        arena.seal()
        self.arena = arena
        self.fingerprint = fingerprint.bound_to(arena.table)
        self.store = store if store is not None else Store(arena.device)
        self.seed = seed
        self.id = session_id or secrets.token_hex(8)
        self.epoch = 0
        self.needs_reset = False
        self.fault = ""
        self._policy = policy
        self._auto = auto
        self._auto_capsules: list[Capsule] = []
        self._items: dict[str, StateItem] = {}
        self._subscribers = Subscribers()
        self._event_index = 0
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._busy = threading.Lock()
        self._closed = False
        self._trail: Trail = tuple(None for _ in arena.groups)
        root = BoundaryRecord(0, -1, 0, 0, self._read_rows(None), chained_digest("", b""))
        self._lineage = Lineage(root)
        self._first = self._freeze("", ("first",), pinned=True, overwrite=False)

    # -- what is live

    @property
    def live(self) -> BoundaryRecord:
        """The boundary now live."""
        return self._lineage.live

    @property
    def first(self) -> CapsuleInfo:
        """The capsule that `reset` goes back to."""
        return self.store.info(self._first)

    def register_state(self, item: StateItem) -> None:
        """Make state of a layer above part of every capsule, the first one included.

        Before the first commit only; raises InvalidArgument later or for a name used twice.
        """
        if item.name in self._items:
            raise errors.InvalidArgument(f"state item {item.name!r} is registered already")
        if self.live.number != 0 or self._lineage.next_number != 1:
            raise errors.InvalidArgument(
                f"state item {item.name!r} registered at boundary {self.live.number}; register "
                "before the first commit, or the capsules made so far would lack it"
            )
        self._items[item.name] = item
        self.mark_first()

    def mark_first(self) -> CapsuleInfo:
        """Freeze the live state as what `reset` goes back to, in place of the older one."""
        with self._exclusive("mark_first"):
            older = self._first
            self._first = self._freeze("", ("first",), pinned=True, overwrite=False)
            self.store.drop(older)
            return self.store.info(self._first)

    def digest(self) -> str:
        """SHA-256 (hex) of the live state: all buffers, valid rows only."""
        return state_digest(self.arena, dict(self.live.rows))

    # -- replay thread

    def commit(
        self,
        *,
        stamp_ns: int,
        inputs: bytes = b"",
        rows: int | Mapping[str, int] | None = None,
    ) -> BoundaryRecord:
        """The replay is done: number the boundary and tell the subscribers.

        `inputs` are the bytes (or a digest) of what this step read; they go into the lineage's
        digest. `rows` mirrors the row counters so that a CUDA device is not synchronised: a
        number when there is one counter, else by name; None reads the counters.
        """
        with self._exclusive("commit"):
            self._require_sound()
            live = self.live
            counted = self._read_rows(rows)
            self._trail = tuple(
                truncated(ref, count) for ref, (_, count) in zip(self._trail, counted, strict=True)
            )
            record = BoundaryRecord(
                self._lineage.next_number,
                live.number,
                live.step + 1,
                stamp_ns,
                counted,
                chained_digest(live.inputs_digest, inputs),
            )
            self._lineage.add(record)
            self._emit(EventKind.COMMIT)
            if self._auto is not None and record.step % self._auto.every == 0:
                self._snapshot_automatically(self._auto)
            return record

    def serve(self, timeout: float = 0.0) -> int:
        """Apply the queued verbs; wait up to `timeout` s for the first. Returns how many."""
        served = 0
        try:
            verb = self._queue.get(timeout=timeout) if timeout > 0 else self._queue.get_nowait()
            while True:
                if verb is not None:
                    verb()
                    served += 1
                verb = self._queue.get_nowait()
        except queue.Empty:
            return served

    def snapshot(
        self,
        name: str = "",
        *,
        overwrite: bool = False,
        expected_boundary: int | None = None,
        tags: Iterable[str] = (),
        pin: bool = False,
    ) -> Capsule:
        """Freeze the live state. Done, and visible to others, when it returns."""
        with self._exclusive("snapshot"):
            self._require_sound()
            self._require_expected(expected_boundary, None)
            check_name(name)
            self.store.check_name(name, overwrite)
            capsule = self._freeze(name, tuple(tags), pinned=pin, overwrite=overwrite)
            self._emit(EventKind.SNAPSHOT, capsule)
            return capsule

    def restore(
        self,
        ref: str | Capsule | CapsuleInfo,
        *,
        roles: Iterable[Role | str] | None = None,
        expected_boundary: int | None = None,
        expected_epoch: int | None = None,
        digest: bool = False,
    ) -> RestoreReport:
        """Make a capsule's state the live state, whole, or refuse and change nothing.

        `roles` is for experiments: only buffers of these roles are put back.
        """
        with self._exclusive("restore"):
            self._require_sound()
            self._require_expected(expected_boundary, expected_epoch)
            capsule = self.store.find(ref)
            chosen = None if roles is None else frozenset(Role(role) for role in roles)
            return self._thaw(capsule, EventKind.RESTORE, roles=chosen, digest=digest)

    def rollback(
        self,
        *,
        count: int | None = None,
        boundary: int | None = None,
        before_ns: int | None = None,
        name: str | None = None,
        nearest: bool = False,
        expected_boundary: int | None = None,
        expected_epoch: int | None = None,
        digest: bool = False,
    ) -> RestoreReport:
        """Go back along the live lineage, to exactly one of the four.

        Raises NotStored naming the nearest older and newer stored boundaries when the one meant
        is not stored; with `nearest` the older one is taken instead.
        """
        with self._exclusive("rollback"):
            self._require_sound()
            self._require_expected(expected_boundary, expected_epoch)
            number = self._rollback_target(count, boundary, before_ns, name)
            capsule = self._stored(number, nearest)
            return self._thaw(capsule, EventKind.ROLLBACK, digest=digest)

    def reset(
        self,
        *,
        expected_boundary: int | None = None,
        expected_epoch: int | None = None,
        digest: bool = False,
    ) -> RestoreReport:
        """Back to the first boundary. The one verb that is accepted after a copy failed."""
        with self._exclusive("reset"):
            self._require_open()
            self._require_expected(expected_boundary, expected_epoch)
            if self.needs_reset:
                self._trail = tuple(None for _ in self._trail)  # what is live is not known
            return self._thaw(self._first, EventKind.RESET, digest=digest)

    def raise_epoch(self) -> int:
        """Void every chunk and command so far (interrupt, clock jump). Returns the new epoch."""
        with self._exclusive("raise_epoch"):
            self._require_sound()
            self.epoch += 1
            self._emit(EventKind.EPOCH)
            return self.epoch

    def require(
        self, *, expected_boundary: int | None = None, expected_epoch: int | None = None
    ) -> None:
        """For verbs of the layers above: refuse as a verb of this session would.

        Raises NeedsReset, Cancelled (closed), StaleBoundary or StaleEpoch.
        """
        self._require_sound()
        self._require_expected(expected_boundary, expected_epoch)

    def invalidate(self, reason: str) -> None:
        """A replay failed half-way: no boundary describes the buffers; only `reset` is accepted."""
        self.needs_reset = True
        self.fault = reason

    def fork(
        self,
        ref: str | Capsule | CapsuleInfo | None = None,
        *,
        count: int = 1,
        names: Sequence[str] = (),
        tags: Iterable[str] = (),
    ) -> list[Capsule]:
        """`count` capsules of their own that share every byte of `ref` (or of the live state).

        The live state stays as it is; `restore` a branch, here or in another session, to go on.
        """
        with self._exclusive("fork"):
            self._require_sound()
            if count < 1 or (names and len(names) != count):
                raise errors.InvalidArgument(
                    f"fork into {count} with {len(names)} names; expected one or more, and as many "
                    "names as branches or none"
                )
            for name in names:
                check_name(name)
                self.store.check_name(name, False)
            made = None if ref is not None else self._freeze("", (), pinned=False, overwrite=False)
            source = made if made is not None else self.store.find(ref or "")
            branches = []
            for index in range(count):
                meta = replace(
                    source.meta,
                    id=new_id(),
                    name=names[index] if names else "",
                    parent=source.id if made is None else source.meta.parent,
                    tags=tuple(tags),
                )
                branches.append(self.store.branch(source, meta))
            if made is not None:
                self.store.drop(made)
            for branch in branches:
                self._emit(EventKind.FORK, branch)
            return branches

    def capsules(self) -> list[CapsuleInfo]:
        """Every capsule of the store, oldest boundary first."""
        infos = [self.store.info(capsule) for capsule in self.store.capsules()]
        return sorted(infos, key=lambda info: (info.session != self.id, info.boundary))

    def drop(self, ref: str | Capsule | CapsuleInfo) -> int:
        """Forget a capsule. Returns the bytes given back. The first capsule cannot be dropped."""
        with self._exclusive("drop"):
            self._require_open()
            capsule = self.store.find(ref)
            if "first" in capsule.meta.tags and (
                capsule is self._first or capsule.meta.session != self.id
            ):
                raise errors.InUse(f"capsule {capsule.id} is what reset goes back to")
            info = self.store.info(capsule)
            freed = self.store.drop(capsule)
            if capsule in self._auto_capsules:
                self._auto_capsules.remove(capsule)
            self._emit(EventKind.DROP, info=info)
            return freed

    # -- any thread

    def submit(self, verb: Callable[[Session], T]) -> Future[T]:
        """Queue a verb for the next boundary. The future can be cancelled until it starts."""
        future: Future[T] = Future()

        def apply() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._closed:
                    raise errors.Cancelled(f"session {self.id} was closed before the verb ran")
                future.set_result(verb(self))
            except BaseException as error:
                future.set_exception(error)

        self._queue.put(apply)
        if self._closed:
            self.serve()
        return future

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(event)` on the replay thread for every event. Returns the way out."""
        return self._subscribers.add(listener)

    def close(self) -> None:
        """Answer every pending verb with CANCELLED and accept no more."""
        self._closed = True
        self.serve()

    # -- inside

    @contextmanager
    def _exclusive(self, verb: str) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise errors.InternalFault(
                f"{verb} was called while another verb runs: from a second thread or from a "
                "subscriber; use submit()"
            )
        try:
            yield
        finally:
            self._busy.release()

    def _require_open(self) -> None:
        if self._closed:
            raise errors.Cancelled(f"session {self.id} is closed")

    def _require_sound(self) -> None:
        self._require_open()
        if self.needs_reset:
            raise errors.NeedsReset(
                f"session {self.id}: {self.fault or 'a copy into the live state failed half-way'}; "
                "call reset()"
            )

    def _require_expected(self, boundary: int | None, epoch: int | None) -> None:
        if boundary is not None and boundary != self.live.number:
            raise errors.StaleBoundary(
                f"boundary {boundary} expected, {self.live.number} is live; nothing was changed"
            )
        if epoch is not None and epoch != self.epoch:
            raise errors.StaleEpoch(
                f"epoch {epoch} expected, {self.epoch} is in force; nothing was changed"
            )

    def _read_rows(self, rows: int | Mapping[str, int] | None) -> tuple[tuple[str, int], ...]:
        groups = self.arena.groups
        if rows is None:
            counted = [self.arena.row_count(group.counter) for group in groups]
        elif isinstance(rows, int):
            if len(groups) != 1:
                raise errors.InvalidArgument(
                    f"rows={rows} for {len(groups)} row counters; give a mapping by counter name"
                )
            counted = [rows]
        else:
            counted = [int(rows[group.counter]) for group in groups]
        for group, count in zip(groups, counted, strict=True):
            if not 0 <= count <= group.capacity:
                raise errors.InvalidArgument(
                    f"row counter {group.counter} is {count}; expected 0 .. {group.capacity}"
                )
        return tuple((group.counter, n) for group, n in zip(groups, counted, strict=True))

    def _freeze(
        self, name: str, tags: tuple[str, ...], *, pinned: bool, overwrite: bool
    ) -> Capsule:
        state = tuple(
            StateValue(item.name, json.dumps(item.get())) for item in self._items.values()
        )
        record = self.live
        reservation = self.store.reserve(self.arena, self._trail, [n for _, n in record.rows])
        try:
            freeze(self.arena, reservation.image, reservation.new)
            meta = CapsuleMeta(
                id=new_id(),
                name=name,
                parent=self._stored_ancestor(),
                session=self.id,
                record=record,
                seed=self.seed,
                fingerprint=self.fingerprint,
                state=state,
                tags=tags,
            )
            capsule = self.store.publish(reservation, meta, pinned=pinned, overwrite=overwrite)
        except BaseException:
            self.store.abandon(reservation)
            raise
        self._trail = capsule.rows
        return capsule

    def _stored_ancestor(self) -> str:
        for record in self._lineage.ancestors():
            stored = self.store.at_boundary(self.id, record.number)
            if stored is not None:
                return stored.id
        return ""

    def _thaw(
        self,
        capsule: Capsule,
        kind: EventKind,
        *,
        roles: frozenset[Role] | None = None,
        digest: bool = False,
    ) -> RestoreReport:
        info = self.store.info(capsule)
        values = self._check(capsule)
        with self.store.reading(capsule) as (image, rows):
            self._check_sizes(capsule, image.block.nbytes, rows)
            trail = tuple(alive(ref) for ref in self._trail)
            try:
                if roles is None:
                    copied = thaw(self.arena, image, rows, trail)
                    for name, value in values.items():
                        self._items[name].set(value)
                else:
                    copied = thaw_roles(self.arena, image, rows, trail, roles)
            except BaseException as error:
                self.needs_reset = True
                raise errors.NeedsReset(
                    f"restoring capsule {capsule.id} failed half-way "
                    f"({type(error).__name__}: {error}); the live state is mixed, call reset()"
                ) from error
            self._go_to(capsule, rows, trail, roles)
        self.needs_reset = False
        self.epoch += 1
        names = [s.name for s in self.arena.table if roles is None or s.role in roles]
        report = RestoreReport(
            capsule=info,
            boundary=self.live.number,
            step=self.live.step,
            epoch=self.epoch,
            bytes_copied=copied.bytes_copied,
            bytes_shared=copied.bytes_shared,
            rows_copied=copied.rows_copied,
            rows_shared=copied.rows_shared,
            restored=(*names, *(values if roles is None else ())),
            state_digest=self.digest() if digest else "",
        )
        self._emit(kind, info=info, report=report)
        return report

    def _check(self, capsule: Capsule) -> dict[str, Any]:
        """Everything that can be refused before the live state is touched."""
        self.fingerprint.require(capsule.meta.fingerprint, self._policy)
        stored = {item.name: item.value() for item in capsule.meta.state}
        if stored.keys() != self._items.keys():
            raise errors.FingerprintMismatch(
                f"capsule {capsule.id} carries the state items {sorted(stored)}, this session "
                f"has {sorted(self._items)}; a capsule is restored whole or not at all"
            )
        for name, value in stored.items():
            try:
                self._items[name].check(value)
            except ValueError as error:
                raise errors.InvalidArgument(
                    f"capsule {capsule.id}: state item {name!r} cannot be set: {error}"
                ) from error
        return stored

    def _check_sizes(
        self, capsule: Capsule, fixed_bytes: int, rows: Sequence[RowsRef | None]
    ) -> None:
        if fixed_bytes != self.arena.fixed.numel():
            raise errors.FingerprintMismatch(
                f"capsule {capsule.id} has {fixed_bytes} fixed bytes, "
                f"the arena {self.arena.fixed.numel()}"
            )
        for group, ref in zip(self.arena.groups, rows, strict=True):
            if ref is not None and ref.slab.widths != group.widths:
                raise errors.Unsupported(
                    f"capsule {capsule.id} was made by an arena of another row layout; use one "
                    "layout for all sessions of a store"
                )
            if stop_of(ref) > group.capacity:
                raise errors.FingerprintMismatch(
                    f"capsule {capsule.id} has {stop_of(ref)} rows by {group.counter}, "
                    f"the arena has room for {group.capacity}"
                )

    def _go_to(
        self, capsule: Capsule, rows: Trail, trail: Trail, roles: frozenset[Role] | None
    ) -> None:
        """The bookkeeping of a restore: live boundary, trail, seed."""
        record = capsule.meta.record
        if roles is not None:
            live = self.live
            self._trail = tuple(
                truncated(ref, common_rows(ref, stored))
                for ref, stored in zip(trail, rows, strict=True)
            )
            counted = self._read_rows(None)
            step = record.step if Role.RANDOM in roles else live.step
            self._lineage.add(
                replace(
                    record,
                    number=self._lineage.next_number,
                    parent=-1,
                    step=step,
                    rows=counted,
                    origin=f"{capsule.meta.session}:{record.number}",
                    ablated=True,
                )
            )
            self._trail = tuple(
                truncated(ref, count) for ref, (_, count) in zip(self._trail, counted, strict=True)
            )
            return
        if capsule.meta.session == self.id:
            self._lineage.go_to(record)
        else:
            self._lineage.add(
                replace(
                    record,
                    number=self._lineage.next_number,
                    parent=-1,
                    origin=f"{capsule.meta.session}:{record.number}",
                )
            )
        self._trail = rows
        self.seed = capsule.meta.seed

    def _rollback_target(
        self,
        count: int | None,
        boundary: int | None,
        before_ns: int | None,
        name: str | None,
    ) -> int:
        given = [value for value in (count, boundary, before_ns, name) if value is not None]
        if len(given) != 1:
            raise errors.InvalidArgument(
                f"rollback needs exactly one of count, boundary, before_ns, name; got {len(given)}"
            )
        if count is not None and count < 1:
            raise errors.InvalidArgument(f"rollback by {count} boundaries; expected 1 or more")
        wanted = self.store.find(name) if name is not None else None
        for back, record in enumerate(self._lineage.ancestors()):
            if (
                (count is not None and back == count)
                or record.number == boundary
                or (before_ns is not None and record.stamp_ns <= before_ns)
                or (
                    wanted is not None
                    and wanted.meta.session == self.id
                    and wanted.boundary == record.number
                )
            ):
                return record.number
        raise errors.InvalidArgument(
            f"rollback target (count={count}, boundary={boundary}, before_ns={before_ns}, "
            f"name={name}) is not on the live lineage of boundary {self.live.number}, "
            f"step {self.live.step}; use restore() for another branch"
        )

    def _stored(self, number: int, nearest: bool) -> Capsule:
        newer: int | None = None
        passed = False
        for record in self._lineage.ancestors():
            capsule = self.store.at_boundary(self.id, record.number)
            passed = passed or record.number == number
            if capsule is None:
                continue
            if record.number == number or (passed and nearest):
                return capsule
            if passed:
                raise errors.NotStored(
                    f"boundary {number} is not stored; the nearest stored ones are "
                    f"{record.number} (older) and {'none' if newer is None else newer} (newer)"
                )
            newer = record.number
        raise errors.NotStored(
            f"boundary {number} is not stored, and no older one; the nearest newer one is "
            f"{'none' if newer is None else newer}"
        )

    def _snapshot_automatically(self, auto: AutoSnapshots) -> None:
        capsule = self._freeze("", ("auto",), pinned=False, overwrite=False)
        self._auto_capsules.append(capsule)
        self._emit(EventKind.SNAPSHOT, capsule)
        while len(self._auto_capsules) > 1 and (
            len(self._auto_capsules) > auto.keep
            or sum(self.store.info(c).own_bytes for c in self._auto_capsules) > auto.budget_bytes
        ):
            steps = sorted(c.boundary for c in self._auto_capsules)
            number = steps[least_missed(steps)]
            victim = next(c for c in self._auto_capsules if c.boundary == number)
            self._auto_capsules.remove(victim)
            info = self.store.info(victim)
            self.store.drop(victim)
            self._emit(EventKind.DROP, info=info)

    def _emit(
        self,
        kind: EventKind,
        capsule: Capsule | None = None,
        *,
        info: CapsuleInfo | None = None,
        report: RestoreReport | None = None,
    ) -> None:
        index = self._event_index
        self._event_index += 1
        if not self._subscribers:
            return
        if capsule is not None:
            info = self.store.info(capsule)
        self._subscribers.tell(Event(kind, index, self.live, self.epoch, info, report))


def new_id() -> str:
    """A capsule id: 96 random bits after the time, so that ids sort by age."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


def check_name(name: str) -> None:
    """Raise InvalidArgument unless `name` is empty or one plain file name component."""
    import re

    if name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise errors.InvalidArgument(f"capsule name {name!r}: expected {_NAME_RULE}")


__all__ = ["AutoSnapshots", "Kind", "Session", "StateItem", "check_name", "new_id"]
