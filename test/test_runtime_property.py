# SPDX-License-Identifier: Apache-2.0
"""Random interleavings of every verb, against a model that deep-copies everything.

The model is naive on purpose: a dict of numpy arrays for each capsule. Two live states share one
store over three tiers, so rows are shared between capsules, sessions and tiers all the time.
FLASHRT_PROPERTY_STEPS sets how many rules run (default 10,000).
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from flashrt_ros.runtime import (
    Arena,
    BufferSpec,
    Fingerprint,
    Kind,
    Role,
    Session,
    StateItem,
    Store,
)
from flashrt_ros.runtime.errors import (
    InUse,
    InvalidArgument,
    NameTaken,
    NoSpace,
    NotStored,
    StaleBoundary,
    UnknownCapsule,
)
from flashrt_ros.runtime.tiers import Budgets, parts_of

_CAPACITY = 96
_STEPS = int(os.environ.get("FLASHRT_PROPERTY_STEPS", "10000"))
_PER_EXAMPLE = 100
_SPECS = (
    BufferSpec("meta.rows", Role.META, torch.int64, ()),
    BufferSpec("meta.notes", Role.META, torch.int64, ()),
    BufferSpec("recurrent", Role.RECURRENT, torch.float32, (3, 5)),
    BufferSpec("random.step", Role.RANDOM, torch.int64, ()),
    BufferSpec("key", Role.KV, torch.bfloat16, (2, _CAPACITY, 3), Kind.APPEND, 1, "meta.rows"),
    BufferSpec("value", Role.KV, torch.float32, (_CAPACITY, 4), Kind.APPEND, 0, "meta.rows"),
    BufferSpec("notes", Role.IO, torch.uint8, (_CAPACITY,), Kind.APPEND, 0, "meta.notes"),
)
# how often each verb is drawn
_MIX = {
    "step": 30,
    "snapshot": 14,
    "restore": 14,
    "rollback": 8,
    "drop": 6,
    "move": 6,
    "fork": 4,
    "restore_one_role": 3,
    "persist": 3,
    "flush": 2,
    "refuse_stale": 2,
    "reset": 2,
    "squeeze": 2,
    "reload": 1,
}
_APPEND = {spec.name: spec for spec in _SPECS if spec.kind is Kind.APPEND}

State = dict[str, np.ndarray]


def image_of(arena: Arena) -> State:
    """Every buffer's bytes; of append buffers the valid rows."""
    state = {}
    for spec in _SPECS:
        tensor = arena[spec.name]
        if spec.kind is Kind.APPEND:
            rows = int(arena[spec.row_counter])
            tensor = tensor.movedim(spec.row_dim, 0)[:rows]
        state[spec.name] = tensor.contiguous().view(-1).view(torch.uint8).numpy().copy()
    return state


