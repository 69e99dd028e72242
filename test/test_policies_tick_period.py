# SPDX-License-Identifier: Apache-2.0
"""A policy ticks as often as it was trained to, however fast its camera is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_policies_engine import TICK_NS, Bench

from flashrt_ros.policies import Motion


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Observations come every 0.1 s, the policy is to tick every 0.3 s."""
    made = Bench(observation_timeout=0.0, tick_period=0.3)
    yield made
    made.engine.close()


def show(bench: Bench, count: int) -> list[int]:
    """Show so many observations; which of them were ticked on, by their number from 0."""
    ticked = []
    for number in range(count):
        before = bench.engine.status.ticks
        bench.engine.offer(bench.observation())
        bench.settle()
        if bench.engine.status.ticks > before:
            ticked.append(number)
    return ticked


def test_observations_within_the_period_are_not_ticked_on(bench: Bench) -> None:
    assert show(bench, 7) == [0, 3, 6]


def test_a_camera_that_is_a_little_early_keeps_the_rate(bench: Bench) -> None:
    show(bench, 1)
    bench.now_ns += 2 * TICK_NS - TICK_NS // 4  # the next one comes 0.275 s after the last tick
    assert show(bench, 1) == [0]


def test_an_observation_that_is_not_ticked_on_is_looked_at(bench: Bench) -> None:
    show(bench, 2)
    newest = bench.engine.newest_observation
    assert newest is not None
    assert newest.stamp_ns == bench.now_ns
    assert bench.engine.status.boundary == 1


def test_after_a_verb_the_next_observation_is_due_at_once(bench: Bench) -> None:
    show(bench, 2)
    bench.snapshot("here")
    assert show(bench, 1) == [], "a snapshot changes nothing about motion"
    bench.restore("here", Motion.REPLAN)
    assert show(bench, 4) == [0, 3]
    bench.interrupt()
    assert show(bench, 2) == []
    bench.resume(Motion.REPLAN)
    assert show(bench, 1) == [0]


def test_after_a_fault_the_next_observation_is_due_at_once(bench: Bench) -> None:
    show(bench, 2)
    bench.engine.fault("bad image")
    bench.settle()
    assert show(bench, 4) == [0, 3]


def test_after_a_jump_of_the_clock_the_next_observation_is_due_at_once(bench: Bench) -> None:
    show(bench, 2)
    bench.now_ns -= 500_000_000
    bench.engine.clock_jumped().result(5.0)
    assert show(bench, 4) == [0, 3]


def test_in_lockstep_every_observation_is_ticked_on() -> None:
    bench = Bench(lockstep=True, tick_period=0.3)
    assert show(bench, 3) == [0, 1, 2]
    bench.engine.close()


def test_without_a_period_every_observation_is_ticked_on() -> None:
    bench = Bench(observation_timeout=0.0)
    assert show(bench, 3) == [0, 1, 2]
    bench.engine.close()
