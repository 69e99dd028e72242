# SPDX-License-Identifier: Apache-2.0
"""Exactness: what is restored is what was frozen, and what follows is what would have followed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from flashrt_ros.runtime import (
    Arena,
    Fingerprint,
    Kind,
    Layout,
    Role,
    Session,
    StateItem,
    Store,
    Tier,
)
from flashrt_ros.runtime.audit import audit, fill_with_garbage
from flashrt_ros.runtime.errors import FingerprintMismatch, InvalidArgument, NeedsReset
from flashrt_ros.runtime.testing import ToyHybrid

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


class Running:
    """A toy program, its session, and the tokens that it says."""

    def __init__(self, seed: int = 3, device: str = "cpu", **options: object) -> None:
        layout = options.pop("layout", Layout.SHAPE)
        self.program = ToyHybrid(device=device)
        self.arena = Arena(self.program.buffer_specs(), device, layout=layout)  # type: ignore[arg-type]
        self.program.bind(self.arena, seed=seed)
        self.session = Session(
            self.arena,
            fingerprint=self.program.fingerprint,
            seed=seed,
            **options,  # type: ignore[arg-type]
        )

    def run(self, steps: int) -> list[str]:
        """Digest of every buffer after each step."""
        digests = []
        for _ in range(steps):
            self.program.step(self.session.live.step)
            self.session.commit(stamp_ns=self.session.live.step + 1)
            digests.append(self.session.digest())
        return digests

    def tokens(self) -> list[int]:
        return self.arena["io.tokens"][: int(self.arena["meta.tokens"])].tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("length", [1, 31, 200])  # 200 steps cross the buckets 64 and 256
def test_a_restored_run_goes_on_as_the_first_one(length: int, layout: Layout, device: str) -> None:
    run = Running(device=device, layout=layout)
    run.run(length)
    run.session.snapshot("here")
    expected = run.run(12)
    tokens = run.tokens()
    for _ in range(10):  # the same capsule ten times gives the same run ten times
        run.session.restore("here")
        assert run.run(12) == expected
        assert run.tokens() == tokens


@pytest.mark.parametrize("border", [63, 64, 65, 255, 256, 257])
def test_a_restore_at_a_bucket_border_goes_on_as_the_first_run(border: int) -> None:
    run = Running()
    while int(run.arena["meta.rows"]) < border - 2:
        run.run(1)
    while int(run.arena["meta.rows"]) <= border + 2:
        run.session.snapshot("here", overwrite=True)
        expected = run.run(4)
        run.session.restore("here")
        assert run.run(4) == expected
        run.session.restore("here")
        run.run(1)


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_a_capsule_moved_away_and_back_is_unchanged(tier: Tier, tmp_path) -> None:
    run = Running(store=Store(directory=tmp_path))
    run.run(20)
    run.session.snapshot("here")
    expected = run.run(8)
    assert run.session.move("here", tier).tier is tier
    run.session.restore("here")
    assert run.run(8) == expected
    run.session.move("here", tier)
    assert run.session.move("here", Tier.DEVICE).tier is Tier.DEVICE
    run.session.restore("here")
    assert run.run(8) == expected


def test_a_capsule_restored_into_another_arena_goes_on_there() -> None:
    run = Running()
    other = Running(seed=4, store=run.session.store)
    other.run(9)
    run.run(20)
    run.session.snapshot("here")
    expected = run.run(8)
    fill_with_garbage(other.arena, 1)
    report = other.session.restore("here")
    assert other.session.seed == 3
    assert other.session.live.origin == f"{run.session.id}:20"
    assert report.rows_copied > 0
    assert other.run(8) == expected


def test_two_sessions_of_one_store_do_not_see_each_other() -> None:
    alone = Running(seed=4)
    expected = alone.run(30)
    store = Store()
    one, two = Running(seed=3, store=store), Running(seed=4, store=store)
    seen = []
    for _ in range(30):
        one.run(1)
        one.session.snapshot()
        seen += two.run(1)
        two.session.snapshot()
    assert seen == expected


def test_branches_of_a_fork_part_without_touching_each_other() -> None:
    run = Running()
    run.run(20)
    branches = run.session.fork(count=4)
    ends = {}
    for number, branch in enumerate(branches):
        run.session.restore(branch)
        run.program.step(100 + number)
        run.session.commit(stamp_ns=1)
        ends[run.session.snapshot().id] = run.session.digest()
    assert len(set(ends.values())) == 4
    for capsule_id, digest in ends.items():
        assert run.session.restore(capsule_id, digest=True).state_digest == digest


def test_rows_that_are_live_already_are_not_copied() -> None:
    run = Running()
    run.run(40)
    run.session.snapshot("here")
    rows = int(run.arena["meta.rows"])
    run.run(10)
    report = run.session.rollback(count=10)
    assert report.rows_copied == 0
    assert report.rows_shared == rows + 40  # keys and values, and one token a step
    assert report.bytes_shared > 0
    assert report.steps_not_recomputed == 40


def test_a_later_snapshot_costs_the_fixed_bytes_and_the_rows_since() -> None:
    run = Running()
    run.run(40)
    run.session.snapshot("first")
    before = dict(run.session.live.rows)
    run.run(6)
    info = run.session.store.info(run.session.snapshot("second"))
    fresh = {name: rows - before[name] for name, rows in run.session.live.rows}
    groups = {group.counter: group.layout.row_nbytes for group in run.arena.groups}
    rows = sum(fresh[name] * groups[name] for name in fresh)
    assert info.own_bytes == run.arena.geometry.fixed_nbytes + rows
    assert info.shared_bytes == sum(before[name] * groups[name] for name in before)


@pytest.mark.parametrize(
    "role", [Role.RECURRENT, Role.CONV, Role.MTP, Role.KV, Role.RANDOM, Role.META, Role.ACTION]
)
def test_a_restore_without_one_role_diverges(role: Role) -> None:
    run = Running()
    run.run(30)
    run.session.snapshot("here")
    expected = run.run(6)
    for index in range(40):  # elsewhere: other inputs, other rows
        run.program.step(500 + 2 * index)
        run.session.commit(stamp_ns=1)
    run.session.snapshot("elsewhere")
    run.session.restore("here", roles=set(Role))
    assert continued(run, 30) == expected
    # start elsewhere, with its rows in place of those that the capsule has
    run.session.restore("elsewhere")
    overwrite_rows(run)
    run.session.restore("here", roles=set(Role) - {role})
    assert continued(run, 30) != expected


def overwrite_rows(run: Running) -> None:
    for spec in run.arena.table:
        if spec.kind is Kind.APPEND and spec.role is Role.KV:
            run.arena[spec.name].fill_(0.5)


def continued(run: Running, step: int, steps: int = 6) -> list[str]:
    """The steps that followed step 30; an ablated boundary counts its own steps."""
    digests = []
    for index in range(step, step + steps):
        run.program.step(index)
        run.session.commit(stamp_ns=1)
        digests.append(run.session.digest())
    return digests


def test_an_ablated_restore_is_a_root_of_its_own() -> None:
    run = Running()
    run.run(5)
    run.session.snapshot("here")
    run.run(5)
    report = run.session.restore("here", roles=["recurrent", "conv"])
    assert set(report.restored) == {"recurrent.state", "conv.window"}
    live = run.session.live
    assert (live.parent, live.ablated, live.number, live.step) == (-1, True, 11, 10)
    assert report.rows_copied == 0


def test_registered_state_comes_back_with_the_buffers() -> None:
    said = {"instruction": "press the red block"}
    run = Running()
    run.session.register_state(
        StateItem("said", lambda: dict(said), check_words, lambda value: said.update(value))
    )
    run.run(3)
    capsule = run.session.snapshot("here")
    said["instruction"] = "press the blue block"
    report = run.session.restore("here")
    assert said["instruction"] == "press the red block"
    assert "said" in report.restored
    assert run.session.store.info(capsule).state("said") == said
    said["instruction"] = "none"
    run.session.reset()
    assert said["instruction"] == "press the red block"


def check_words(value: dict[str, str]) -> None:
    if "blue" in value["instruction"]:
        raise ValueError("unknown word 'blue'")


def test_a_refused_state_item_leaves_everything_as_it_was() -> None:
    said = {"instruction": "press the blue block"}
    run = Running()
    run.session.register_state(
        StateItem("said", lambda: dict(said), check_words, lambda value: said.update(value))
    )
    run.run(3)
    run.session.snapshot("here")
    said["instruction"] = "press the red block"
    run.run(2)
    before, epoch = run.session.digest(), run.session.epoch
    with pytest.raises(InvalidArgument, match="unknown word 'blue'"):
        run.session.restore("here")
    assert (run.session.digest(), run.session.epoch) == (before, epoch)
    assert said["instruction"] == "press the red block"
    run.run(1)


def test_a_capsule_without_a_registered_item_is_refused() -> None:
    run = Running()
    bare = Running(store=run.session.store)
    bare.session.snapshot("bare")
    run.session.register_state(StateItem("x", lambda: 1, lambda v: None, lambda v: None))
    with pytest.raises(FingerprintMismatch, match="carries the state items"):
        run.session.restore("bare")


def test_a_copy_that_fails_half_way_leaves_only_reset() -> None:
    run = Running()
    broken = {"on": False}

    def set_item(value: object) -> None:
        if broken["on"]:
            raise OSError("gone")

    run.session.register_state(StateItem("x", lambda: 1, lambda v: None, set_item))
    first = run.session.digest()
    run.run(4)
    run.session.snapshot("here")
    run.run(4)
    broken["on"] = True
    with pytest.raises(NeedsReset, match="gone"):
        run.session.restore("here")
    verbs = [
        lambda: run.session.commit(stamp_ns=1),
        lambda: run.session.snapshot(),
        lambda: run.session.restore("here"),
        lambda: run.session.rollback(count=1),
        lambda: run.session.fork(),
        lambda: run.session.raise_epoch(),
    ]
    for verb in verbs:
        with pytest.raises(NeedsReset):
            verb()
    broken["on"] = False
    assert run.session.reset(digest=True).state_digest == first
    run.run(2)


def test_a_foreign_fingerprint_is_refused_by_the_field_that_differs() -> None:
    run = Running()
    other = ToyHybrid()
    arena = Arena(other.buffer_specs())
    other.bind(arena, seed=1)
    session = Session(
        arena, fingerprint=Fingerprint("toy-hybrid", weights="abc"), store=run.session.store
    )
    run.run(2)
    run.session.snapshot("here")
    before = session.digest()
    with pytest.raises(FingerprintMismatch, match="weights is 'abc' here, '' there"):
        session.restore("here")
    assert session.digest() == before


def test_diff_names_what_changed_between_two_capsules() -> None:
    run = Running()
    run.run(4)
    run.session.snapshot("a")
    run.arena["conv.window"][0, 0] += 0.25
    diffs = run.session.diff("a")
    assert [diff.name for diff in diffs] == ["conv.window"]
    assert diffs[0].largest == pytest.approx(0.25)
    run.run(1)
    names = {diff.name for diff in run.session.diff("a", run.session.snapshot())}
    assert {"recurrent.state", "attention.key", "meta.rows"} <= names
    assert not run.session.diff("a", "a")


def test_a_fresh_process_goes_on_bit_for_bit_in_its_own_arena() -> None:
    report = audit("flashrt_ros.runtime.testing:ToyHybrid", steps=5)
    assert report.ok, report
    assert set(report.trials) == {
        "driven elsewhere",
        "restored again",
        "arena of garbage",
        "fresh process",
    }


def test_the_audits_find_a_python_counter_and_a_tensor_outside_of_the_arena() -> None:
    command = [sys.executable, "-m", "flashrt_ros.cli", "capsule", "audit"]
    subject = "flashrt_ros.runtime.testing:LeakyHybrid"
    done = subprocess.run([*command, subject, "--steps", "2"], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "driven elsewhere: differs first in recurrent.state, step 1" in done.stdout
    assert "kept as 'hidden'" in done.stdout
    assert "NOT CLOSED" in done.stdout
