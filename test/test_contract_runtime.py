# SPDX-License-Identifier: Apache-2.0
"""What every device and every kind of plan must do with capsules, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contract import NEEDS_GPU, ON_EACH_DEVICE, FailsOnSynchronisation

from flashrt_ros.runtime import (
    Arena,
    Backend,
    Budgets,
    BufferSpec,
    Fingerprint,
    Kind,
    Role,
    Session,
    ShapeKey,
    Store,
    Tier,
)
from flashrt_ros.runtime.audit import fill_with_garbage
from flashrt_ros.runtime.errors import FingerprintMismatch
from flashrt_ros.runtime.testing import ToyHybrid
from flashrt_ros.runtime.transfer import buffer_digests

each = pytest.mark.parametrize(("device", "backend"), ON_EACH_DEVICE)


class Running:
    """A toy program with a session of its own."""

    def __init__(self, device: str, backend: Backend, store: Store | None = None) -> None:
        self.program = ToyHybrid(device=device, backend=backend, capacity=64)
        self.arena = Arena(self.program.buffer_specs(), device)
        self.program.bind(self.arena, seed=3)
        self.session = Session(self.arena, fingerprint=self.program.fingerprint, store=store)

    def run(self, first: int, steps: int) -> list[dict[str, str]]:
        """The digests of every buffer after each step."""
        seen = []
        for index in range(first, first + steps):
            self.program.step(index)
            rows = {name: self.arena.row_count(name) for name in ("meta.rows", "meta.tokens")}
            self.session.commit(stamp_ns=index, rows=rows)
            seen.append(buffer_digests(self.arena, rows))
        return seen


@each
def test_a_restored_state_goes_on_bit_for_bit(device: str, backend: Backend) -> None:
    one = Running(device, backend)
    one.run(0, 5)
    kept = one.session.snapshot("kept")
    wanted = one.run(5, 6)
    one.run(20, 5)
    for _ in range(3):
        one.session.restore(kept)
        assert one.run(5, 6) == wanted


@each
def test_a_capsule_goes_on_in_another_arena_that_held_garbage(device, backend, tmp_path) -> None:
    one = Running(device, backend, Store(device, directory=tmp_path))
    one.run(0, 5)
    kept = one.session.snapshot("kept")
    one.session.move(kept, Tier.DISK)
    wanted = one.run(5, 4)
    other = Running(device, backend, Store(device, directory=tmp_path))
    fill_with_garbage(other.arena)
    other.session.restore(kept.id)
    assert other.run(5, 4) == wanted


@each
def test_branches_and_a_rollback_do_not_see_each_other(device: str, backend: Backend) -> None:
    one = Running(device, backend)
    one.run(0, 4)
    kept = one.session.snapshot("kept")
    first = one.run(4, 4)
    one.session.restore(kept)
    second = one.run(30, 4)
    assert first != second
    one.session.restore(kept)
    assert one.run(4, 4) == first


@each
def test_a_capsule_that_went_to_the_host_and_back_is_the_same(device, backend) -> None:
    store = Store(device, budgets=Budgets(device=None, host=1 << 30))
    one = Running(device, backend, store)
    one.run(0, 5)
    kept = one.session.snapshot("kept")
    wanted = one.run(5, 3)
    one.session.move(kept, Tier.HOST)
    assert store.info(kept).tier is Tier.HOST
    one.session.restore(kept)
    assert one.run(5, 3) == wanted
    one.session.move(kept, Tier.DEVICE)
    one.session.restore(kept)
    assert one.run(5, 3) == wanted


@each
def test_a_foreign_capsule_is_refused_and_changes_nothing(device, backend, tmp_path) -> None:
    one = Running(device, backend, Store(device, directory=tmp_path))
    one.run(0, 3)
    kept = one.session.snapshot("kept")
    one.session.move(kept, Tier.DISK)
    other = Running(device, backend, Store(device, directory=tmp_path))
    other.session.fingerprint = replace(other.session.fingerprint, weights="others")
    rows = {"meta.rows": 0, "meta.tokens": 0}
    before = buffer_digests(other.arena, rows)
    with pytest.raises(FingerprintMismatch, match="weights"):
        other.session.restore(kept.id)
    assert buffer_digests(other.arena, rows) == before


@each
def test_a_replay_moves_no_buffer_and_allocates_nothing(device, backend) -> None:
    one = Running(device, backend)
    one.run(0, 2)
    proof = one.program._plan.prove(ShapeKey(1, 64), one.arena)
    assert proof.moved == ()
    assert proof.compilations == 0
    assert proof.device_allocations in (0, -1)
    assert (proof.device_allocations == 0) == (backend is Backend.CUDA_GRAPH)


@NEEDS_GPU
def test_graphs_and_eager_plans_say_the_same_tokens() -> None:
    tokens = []
    for backend in (Backend.EAGER, Backend.CUDA_GRAPH):
        one = Running("cuda", backend)
        one.run(0, 20)
        tokens.append(one.arena["io.tokens"][:20].tolist())
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    "waits",
    [
        lambda values: values.sum().item(),
        lambda values: bool(values.any()),
        lambda values: values.nonzero(),
        lambda values: values[values > 1],
        lambda values: values.repeat_interleave(values),
    ],
)
def test_an_operation_that_waits_is_found(waits) -> None:
    with FailsOnSynchronisation(), pytest.raises(AssertionError, match="wait"):
        waits(torch.arange(4))


def test_an_operation_that_does_not_wait_is_let_through() -> None:
    values = torch.arange(4)
    with FailsOnSynchronisation():
        assert values.index_select(0, values.argmax().view(1)).shape == (1,)


DEVICES = [pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=NEEDS_GPU)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("one_block", [False, True])
def test_rows_of_all_layers_are_the_same_in_one_block_and_in_many(device, one_block) -> None:
    layers, shape = 3, (2, 64, 16)
    specs = [BufferSpec("meta.rows", Role.META, torch.int64, ())]
    for layer in range(layers):
        name = f"layer{layer}.key"
        specs.append(BufferSpec(name, Role.KV, torch.float32, shape, Kind.APPEND, 1, "meta.rows"))
    arena = Arena(specs, device, one_block=one_block)
    (group,) = arena.groups
    assert len(group.planes) == layers
    assert [plane.shape[0] for plane in group.merged] == ([2 * layers] if one_block else [])
    session = Session(arena, fingerprint=Fingerprint("rows"), store=Store(device))

    def append(count: int, value: int) -> dict[str, str]:
        start = arena.row_count("meta.rows")
        for layer in range(layers):
            rows = arena[f"layer{layer}.key"][:, start : start + count]
            rows.copy_(torch.arange(rows.numel()).view(rows.shape) + 1000 * layer + value)
        arena["meta.rows"].fill_(start + count)
        session.commit(stamp_ns=1, rows=start + count)
        return buffer_digests(arena, {"meta.rows": start + count})

    append(7, 1)
    first = session.snapshot()
    wanted = append(5, 2)
    second = session.snapshot()
    session.restore(first)
    assert append(5, 3) != wanted
    session.reset()
    assert session.restore(second).rows_copied == 12
    assert buffer_digests(arena, {"meta.rows": 12}) == wanted