def fill_with_garbage(arena: Arena, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name in _APPEND:
        noise = torch.randint(1, 99, arena[name].shape, generator=generator)
        arena[name].copy_(noise.to(arena[name].dtype))
    arena.fixed.random_(0, 255, generator=generator)
    for counter in ("meta.rows", "meta.notes"):
        arena[counter].fill_(int(torch.randint(0, _CAPACITY, (), generator=generator)))


@dataclass
class Kept:
    """What the model knows of a capsule."""

    state: State
    note: str
    session: int
    boundary: int
    step: int
    name: str = ""


@dataclass
class Live:
    """One session and the model of its live state."""

    session: Session
    state: State
    note: str = ""
    step: int = 0
    parents: dict[int, int] = field(default_factory=lambda: {0: -1})
    epoch: int = 0


class Interleavings(RuleBasedStateMachine):
    """Each rule does a verb on the session and the same on the model."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="flashrt-property-"))
        self.values = 0
        self.kept: dict[str, Kept] = {}
        self.lives: list[Live] = []
        self.store = self.new_store()

    def teardown(self) -> None:
        if self.lives:
            self.nothing_is_held_by_nobody()
        self.store.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def nothing_is_held_by_nobody(self) -> None:
        """When all capsules but the first ones are dropped, their memory has come back."""
        assert self.store.flush(30)
        for ref in list(self.kept):
            capsule = self.store.find(ref)
            if not (capsule.pinned and "first" in capsule.meta.tags):
                self.store.drop(capsule)
        held = [part for c in self.store.catalog for part in parts_of(c)]
        expected = sum(part.block.nbytes for part in held)
        pools = self.store.memory.pools.values()
        assert sum(pool.used_bytes for pool in pools) == expected
        assert all(part.block.pool in pools for part in held)

    def new_store(self) -> Store:
        # room for some thirty capsules, so that demotion runs by itself too
        return Store(directory=self.directory, budgets=Budgets(device=64 << 20, host=None))

    def open_live(self, number: int) -> Live:
        arena = Arena(_SPECS)
        fill_with_garbage(arena, number)
        for counter in ("meta.rows", "meta.notes"):
            arena[counter].zero_()
        session = Session(arena, fingerprint=Fingerprint("property"), store=self.store)
        live = Live(session, image_of(arena))
        session.register_state(
            StateItem(
                "note", lambda: live.note, self.check_note, lambda v: setattr(live, "note", v)
            )
        )
        first = session.first
        self.kept[first.id] = Kept(image_of(arena), "", id(session), 0, 0)
        return live

    @staticmethod
    def check_note(value: object) -> None:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no string")

    @initialize()
    def begin(self) -> None:
        self.lives = [self.open_live(number) for number in range(2)]
        draw = random.Random(0)
        for live in self.lives:
            for _ in range(4):
                self.step(live, draw)
                self.snapshot(live, draw)

    def pick(self, draw: random.Random) -> str:
        """A capsule, sooner a young one: the old ones are mostly of boundary 0."""
        ids = sorted(self.kept)
        return ids[max(0, len(ids) - 1 - int(draw.expovariate(0.2)))]

    # -- rules

    @rule(seed=st.integers(0, 2**32 - 1))
    def verb(self, seed: int) -> None:
        """One verb. Hypothesis switches whole rules off in an example; the mix matters here."""
        draw = random.Random(seed)
        who = draw.randrange(2)
        (name,) = draw.choices(list(_MIX), weights=list(_MIX.values()))
        getattr(self, name)(self.lives[who], draw)

    def step(self, live: Live, draw: random.Random) -> None:
        rows, notes = draw.randrange(5), draw.randrange(3)
        cut = draw.choice([0, 0, 0, 0, 3])
        arena = live.session.arena
        self.values += 1
        generator = torch.Generator().manual_seed(self.values)
        for counter, count in (("meta.rows", rows), ("meta.notes", notes)):
            # now and then a replay takes rows back (rejected drafts) and writes others
            start = max(0, int(arena[counter]) - (cut if counter == "meta.rows" else 0))
            stop = min(start + count, _CAPACITY)
            for name, spec in _APPEND.items():
                if spec.row_counter == counter and stop > start:
                    target = arena[name].narrow(spec.row_dim, start, stop - start)
                    fresh = torch.randint(1, 99, target.shape, generator=generator)
                    target.copy_(fresh.to(target.dtype))
            if cut and counter == "meta.rows":
                # rows above the cut must be committed as gone before they are written again
                arena[counter].fill_(start)
                self.commit(live)
            arena[counter].fill_(stop)
        arena["recurrent"].copy_(torch.rand(3, 5, generator=generator))
        arena["random.step"].add_(1)
        live.note = f"note {self.values}"
        self.commit(live)

    def commit(self, live: Live) -> None:
        before = live.session.live
        record = live.session.commit(stamp_ns=self.values, inputs=b"x")
        assert record.parent == before.number
        assert record.step == before.step + 1
        assert record.number > max(live.parents)
        live.parents[record.number] = before.number
        live.step += 1
        live.state = image_of(live.session.arena)

    def snapshot(self, live: Live, draw: random.Random) -> None:
        name, over = draw.choice(["", "", "", "a", "b"]), draw.random() < 0.5
        older = [i for i, kept in self.kept.items() if name and kept.name == name]
        try:
            capsule = live.session.snapshot(name, overwrite=over)
        except NameTaken:
            assert older
            assert not over
            return
        assert not older or over
        for capsule_id in older:
            del self.kept[capsule_id]
        self.kept[capsule.id] = Kept(
            live.state, live.note, id(live.session), capsule.boundary, live.step, name
        )

    def arrived(self, live: Live, kept: Kept, boundary: int, epoch: int) -> None:
        assert epoch == live.epoch + 1
        live.epoch = epoch
        if kept.session == id(live.session):
            assert boundary == kept.boundary
        else:
            assert boundary > max(live.parents)
            live.parents[boundary] = -1
        live.state, live.step = kept.state, kept.step
        assert live.note == kept.note

    def restore(self, live: Live, draw: random.Random) -> None:
        ref = self.pick(draw)
        report = live.session.restore(ref, expected_boundary=live.session.live.number)
        self.arrived(live, self.kept[ref], report.boundary, report.epoch)

    def restore_one_role(self, live: Live, draw: random.Random) -> None:
        ref, role = self.pick(draw), draw.choice([Role.RECURRENT, Role.RANDOM, Role.KV, Role.META])
        kept = self.kept[ref]
        report = live.session.restore(ref, roles=[role])
        expected = dict(live.state)
        for spec in _SPECS:
            if spec.role is role and spec.kind is Kind.FIXED:
                expected[spec.name] = kept.state[spec.name]
            elif spec.role is role:
                # the counters stay: of the capsule's rows only those below them count
                rows = kept.state[spec.name][: live.state[spec.name].size]
                expected[spec.name] = np.concatenate([rows, live.state[spec.name][rows.size :]])
        if role is Role.META:  # rows above the old counters are whatever the arena held
            found = image_of(live.session.arena)
            for name in _APPEND:
                both = min(found[name].size, expected[name].size)
                assert np.array_equal(found[name][:both], expected[name][:both])
                expected[name] = found[name]
        live.state, live.epoch = expected, live.epoch + 1
        live.step = kept.step if role is Role.RANDOM else live.step
        live.parents[report.boundary] = -1
        assert live.session.live.ablated

    def refuse_stale(self, live: Live, draw: random.Random) -> None:
        with pytest.raises(StaleBoundary):
            live.session.restore(self.pick(draw), expected_boundary=10**9)

    def rollback(self, live: Live, draw: random.Random) -> None:
        count, nearest = draw.randrange(1, 7), draw.random() < 0.7
        path = [live.session.live.number]
        while live.parents[path[-1]] >= 0:
            path.append(live.parents[path[-1]])
        stored = {k.boundary: k for k in self.kept.values() if k.session == id(live.session)}
        try:
            report = live.session.rollback(count=count, nearest=nearest)
        except InvalidArgument:
            assert count >= len(path)
            return
        except NotStored:
            older = [number for number in path[count:] if number in stored]
            assert path[count] not in stored
            assert not nearest or not older
            return
        target = path[count]
        if nearest:
            target = next(number for number in path[count:] if number in stored)
        self.arrived(live, self.kept[report.capsule.id], report.boundary, report.epoch)
        assert report.boundary == target

    def reset(self, live: Live, draw: random.Random) -> None:
        report = live.session.reset()
        self.arrived(live, self.kept[report.capsule.id], report.boundary, report.epoch)

    def fork(self, live: Live, draw: random.Random) -> None:
        count = draw.randrange(1, 4)
        if draw.random() < 0.5:
            source = Kept(
                live.state, live.note, id(live.session), live.session.live.number, live.step
            )
            branches = live.session.fork(count=count)
        else:
            ref = self.pick(draw)
            source = self.kept[ref]
            branches = live.session.fork(ref, count=count)
        for branch in branches:
            self.kept[branch.id] = Kept(
                source.state, source.note, source.session, source.boundary, source.step
            )

    def drop(self, live: Live, draw: random.Random) -> None:
        ref = self.pick(draw)
        try:
            live.session.drop(ref)
        except InUse:
            assert self.kept[ref].boundary == 0
            return
        del self.kept[ref]
        with pytest.raises(UnknownCapsule):
            live.session.restore(ref)

    def move(self, live: Live, draw: random.Random) -> None:
        tier = draw.choice(["device", "host", "host", "disk"])
        assert live.session.move(self.pick(draw), tier).tier == tier

    def persist(self, live: Live, draw: random.Random) -> None:
        self.store.persist(self.store.find(self.pick(draw)))

    def squeeze(self, live: Live, draw: random.Random) -> None:
        """A budget that is suddenly small: the next snapshot demotes others in the background."""
        room = draw.choice([0, 2000, 3 << 20])
        self.store.budgets = Budgets(device=room, host=room)
        try:
            capsule = live.session.snapshot(pin=True)
            self.kept[capsule.id] = Kept(
                live.state, live.note, id(live.session), capsule.boundary, live.step
            )
        except NoSpace:
            pass  # all that is there is pinned or leaving
        finally:
            self.store.budgets = Budgets(device=64 << 20, host=None)
        for info in self.lives[0].session.capsules():
            if info.boundary or not info.pinned:
                self.store.pin(self.store.find(info), False)

    def flush(self, live: Live, draw: random.Random) -> None:
        assert self.store.flush(30)

    def reload(self, live: Live, draw: random.Random) -> None:
        """Another process opens the directory: new store, new arenas, only files survive."""
        assert self.store.flush(30)
        files = {c.id for c in self.store.catalog if c.stored is not None}
        self.store.close()
        self.kept = {i: kept for i, kept in self.kept.items() if i in files}
        for kept in self.kept.values():
            kept.session = 0
        self.store = self.new_store()
        assert not self.store.refused
        assert {c.id for c in self.store.catalog} == files
        self.lives = [self.open_live(number + self.values) for number in range(2)]

    # -- what must always hold

    @invariant()
    def live_states_are_those_of_the_model(self) -> None:
        for live in self.lives:
            found = image_of(live.session.arena)
            assert found.keys() == live.state.keys()
            for name, data in found.items():
                assert np.array_equal(data, live.state[name]), name
            assert live.session.live.step == live.step
            assert live.session.epoch == live.epoch

    @invariant()
    def the_store_lists_what_the_model_lists(self) -> None:
        if self.lives:
            listed = {info.id for info in self.lives[0].session.capsules()}
            assert listed == set(self.kept)


def test_every_interleaving_equals_the_model_that_copies_everything() -> None:
    run_state_machine_as_test(
        Interleavings,
        settings=settings(
            max_examples=max(1, _STEPS // _PER_EXAMPLE),
            stateful_step_count=_PER_EXAMPLE,
            deadline=None,
            derandomize="FLASHRT_PROPERTY_STEPS" not in os.environ,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
