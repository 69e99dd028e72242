# SPDX-License-Identifier: Apache-2.0
"""A store knows its totals at any time without looking at its capsules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flashrt_ros.runtime import (
    Arena,
    AutoSnapshots,
    BufferSpec,
    Fingerprint,
    Kind,
    Role,
    Session,
    Store,
    Tier,
)
from flashrt_ros.runtime.errors import InvalidArgument

SPECS = [
    BufferSpec("meta.rows", Role.META, torch.int64, ()),
    BufferSpec("state", Role.RECURRENT, torch.float32, (1024,)),
    BufferSpec("key", Role.KV, torch.float32, (512, 16), Kind.APPEND, 0, "meta.rows"),
]


def advance(session: Session, boundary: int) -> None:
    session.arena["state"].fill_(boundary)
    session.arena["meta.rows"].fill_(8 * boundary)
    session.commit(stamp_ns=boundary)


def counted(store: Store) -> tuple[int, int, int]:
    """The totals, by looking at every capsule."""
    rows = {row.tier: row for row in store.statistics()}
    files = {c.id: c.stored.header.nbytes for c in store.catalog if c.stored is not None}
    memory = sum(rows[tier].used_bytes for tier in (Tier.DEVICE, Tier.HOST))
    return len(list(store.catalog)), memory, sum(files.values())


def test_totals_are_what_counting_every_capsule_gives(tmp_path: Path) -> None:
    store = Store(directory=tmp_path)
    session = Session(Arena(SPECS), fingerprint=Fingerprint("totals"), store=store)

    def totals() -> tuple[int, int, int]:
        found = store.totals()
        return found.capsules, found.memory_bytes, found.disk_bytes

    seen = [totals()]
    for boundary in range(1, 5):
        advance(session, boundary)
        session.snapshot(f"at{boundary}")
        assert totals() == counted(store)
        seen.append(totals())
    session.move("at2", Tier.DISK)
    assert totals() == counted(store)
    assert totals()[2] > 0
    session.restore("at2")
    assert totals() == counted(store)
    for name in ("at2", "at3", "at1", "at4"):
        session.drop(name)
        assert totals() == counted(store)
    assert totals() == seen[0]
    store.close()


def test_totals_of_a_directory_are_known_when_it_is_opened(tmp_path: Path) -> None:
    first = Store(directory=tmp_path)
    session = Session(Arena(SPECS), fingerprint=Fingerprint("totals"), store=first)
    advance(session, 1)
    session.snapshot("kept")
    session.move("kept", Tier.DISK)
    first.close()
    assert Store(directory=tmp_path).totals().disk_bytes == first.totals().disk_bytes > 0


def test_another_rule_for_automatic_snapshots_holds_from_the_next_boundary_on() -> None:
    store = Store()
    auto = AutoSnapshots(keep=8)
    session = Session(Arena(SPECS), fingerprint=Fingerprint("totals"), store=store, auto=auto)
    for boundary in range(1, 9):
        advance(session, boundary)
    assert store.totals().capsules == 9  # with the first
    session.keep_automatically(AutoSnapshots(keep=2))
    advance(session, 9)
    assert store.totals().capsules == 3


def test_a_session_without_automatic_snapshots_refuses_a_rule_for_them() -> None:
    session = Session(Arena(SPECS), fingerprint=Fingerprint("totals"))
    with pytest.raises(InvalidArgument, match="takes no automatic snapshots"):
        session.keep_automatically(AutoSnapshots())
