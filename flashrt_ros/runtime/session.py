# SPDX-License-Identifier: Apache-2.0
"""A live state and its history: boundaries, verbs, events."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from . import errors
from .arena import Arena
from .buffers import Role
from .capsule import Capsule, CapsuleInfo, CapsuleMeta, Tier, check_name, new_id
from .difference import BufferDiff, differences
from .events import Event, EventKind, Listener, RestoreReport, Subscribers
from .fingerprint import Fingerprint, MatchPolicy
from .history import History
from .lineage import BoundaryRecord, chained_digest
from .live import LiveState, StateItem
from .mailbox import Mailbox
from .store import Store
from .thinning import AutoKeeper, AutoSnapshots
from .transfer import Copied, state_digest

T = TypeVar("T")
Ref = str | Capsule | CapsuleInfo


class Session:
    """One live state. Verbs run on the replay thread, between replays; others `submit`.

    Every verb is whole or refused: it raises a RuntimeFault whose code says why, and nothing was
    changed, unless the code is NEEDS_RESET.
    """

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
        self.store = store if store is not None else Store(arena.device)
        self.store.adopt(arena.geometry)
        self.fingerprint = fingerprint.bound_to(arena.table)
        self.id = session_id or secrets.token_hex(8)
        self.seed = seed
        self.epoch = 0
        self.needs_reset = False
        self.fault = ""
        self._policy = policy
        self._state = LiveState(arena, self.store)
        root = BoundaryRecord(0, -1, 0, 0, self._state.count_rows(None), chained_digest("", b""))
        self._history = History(self.id, root, self.store)
        self._keeper = AutoKeeper(auto, self.store) if auto is not None else None
        self._subscribers = Subscribers()
        self._event_index = 0
        self._mailbox: Mailbox[Session] = Mailbox()
        self._busy = threading.Lock()
        self._closed = False
        self._first = self._freeze("", ("first",), pinned=True)

    # -- what is live

    @property
    def arena(self) -> Arena:
        return self._state.arena

    @property
    def live(self) -> BoundaryRecord:
        """The boundary now live."""
        return self._history.lineage.live

    @property
    def first(self) -> CapsuleInfo:
        """The capsule that `reset` goes back to."""
        return self.store.info(self._first)

    @property
    def subscriber_failures(self) -> int:
        """Calls of subscribers that raised."""
        return self._subscribers.failures

    def register_state(self, item: StateItem) -> None:
        """Make state of a layer above part of every capsule, the first one included.

        Before the first commit only; raises InvalidArgument later or for a name used twice.
        """
        if self._history.lineage.next_number != 1:
            raise errors.InvalidArgument(
                f"state item {item.name!r} registered at boundary {self.live.number}; register "
                "before the first commit, or the capsules made so far would lack it"
            )
        self._state.register(item)
        self.mark_first()

    def keep_automatically(self, auto: AutoSnapshots) -> None:
        """Another rule for the automatic snapshots, from the next boundary on.

        Raises InvalidArgument for a session that was made without any.
        """
        with self._verb("keep_automatically"):
            if self._keeper is None:
                raise errors.InvalidArgument(
                    f"session {self.id} takes no automatic snapshots; make one with AutoSnapshots"
                )
            self._keeper.auto = auto

    def mark_first(self) -> CapsuleInfo:
        """Freeze the live state as what `reset` goes back to, in place of the older one."""
        with self._verb("mark_first"):
            older = self._first
            self._first = self._freeze("", ("first",), pinned=True)
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
        with self._verb("commit"):
            live, counts = self.live, self._state.count_rows(rows)
            self._state.committed(counts)
            record = BoundaryRecord(
                self._history.lineage.next_number,
                live.number,
                live.step + 1,
                stamp_ns,
                counts,
                chained_digest(live.inputs_digest, inputs),
            )
            self._history.lineage.add(record)
            self._emit(EventKind.COMMIT)
            if self._keeper is not None and record.step % self._keeper.auto.every == 0:
                self._snapshot_automatically(self._keeper)
            self._tell_evicted()
            return record

    def serve(self, timeout: float = 0.0) -> int:
        """Apply the queued verbs; wait up to `timeout` s for the first. Returns how many."""
        return self._mailbox.serve(self, timeout)

    def snapshot(
        self,
        name: str = "",
        *,
        overwrite: bool = False,
        expected_boundary: int | None = None,
        tags: Iterable[str] = (),
        pin: bool = False,
    ) -> Capsule:
        """Freeze the live state. Its copy is done and others see it when this returns."""
        with self._verb("snapshot", expected_boundary):
            check_name(name)
            self.store.check_name(name, overwrite)
            capsule = self._freeze(name, tuple(tags), pinned=pin, overwrite=overwrite)
            self._emit(EventKind.SNAPSHOT, capsule)
            return capsule

    def restore(
        self,
        ref: Ref,
        *,
        roles: Iterable[Role | str] | None = None,
        expected_boundary: int | None = None,
        expected_epoch: int | None = None,
        digest: bool = False,
    ) -> RestoreReport:
        """Make a capsule's state the live state, whole, or refuse and change nothing.

        `roles` is for experiments: only buffers of these roles are put back, and the live
        boundary becomes a root of its own, marked as ablated.
        """
        with self._verb("restore", expected_boundary, expected_epoch):
            chosen = None if roles is None else frozenset(Role(role) for role in roles)
            return self._thaw(self.store.find(ref), EventKind.RESTORE, chosen, digest)

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
        with self._verb("rollback", expected_boundary, expected_epoch):
            named = None if name is None else self.store.find(name)
            if named is not None:
                if named.meta.session != self.id:
                    raise errors.InvalidArgument(
                        f"capsule {name!r} was made by session {named.meta.session}, this is "
                        f"{self.id}; use restore()"
                    )
                if boundary is None:
                    boundary = named.boundary
                else:
                    count = -1  # two targets: let the lineage refuse
            target = self._history.lineage.target(
                count=count, boundary=boundary, before_ns=before_ns
            )
            capsule = named or self._history.stored(target, nearest)
            return self._thaw(capsule, EventKind.ROLLBACK, None, digest)

    def reset(
        self,
        *,
        expected_boundary: int | None = None,
        expected_epoch: int | None = None,
        digest: bool = False,
    ) -> RestoreReport:
        """Back to the first boundary. The one verb that is accepted after a copy failed."""
        with self._verb("reset", expected_boundary, expected_epoch, sound=False):
            return self._thaw(self._first, EventKind.RESET, None, digest)

    def raise_epoch(self) -> int:
        """Void every chunk and command so far (interrupt, clock jump). Returns the new epoch."""
        with self._verb("raise_epoch"):
            self.epoch += 1
            self._emit(EventKind.EPOCH)
            return self.epoch

    def require(
        self, *, expected_boundary: int | None = None, expected_epoch: int | None = None
    ) -> None:
        """For verbs of the layers above: refuse as a verb of this session would.

        Raises NeedsReset, Cancelled (closed), StaleBoundary or StaleEpoch.
        """
        with self._verb("require", expected_boundary, expected_epoch):
            pass

    def invalidate(self, reason: str) -> None:
        """A replay failed half-way: no boundary describes the buffers; only `reset` is accepted."""
        self._state.forget_trail()
        self.needs_reset = True
        self.fault = reason

    def fork(
        self,
        ref: Ref | None = None,
        *,
        count: int = 1,
        names: Sequence[str] = (),
        tags: Iterable[str] = (),
    ) -> list[Capsule]:
        """`count` capsules of their own that share every byte of `ref` (or of the live state).

        The live state stays as it is; `restore` a branch, here or in another session, to go on.
        """
        with self._verb("fork"):
            if count < 1 or (names and len(names) != count):
                raise errors.InvalidArgument(
                    f"fork into {count} with {len(names)} names; expected one or more branches, "
                    "and a name for each or none"
                )
            for name in names:
                check_name(name)
                self.store.check_name(name, False)
            if len(set(names)) != len(names):
                raise errors.NameTaken(f"names of branches repeat: {', '.join(names)}")
            source = self._freeze("", ()) if ref is None else self.store.find(ref)
            branches = []
            for name in names or [""] * count:
                parent = source.meta.parent if ref is None else source.id
                meta = replace(source.meta, id=new_id(), name=name, parent=parent, tags=tuple(tags))
                branches.append(self.store.branch(source, meta))
            if ref is None:
                self.store.drop(source)
            for branch in branches:
                self._emit(EventKind.FORK, branch)
            return branches

    def capsules(self) -> list[CapsuleInfo]:
        """Every capsule of the store, this session's first, oldest boundary first."""
        return sorted(self.store.infos(), key=lambda info: (info.session != self.id, info.boundary))

    def diff(self, a: Ref, b: Ref | None = None) -> list[BufferDiff]:
        """How two capsules differ, buffer by buffer; `b` None: the live state."""
        with self._verb("diff"):
            scratch = self._freeze("", ()) if b is None else None
            try:
                other = scratch or self.store.find(b or "")
                return differences(self.store, self.store.find(a), other)
            finally:
                if scratch is not None:
                    self.store.drop(scratch)

    def move(self, ref: Ref, tier: Tier | str) -> CapsuleInfo:
        """Move a capsule to another tier; done (on disk: durable) when it returns."""
        with self._verb("move"):
            capsule = self.store.find(ref)
            self.store.move(capsule, Tier(tier))
            info = self.store.info(capsule)
            self._emit(EventKind.MOVE, info)
            return info

    def drop(self, ref: Ref) -> int:
        """Forget a capsule. Returns the bytes given back. The first capsule cannot be dropped."""
        with self._verb("drop"):
            capsule = self.store.find(ref)
            if capsule.pinned and "first" in capsule.meta.tags:
                raise errors.InUse(
                    f"capsule {capsule.id} is what session {capsule.meta.session} resets to"
                )
            info = self.store.info(capsule)
            freed = self.store.drop(capsule)
            if self._keeper is not None:
                self._keeper.forget(info.id)
            self._emit(EventKind.DROP, info)
            return freed

    # -- any thread

    def submit(self, verb: Callable[[Session], T]) -> Future[T]:
        """Queue a verb for the next boundary. The future can be cancelled until it starts."""
        return self._mailbox.submit(verb)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(event)` on the replay thread for every event. Returns the way out."""
        return self._subscribers.add(listener)

    def close(self) -> None:
        """Answer every pending verb with CANCELLED, accept no more, give up the first capsule."""
        self._closed = True
        self._mailbox.close()
        if self._first in self.store.catalog:
            self.store.drop(self._first)

    # -- inside

    @contextmanager
    def _verb(
        self,
        verb: str,
        boundary: int | None = None,
        epoch: int | None = None,
        *,
        sound: bool = True,
    ) -> Iterator[None]:
        """One verb at a time, on a state that may be used, at the boundary that was expected."""
        if not self._busy.acquire(blocking=False):
            raise errors.InternalFault(
                f"{verb} was called while another verb runs: from a second thread or from a "
                "subscriber; use submit()"
            )
        try:
            if self._closed:
                raise errors.Cancelled(f"session {self.id} is closed")
            if sound and self.needs_reset:
                raise errors.NeedsReset(f"session {self.id} must be reset: {self.fault}")
            if boundary is not None and boundary != self.live.number:
                raise errors.StaleBoundary(
                    f"boundary {boundary} expected, {self.live.number} is live; nothing was changed"
                )
            if epoch is not None and epoch != self.epoch:
                raise errors.StaleEpoch(
                    f"epoch {epoch} expected, {self.epoch} is in force; nothing was changed"
                )
            yield
        finally:
            self._busy.release()

    def _freeze(
        self, name: str, tags: tuple[str, ...], *, pinned: bool = False, overwrite: bool = False
    ) -> Capsule:
        meta = CapsuleMeta(
            id=new_id(),
            name=name,
            parent=self._history.stored_ancestor(),
            session=self.id,
            record=self.live,
            seed=self.seed,
            fingerprint=self.fingerprint,
            state=self._state.values(),
            tags=tags,
        )
        capsule = self._state.freeze(meta, pinned=pinned, overwrite=overwrite)
        self._history.newest = capsule
        return capsule

    def _thaw(
        self, capsule: Capsule, kind: EventKind, roles: frozenset[Role] | None, digest: bool
    ) -> RestoreReport:
        """Two phases: everything that can be refused, then the copy."""
        self.fingerprint.require(capsule.meta.fingerprint, self._policy)
        values = self._state.check_values(capsule)
        with self.store.reading(capsule) as (image, rows):
            self._state.check_sizes(capsule, image, rows)
            try:
                copied = self._state.thaw(image, rows, values, roles)
            except errors.NeedsReset as fault:
                self.needs_reset = True
                self.fault = str(fault)
                raise
        self._go_to(capsule, roles)
        self.needs_reset = False
        self.epoch += 1
        report = self._report(capsule, copied, tuple(values), roles, digest)
        self._emit(kind, report.capsule, report)
        return report

    def _go_to(self, capsule: Capsule, roles: frozenset[Role] | None) -> None:
        """The lineage after a restore."""
        self._history.newest = capsule
        record = capsule.meta.record
        if roles is None:
            self.seed = capsule.meta.seed
            if capsule.meta.session == self.id:
                self._history.lineage.go_to(record)
                return
        else:
            counts = self._state.count_rows(None)
            self._state.committed(counts)
            step = record.step if Role.RANDOM in roles else self.live.step
            record = replace(record, step=step, rows=counts, ablated=True)
        origin = f"{capsule.meta.session}:{capsule.boundary}"
        number = self._history.lineage.next_number
        self._history.lineage.add(replace(record, number=number, parent=-1, origin=origin))

    def _report(
        self,
        capsule: Capsule,
        copied: Copied,
        items: tuple[str, ...],
        roles: frozenset[Role] | None,
        digest: bool,
    ) -> RestoreReport:
        buffers = tuple(s.name for s in self.arena.table if roles is None or s.role in roles)
        return RestoreReport(
            capsule=self.store.info(capsule),
            boundary=self.live.number,
            step=self.live.step,
            epoch=self.epoch,
            bytes_copied=copied.bytes_copied,
            bytes_shared=copied.bytes_shared,
            rows_copied=copied.rows_copied,
            rows_shared=copied.rows_shared,
            restored=buffers + (items if roles is None else ()),
            state_digest=self.digest() if digest else "",
        )

    def _snapshot_automatically(self, keeper: AutoKeeper) -> None:
        capsule = self._freeze("", ("auto",))
        keeper.add(capsule)
        self._emit(EventKind.SNAPSHOT, capsule)
        for info in keeper.thin():
            self._emit(EventKind.DROP, info)

    def _tell_evicted(self) -> None:
        for info in self.store.take_evicted(self.id):
            if self._keeper is not None:
                self._keeper.forget(info.id)
            self._emit(EventKind.DROP, info)

    def _emit(
        self,
        kind: EventKind,
        subject: CapsuleInfo | Capsule | None = None,
        report: RestoreReport | None = None,
    ) -> None:
        index = self._event_index
        self._event_index += 1
        if self._subscribers:
            info = self.store.info(subject) if isinstance(subject, Capsule) else subject
            self._subscribers.tell(Event(kind, index, self.live, self.epoch, info, report))


__all__ = ["Session", "StateItem", "check_name", "new_id"]
