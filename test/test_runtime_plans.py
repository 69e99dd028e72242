# SPDX-License-Identifier: Apache-2.0
"""Captured plans: same results, nothing moved, nothing captured again."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.runtime import Arena, Backend, Plan, ShapeKey, bucket_for
from flashrt_ros.runtime.errors import InternalFault, InvalidArgument, Unsupported
from flashrt_ros.runtime.testing import ToyHybrid
from flashrt_ros.runtime.transfer import state_digest


def tokens_of(program: ToyHybrid, steps: int) -> tuple[list[int], Arena]:
    arena = Arena(program.buffer_specs(), program.device)
    program.bind(arena, seed=1)
    for index in range(steps):
        program.step(index)
    return arena["io.tokens"][:steps].tolist(), arena


def test_capture_leaves_the_state_as_it_was() -> None:
    program = ToyHybrid()
    arena = Arena(program.buffer_specs())
    calls = []
    plan = Plan("p", lambda key: calls.append(key), [ShapeKey(1, 4), ShapeKey(2, 4)])
    arena["conv.window"].fill_(2.0)
    before = state_digest(arena, {"meta.rows": 0, "meta.tokens": 0})
    plan.capture(arena)
    assert arena.sealed
    assert state_digest(arena, {"meta.rows": 0, "meta.tokens": 0}) == before
    calls.clear()  # capturing warms up
    plan.replay(ShapeKey(2, 4))
    assert calls == [ShapeKey(2, 4)]


def test_a_key_that_was_not_captured_is_refused() -> None:
    plan = Plan("p", lambda key: None, [ShapeKey(1, 64)])
    with pytest.raises(InvalidArgument, match="plan p has no"):
        plan.replay(ShapeKey(2, 64))
    compiled = Plan("p", lambda key: None, [ShapeKey(1, 64)], Backend.COMPILED)
    with pytest.raises(InternalFault, match="not captured"):
        compiled.replay(ShapeKey(1, 64))


def test_cuda_graphs_on_cpu_are_refused() -> None:
    program = ToyHybrid(backend=Backend.CUDA_GRAPH)
    with pytest.raises(Unsupported, match="CUDA graphs need a CUDA device"):
        program.bind(Arena(program.buffer_specs()), seed=1)


def test_a_replay_that_replaces_a_buffer_is_found() -> None:
    program = ToyHybrid()
    arena = Arena(program.buffer_specs())
    key = ShapeKey(1, 64)
    plan = Plan("p", lambda _: arena["conv.window"].set_(torch.zeros(3, 16)), [key])
    assert plan.prove(key, arena).moved == ("conv.window",)


def test_the_smallest_bucket_that_fits_is_taken() -> None:
    assert [bucket_for(rows, (256, 64)) for rows in (0, 63, 64, 65, 256)] == [64, 64, 64, 256, 256]
    with pytest.raises(InvalidArgument, match="257 rows do not fit"):
        bucket_for(257, (64, 256))


def test_a_plan_that_cannot_be_compiled_runs_eagerly_and_says_why() -> None:
    program = ToyHybrid(backend=Backend.COMPILED)
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}):  # type: ignore[attr-defined]
        tokens, _ = tokens_of(program, 12)
    plan = program._plan
    assert plan.active is Backend.EAGER
    assert plan.fallback_reason
    assert tokens == tokens_of(ToyHybrid(), 12)[0]


@pytest.mark.slow
def test_a_compiled_plan_says_the_same_tokens_and_compiles_nothing_at_a_replay() -> None:
    program = ToyHybrid(backend=Backend.COMPILED, capacity=64)
    tokens, arena = tokens_of(program, 20)
    assert program._plan.active is Backend.COMPILED, program._plan.fallback_reason
    assert tokens == tokens_of(ToyHybrid(capacity=64), 20)[0]
    proof = program._plan.prove(ShapeKey(1, 64), arena)
    assert (proof.moved, proof.compilations) == ((), 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_graph_says_the_same_tokens_and_allocates_nothing() -> None:
    program = ToyHybrid(backend=Backend.CUDA_GRAPH, device="cuda")
    tokens, arena = tokens_of(program, 40)
    assert tokens == tokens_of(ToyHybrid(device="cuda"), 40)[0]
    proof = program._plan.prove(ShapeKey(1, 64), arena)
    assert (proof.moved, proof.device_allocations, proof.compilations) == ((), 0, 0)
