# SPDX-License-Identifier: Apache-2.0
"""Tiers, budgets, and what goes on in the background."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from flashrt_ros.runtime import (
    Arena,
    Budgets,
    BufferSpec,
    Capsule,
    EventKind,
    Fingerprint,
    Kind,
    Layout,
    Role,
    Session,
    Store,
    Tier,
)
from flashrt_ros.runtime.errors import InvalidArgument, NoSpace
from flashrt_ros.runtime.memory import Pool

SIZE = 1 << 16
SPECS = [
    BufferSpec("meta.rows", Role.META, torch.int64, ()),
    BufferSpec("state", Role.RECURRENT, torch.float32, (SIZE // 4,)),
    BufferSpec("key", Role.KV, torch.float32, (4096, 64), Kind.APPEND, 0, "meta.rows"),
]
FIXED = SIZE + 256


def opened(store: Store, **options: object) -> Session:
    return Session(Arena(SPECS), fingerprint=Fingerprint("store"), store=store, **options)  # type: ignore[arg-type]


def step(session: Session, rows: int = 1) -> None:
    start = int(session.arena["meta.rows"])
    session.arena["key"][start : start + rows] = session.live.number
    session.arena["state"].add_(1)
    session.arena["meta.rows"].add_(rows)
    session.commit(stamp_ns=session.live.step + 1)


def tiers(session: Session) -> dict[str, Tier]:
    return {info.name: info.tier for info in session.capsules() if info.name}


def test_a_full_tier_sends_the_least_recently_used_down(tmp_path: Path) -> None:
    room = 5 * FIXED + 16384
    store = Store(directory=tmp_path, budgets=Budgets(device=room, host=0))
    session = opened(store)
    digests = {}
    for name in "abc":
        step(session)
        session.snapshot(name)
        digests[name] = session.digest()
    session.restore("a")  # used now: b is the oldest
    step(session)
    for name in "de":
        session.snapshot(name)
        digests[name] = session.digest()
        assert store.flush(30)
    assert tiers(session)["b"] is Tier.DISK
    assert tiers(session)["e"] is Tier.DEVICE
    assert store.counters.demotions >= 1
    for name, digest in digests.items():
        assert session.restore(name, digest=True).state_digest == digest
        assert store.flush(30)


def test_demotion_goes_by_way_of_the_host(tmp_path: Path) -> None:
    budgets = Budgets(device=2 * FIXED + 4096, host=FIXED + 4096)
    store = Store(directory=tmp_path, budgets=budgets)
    session = opened(store)
    for name in "abcd":
        session.snapshot(name)
        assert store.flush(30)
    found = tiers(session)
    assert found["a"] is Tier.DISK
    assert Tier.HOST in found.values()
    assert found["d"] is Tier.DEVICE


def test_pinned_capsules_stay_and_named_ones_are_never_dropped() -> None:
    store = Store(budgets=Budgets(device=3 * FIXED, host=0))
    session = opened(store)
    session.snapshot("named")
    session.snapshot("pinned", pin=True)
    with pytest.raises(NoSpace, match="pinned, named or leaving"):
        session.snapshot("one-too-many")
    assert set(tiers(session)) == {"named", "pinned"}
    session.drop("named")
    session.snapshot("fits-again")


def test_unnamed_capsules_make_room_and_the_session_says_so() -> None:
    store = Store(budgets=Budgets(device=3 * FIXED, host=0))
    session, dropped = opened(store), []
    session.subscribe(
        lambda event: dropped.append(event.capsule) if event.kind is EventKind.DROP else None
    )
    first = session.snapshot()
    session.snapshot()
    session.snapshot()
    session.commit(stamp_ns=1)
    assert [info.id for info in dropped] == [first.id]
    assert store.counters.evictions == 1


def test_nothing_is_left_in_use_when_everything_was_dropped(tmp_path: Path) -> None:
    store = Store(directory=tmp_path)
    session = opened(store)
    pools = [store.memory.pools[tier] for tier in (Tier.DEVICE, Tier.HOST)]
    before = [pool.used_bytes for pool in pools]
    made: list[Capsule] = []
    for number in range(12):
        step(session, rows=number % 5)
        made += [session.snapshot(), *session.fork(count=2)]
        session.move(made[number], ("device", "host", "disk")[number % 3])
        session.restore(made[-1 - number])
    for capsule in made:
        session.drop(capsule)
    session.reset()
    assert store.flush(30)
    assert [pool.used_bytes for pool in pools] == before
    assert not list((tmp_path / "rows").iterdir())


def test_a_drop_says_what_it_gave_back() -> None:
    session = opened(Store())
    step(session, rows=100)
    session.snapshot("a")
    session.fork("a", names=["b"])
    assert session.drop("a") == 0  # b has it all
    assert session.drop("b") >= FIXED + 100 * 256


def test_sixteen_branches_of_a_long_prefix_share_it() -> None:
    store = Store()
    session = opened(store)
    pool = store.memory.pools[Tier.DEVICE]
    before = pool.used_bytes
    step(session, rows=4000)
    for branch in session.fork(count=16):
        session.restore(branch)
        step(session, rows=2)
        session.snapshot()
    prefix = 4000 * 256
    assert pool.used_bytes - before <= 1.1 * prefix + 17 * FIXED


def test_memory_is_not_recycled_while_somebody_reads_it() -> None:
    store = Store()
    session = opened(store)
    session.arena["state"].fill_(7.0)
    kept = session.snapshot("kept")
    with store.reading(kept) as (image, _):
        seen = image.block.data.view(torch.float32)[-100:]
        thread = threading.Thread(target=session.drop, args=(kept,))
        thread.start()
        thread.join()
        session.arena["state"].fill_(9.0)
        for _ in range(4):
            session.snapshot()
        assert seen.tolist() == [7.0] * 100


def test_a_pool_gives_out_what_came_back() -> None:
    pool = Pool(torch.device("cpu"), keep_bytes=3000)
    blocks = [pool.take(1000) for _ in range(4)]
    addresses = {block.data.data_ptr() for block in blocks}
    for block in blocks:
        block.release()
    assert (pool.used_bytes, pool.free_bytes) == (0, 3000)
    again = [pool.take(1000) for _ in range(3)]
    assert {block.data.data_ptr() for block in again} <= addresses


def test_demotion_in_the_background_while_the_session_goes_on(tmp_path: Path) -> None:
    store = Store(directory=tmp_path, budgets=Budgets(device=6 * FIXED + (1 << 20), host=0))
    session = opened(store)
    digests: dict[str, str] = {}
    for number in range(60):
        step(session, rows=3)
        name = f"n{number}"
        session.snapshot(name)
        digests[name] = session.digest()
        if number % 7 == 6:
            target = f"n{number - 5}"
            assert session.restore(target, digest=True).state_digest == digests[target]
        if number % 11 == 10:
            session.drop(f"n{number - 9}")
            del digests[f"n{number - 9}"]
    assert store.flush(60)
    assert store.counters.demotions > 20
    assert store.counters.failures == 0
    for name, digest in digests.items():
        assert session.restore(name, digest=True).state_digest == digest
    assert not Store(directory=tmp_path).refused


def test_sessions_on_two_threads_share_a_store() -> None:
    store = Store()
    trouble: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            session = opened(store)
            digests = {}
            for number in range(80):
                step(session, rows=1 + (number + seed) % 3)
                capsule = session.snapshot()
                digests[capsule.id] = session.digest()
                if number % 5 == 4:
                    chosen = sorted(digests)[(number * seed) % len(digests)]
                    found = session.restore(chosen, digest=True).state_digest
                    assert found == digests[chosen]
                if number % 6 == 5:
                    session.drop(sorted(digests)[0])
                    del digests[sorted(digests)[0]]
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble


def test_a_store_takes_sessions_of_one_table_and_layout_only() -> None:
    store = Store()
    opened(store)
    with pytest.raises(InvalidArgument, match="its own store"):
        Session(Arena(SPECS[:2]), fingerprint=Fingerprint("store"), store=store)
    with pytest.raises(InvalidArgument, match="its own store"):
        Session(Arena(SPECS, layout=Layout.ROW), fingerprint=Fingerprint("store"), store=store)


def test_statistics_count_what_is_where(tmp_path: Path) -> None:
    store = Store(directory=tmp_path)
    session = opened(store)
    session.snapshot("a")
    session.snapshot("b")
    session.move("b", "disk")
    found = {row.tier: row for row in store.statistics()}
    assert [found[tier].capsules for tier in Tier] == [2, 0, 1]
    assert found[Tier.DEVICE].used_bytes == 2 * FIXED
    assert found[Tier.DISK].used_bytes == SIZE + 8
