# SPDX-License-Identifier: Apache-2.0
"""Compiled plans: one call of what was compiled, kept on disk, and checked against the function."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashrt_ros.runtime import Arena, Backend, BufferSpec, Plan, Role, ShapeKey
from flashrt_ros.runtime.compiled import cache_directory, compile_static
from flashrt_ros.runtime.errors import InternalFault

KEY = ShapeKey(1, 0)


def arena_of(*names: str) -> Arena:
    return Arena([BufferSpec(name, Role.ACTION, torch.float32, (8,)) for name in names])


@pytest.mark.slow
def test_a_replay_reads_the_buffers_anew_and_evaluates_no_guard(monkeypatch) -> None:
    arena = arena_of("chunk")
    asked: list[int] = []

    def step(key: ShapeKey) -> None:
        arena["chunk"].mul_(2.0).add_(1.0)

    plan = Plan("p", step, [KEY], Backend.COMPILED)
    plan.capture(arena)
    assert plan.active is Backend.COMPILED, plan.fallback_reason
    monkeypatch.setattr(plan, "fn", asked.append)
    torch._dynamo.reset()  # what evaluates guards forgets what it compiled: a replay needs none
    for _ in range(3):
        plan.replay(KEY)
    assert arena["chunk"].tolist() == [7.0] * 8
    assert not asked


@pytest.mark.slow
def test_a_result_that_differs_from_the_function_s_is_not_used() -> None:
    """The order in which Inductor numbers these two makes it lose the old chunk (torch 2.13)."""
    arena = arena_of("chunk", "previous")

    def step(key: ShapeKey) -> None:
        fresh = (arena["chunk"] * 2 + 1).sin()
        arena["previous"].copy_(arena["chunk"])
        arena["chunk"].copy_(fresh)

    plan = Plan("p", step, [KEY], Backend.COMPILED)
    plan.capture(arena)
    plan.replay(KEY)
    before = arena["chunk"].clone()
    plan.replay(KEY)
    assert torch.equal(arena["previous"], before)
    if plan.active is Backend.EAGER:
        assert "other values in buffer previous" in plan.fallback_reason


@pytest.mark.slow
def test_a_computation_over_other_tensors_at_each_call_is_refused() -> None:
    held = [torch.zeros(4), torch.ones(4)]

    def step() -> None:
        held[0].add_(1.0)
        held.reverse()

    with pytest.raises(InternalFault, match="other tensors at the second call"):
        compile_static(step)


SECOND_START = """
import sys, torch
from flashrt_ros.runtime import Arena, Backend, BufferSpec, Plan, Role, ShapeKey
arena = Arena([BufferSpec("x", Role.ACTION, torch.float32, (8,))])
def step(key):
    arena["x"].mul_(2.0).add_(1.0).sin_()
plan = Plan("p", step, [ShapeKey(1, 0)], Backend.COMPILED)
plan.capture(arena)
assert plan.active is Backend.COMPILED, plan.fallback_reason
print(plan.made)
"""


@pytest.mark.slow
def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    made = [
        int(
            subprocess.run(
                [sys.executable, "-c", SECOND_START],
                env=environment, check=True, capture_output=True, text=True,
                cwd=Path(__file__).parents[1],
            ).stdout
        )
        for _ in range(2)
    ]  # fmt: skip
    assert made == [1, 0]
    assert (tmp_path / "flashrt_ros" / "inductor").is_dir()


def test_compiled_code_is_kept_in_the_user_s_cache(monkeypatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory() == Path("/somewhere/flashrt_ros/inductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert cache_directory() == Path("/elsewhere")


@pytest.mark.slow
def test_what_is_not_one_graph_is_compiled_in_parts() -> None:
    arena = arena_of("chunk")

    def step(key: ShapeKey) -> None:
        arena["chunk"].add_(1.0)
        torch._dynamo.graph_break()
        arena["chunk"].mul_(2.0)

    plan = Plan("p", step, [KEY], Backend.COMPILED)
    plan.capture(arena)
    assert plan.active is Backend.COMPILED, plan.fallback_reason
    plan.replay(KEY)
    assert arena["chunk"].tolist() == [2.0] * 8
