# SPDX-License-Identifier: Apache-2.0
"""Boundaries, lineage, verbs from other threads, events."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from flashrt_ros.runtime import (
    Arena,
    AutoSnapshots,
    BufferSpec,
    Capsule,
    Code,
    Event,
    EventKind,
    Fingerprint,
    Kind,
    Role,
    RuntimeFault,
    Session,
    StateItem,
)
from flashrt_ros.runtime.errors import (
    Cancelled,
    InternalFault,
    InUse,
    InvalidArgument,
    NameTaken,
    NotStored,
    StaleBoundary,
    StaleEpoch,
    UnknownCapsule,
)
from flashrt_ros.runtime.thinning import least_missed

SPECS = [
    BufferSpec("meta.rows", Role.META, torch.int64, ()),
    BufferSpec("state", Role.RECURRENT, torch.float32, (8,)),
    BufferSpec("key", Role.KV, torch.float32, (64, 2), Kind.APPEND, 0, "meta.rows"),
]


def opened(**options: object) -> Session:
    return Session(Arena(SPECS), fingerprint=Fingerprint("test"), **options)  # type: ignore[arg-type]


def step(session: Session, value: float = 1.0) -> int:
    rows = int(session.arena["meta.rows"])
    session.arena["key"][rows] = value
    session.arena["state"].add_(value)
    session.arena["meta.rows"].add_(1)
    return session.commit(stamp_ns=100 * (session.live.step + 1)).number


def test_codes_are_those_of_the_message() -> None:
    text = (Path(__file__).parent.parent / "msg" / "VerbResult.msg").read_text()
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    constants = dict(
        line.removeprefix("uint16 ").split("=")
        for line in lines
        if line.startswith("uint16 ") and "=" in line
    )
    assert {name: int(number) for name, number in constants.items()} == {
        code.name: int(code) for code in Code
    }


def test_every_code_but_ok_has_one_class_of_faults() -> None:
    for code in Code:
        if code is Code.OK:
            with pytest.raises(ValueError):
                RuntimeFault.of(code, "x")
        else:
            assert RuntimeFault.of(code, "x").code is code


def test_boundary_numbers_only_grow_and_steps_count_the_lineage() -> None:
    session = opened()
    for _ in range(5):
        step(session)
    session.snapshot("five")
    for _ in range(4):
        step(session)
    session.restore("five")
    assert (session.live.number, session.live.step) == (5, 5)
    assert step(session) == 10
    assert (session.live.parent, session.live.step) == (5, 6)


def test_the_inputs_digest_is_that_of_the_lineage() -> None:
    session = opened()
    session.commit(stamp_ns=1, inputs=b"a")
    session.snapshot("a")
    session.commit(stamp_ns=2, inputs=b"b")
    expected = session.live.inputs_digest
    session.restore("a")
    session.commit(stamp_ns=2, inputs=b"c")
    assert session.live.inputs_digest != expected
    session.restore("a")
    session.commit(stamp_ns=9, inputs=b"b")
    assert session.live.inputs_digest == expected


def test_a_stale_expectation_changes_nothing() -> None:
    session = opened()
    step(session)
    session.snapshot("one")
    step(session)
    before = (session.live, session.epoch, session.digest())
    for verb in (session.restore, lambda _, **o: session.reset(**o)):
        with pytest.raises(StaleBoundary):
            verb("one", expected_boundary=1)
        with pytest.raises(StaleEpoch):
            verb("one", expected_epoch=3)
    with pytest.raises(StaleBoundary):
        session.rollback(count=1, expected_boundary=7)
    with pytest.raises(StaleBoundary):
        session.snapshot("two", expected_boundary=1)
    assert (session.live, session.epoch, session.digest()) == before
    session.restore("one", expected_boundary=2, expected_epoch=0)


def test_verbs_that_change_the_live_state_raise_the_epoch_which_never_rolls_back() -> None:
    session = opened()
    step(session)
    session.snapshot("one")
    assert session.raise_epoch() == 1
    assert session.restore("one").epoch == 2
    step(session)
    assert session.rollback(count=1).epoch == 3
    assert session.reset().epoch == 4
    assert session.snapshot() is not None
    assert session.epoch == 4


def test_rollback_goes_to_a_count_a_boundary_a_time_or_a_name() -> None:
    session = opened(auto=AutoSnapshots())
    for _ in range(6):
        step(session)
    session.snapshot("six")
    for _ in range(3):
        step(session)
    assert session.rollback(count=2).boundary == 7
    assert session.rollback(boundary=6).boundary == 6
    assert session.rollback(before_ns=499).boundary == 4
    assert session.rollback(before_ns=50).boundary == 0
    session.restore("six")
    step(session)
    assert session.rollback(name="six").capsule.name == "six"


def test_rollback_refuses_what_is_not_behind_the_live_boundary() -> None:
    session = opened(auto=AutoSnapshots())
    for _ in range(4):
        step(session)
    session.snapshot("four")
    session.rollback(boundary=2)
    step(session)  # boundary 5, on another branch than 3 and 4
    for target in ({"boundary": 4}, {"name": "four"}, {"count": 9}, {"count": 0}, {}):
        with pytest.raises(InvalidArgument):
            session.rollback(**target)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        session.rollback(count=1, boundary=2)
    with pytest.raises(UnknownCapsule):
        session.rollback(name="nobody")


def test_a_boundary_that_is_not_stored_is_refused_with_its_neighbours() -> None:
    session = opened()
    for number in range(1, 10):
        step(session)
        if number in (3, 7):
            session.snapshot()
    with pytest.raises(NotStored, match=r"3 \(older\) and 7 \(newer\)"):
        session.rollback(boundary=5)
    assert session.rollback(boundary=5, nearest=True).boundary == 3


def test_reset_goes_back_to_the_first_boundary_which_cannot_be_dropped() -> None:
    session = opened()
    first = session.digest()
    for _ in range(3):
        step(session)
    report = session.reset(digest=True)
    assert (report.boundary, report.state_digest) == (0, first)
    with pytest.raises(InUse):
        session.drop(session.first)
    assert step(session) == 4


def test_mark_first_moves_where_reset_goes() -> None:
    session = opened()
    step(session)
    marked = session.digest()
    session.mark_first()
    step(session)
    assert session.reset(digest=True).state_digest == marked
    assert sum("first" in info.tags for info in session.capsules()) == 1


def test_state_registered_after_a_commit_is_refused() -> None:
    session = opened()
    step(session)
    with pytest.raises(InvalidArgument, match="before the first commit"):
        session.register_state(StateItem("x", lambda: 1, lambda v: None, lambda v: None))


def test_names_are_taken_once_and_overwritten_only_when_asked() -> None:
    session = opened()
    first = session.snapshot("same")
    step(session)
    with pytest.raises(NameTaken):
        session.snapshot("same")
    second = session.snapshot("same", overwrite=True)
    assert session.store.find("same") is second
    with pytest.raises(UnknownCapsule):
        session.restore(first.id)


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "-x", "a" * 65, "a b", "a\n", "\0"])
def test_names_that_could_be_paths_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="capsule name"):
        opened().snapshot(name)


def test_a_fork_needs_a_free_name_for_each_branch() -> None:
    session = opened()
    session.snapshot("taken")
    with pytest.raises(NameTaken):
        session.fork(count=2, names=["free", "taken"])
    with pytest.raises(NameTaken):
        session.fork(count=2, names=["same", "same"])
    with pytest.raises(InvalidArgument):
        session.fork(count=2, names=["one"])
    with pytest.raises(InvalidArgument):
        session.fork(count=0)
    assert len(session.capsules()) == 2
    assert [branch.name for branch in session.fork(count=2, names=["x", "y"])] == ["x", "y"]


@pytest.mark.parametrize("rows", [-1, 65])
def test_a_row_count_outside_of_the_buffer_is_refused(rows: int) -> None:
    session = opened()
    with pytest.raises(InvalidArgument, match=f"is {rows}; expected 0 .. 64"):
        session.commit(stamp_ns=1, rows=rows)
    assert session.live.number == 0


def test_events_are_numbered_without_a_gap_and_carry_what_happened() -> None:
    session, events = opened(auto=AutoSnapshots(every=2)), []
    unsubscribe = session.subscribe(events.append)
    step(session)
    step(session)
    session.snapshot("a")
    session.restore("a")
    session.rollback(count=2)
    session.raise_epoch()
    session.fork("a")
    session.move("a", "host")
    session.drop("a")
    session.reset()
    kinds = " ".join(str(event.kind) for event in events)
    assert kinds == "commit commit snapshot snapshot restore rollback epoch fork move drop reset"
    assert [event.index for event in events] == list(range(len(events)))
    restored = events[4]
    assert restored.report.capsule.name == restored.capsule.name == "a"
    assert [event.epoch for event in events][-1] == session.epoch == 4
    unsubscribe()
    step(session)
    assert len(events) == len(kinds.split())


def test_a_subscriber_that_raises_breaks_nothing() -> None:
    session, seen = opened(), []

    def broken(event: Event) -> None:
        raise RuntimeError("mine")

    session.subscribe(broken)
    session.subscribe(seen.append)
    step(session)
    assert session.subscriber_failures == 1
    assert [event.kind for event in seen] == [EventKind.COMMIT]


def test_a_verb_from_a_subscriber_is_refused() -> None:
    session, caught = opened(), []

    def meddle(event: Event) -> None:
        try:
            session.snapshot()
        except InternalFault as fault:
            caught.append(str(fault))

    session.subscribe(meddle)
    step(session)
    assert len(caught) == 1
    assert "use submit()" in caught[0]


def test_submitted_verbs_run_in_order_on_the_thread_that_serves() -> None:
    session, threads = opened(), []
    step(session)
    futures: list[Future[Capsule]] = []

    def freeze(number: int, served: Session) -> Capsule:
        threads.append(threading.get_ident())
        return served.snapshot(f"n{number}")

    def ask() -> None:
        futures.extend(session.submit(partial(freeze, number)) for number in range(5))

    asker = threading.Thread(target=ask)
    asker.start()
    asker.join()
    assert not any(future.done() for future in futures)
    assert session.serve() == 5
    assert [future.result().name for future in futures] == [f"n{n}" for n in range(5)]
    assert set(threads) == {threading.get_ident()}


def test_a_submitted_verb_that_is_refused_answers_with_its_fault() -> None:
    session = opened()
    future = session.submit(lambda s: s.restore("nobody"))
    session.serve()
    with pytest.raises(UnknownCapsule):
        future.result()
    step(session)


def test_a_cancelled_verb_does_not_run() -> None:
    session = opened()
    future = session.submit(lambda s: s.snapshot("never"))
    assert future.cancel()
    session.serve()
    with pytest.raises(CancelledError):
        future.result()
    with pytest.raises(UnknownCapsule):
        session.store.find("never")


def test_serve_wakes_up_for_a_verb() -> None:
    session = opened()
    timer = threading.Timer(0.05, lambda: session.submit(lambda s: s.snapshot("late")))
    timer.start()
    assert session.serve(timeout=30) == 1
    timer.join()


def test_close_answers_every_pending_verb_and_all_later_ones() -> None:
    session = opened()
    pending = [session.submit(lambda s: s.snapshot()) for _ in range(3)]
    session.close()
    pending.append(session.submit(lambda s: s.snapshot()))
    for future in pending:
        with pytest.raises(Cancelled):
            future.result(timeout=5)
    with pytest.raises(Cancelled):
        session.snapshot()


def test_automatic_snapshots_thin_out_with_age_within_their_budget() -> None:
    session = opened(auto=AutoSnapshots(keep=12, budget_bytes=1 << 30))
    for _ in range(60):
        step(session)
    kept = sorted(info.boundary for info in session.capsules() if "auto" in info.tags)
    assert len(kept) == 12
    assert kept[-4:] == [57, 58, 59, 60]
    assert kept[0] <= 20
    gaps = [b - a for a, b in pairwise(kept)]
    assert max(gaps[:4]) > max(gaps[-4:])


def test_automatic_snapshots_keep_to_their_bytes() -> None:
    session = opened(auto=AutoSnapshots(budget_bytes=20 * 512))
    for _ in range(60):
        step(session)
    kept = [info for info in session.capsules() if "auto" in info.tags]
    assert 5 <= len(kept) <= 20
    assert kept[-1].boundary == 60
    assert session.rollback(count=1).boundary == 59


def test_the_snapshot_to_let_go_never_is_the_present() -> None:
    assert least_missed([0, 1, 2, 3, 100]) in (0, 1, 2, 3)
    assert least_missed([1, 2]) == 0


def test_the_lineage_forgets_old_boundaries_but_not_the_stored_ones() -> None:
    from flashrt_ros.runtime.lineage import BoundaryRecord, Lineage

    lineage = Lineage(BoundaryRecord(0, -1, 0, 0, (), ""), limit=64)
    for number in range(1, 200):
        lineage.add(BoundaryRecord(number, number - 1, number, number, (), ""))
    assert len(lineage) <= 64
    assert next(iter(lineage.ancestors())).number == 199
    with pytest.raises(InvalidArgument):
        lineage.target(boundary=3)


def test_a_session_id_is_of_one_run() -> None:
    first = opened(session_id="arm")
    with pytest.raises(InvalidArgument, match="in use"):
        opened(session_id="arm", store=first.store)


def test_the_parent_of_a_capsule_is_its_nearest_stored_ancestor() -> None:
    session = opened()
    first = session.first.id
    step(session)
    one = session.snapshot()
    step(session)
    two = session.snapshot()
    assert [one.meta.parent, two.meta.parent] == [first, one.id]
    session.drop(two)
    step(session)
    assert session.snapshot().meta.parent == one.id
    session.drop(one)
    session.rollback(boundary=1, nearest=True)
    step(session)
    assert session.snapshot().meta.parent == first
