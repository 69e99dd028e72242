# SPDX-License-Identifier: Apache-2.0
"""Chunks as they are executed: no jump in any mode, and what is left of one is in its capsule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from execution_rig import MS, TICK_NS, Bench, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st

import flashrt_ros.models
from flashrt_ros.models import load_policy
from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.policies import CommandOutput, EngineState, Motion, Trajectory
from flashrt_ros.policies.action_space import ActionSpaces
from flashrt_ros.policies.execution import ChunkExecutor, Execution, ExecutionOptions, Progress
from flashrt_ros.policies.execution.delay import frozen_points
from flashrt_ros.policies.execution.ensemble import averaged
from flashrt_ros.policies.execution.record import from_record, to_record
from flashrt_ros.policies.execution.splice import joined, rest_of, without_near

SHIPPED = Path(flashrt_ros.models.__file__).parents[1] / "checkpoints" / "cued_reach"
DT = 0.05
FADE = 0.1


def shipped(*, led: bool) -> Any:
    policy = load_policy(SHIPPED)
    policy.guided = led
    return policy


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*arguments: Any, **named: Any) -> Bench:
        made.append(Bench(*arguments, **named))
        return made[-1]

    yield make
    for each in made:
        each.close()


def lipschitz(trajectory: Trajectory) -> float:
    """The steepest slope of any joint."""
    times = np.concatenate(([0.0], trajectory.times))
    positions = np.vstack((trajectory.origin, trajectory.positions))
    return float(np.max(np.abs(np.diff(positions, axis=0)) / np.diff(times)[:, None]))


def chunk_at(stamp_ns: int, positions: np.ndarray) -> Trajectory:
    times = (np.arange(len(positions)) + 1) * DT
    return Trajectory(stamp_ns, times, positions, positions[0].copy())


# -- no jump -------------------------------------------------------------------------------------


class Stub:
    """As much of a policy as the executor looks at; it can be led, and is told so."""

    name = "stub"
    guided = True

    def __init__(self, length: int) -> None:
        self.spec = PolicySpec({}, ("a", "b"), length, DT, 0.1)
        self.told: list[dict[str, int]] = []

    def write_conditioning(self, **numbers: int) -> None:
        self.told.append(numbers)


streams = st.lists(
    st.tuples(
        st.integers(20, 300),  # ms between observations
        st.floats(0.0, 0.99),  # latency, as a share of that
        st.integers(0, 2**32 - 1),  # the chunk
    ),
    min_size=2,
    max_size=8,
)


@pytest.mark.parametrize("mode", list(Execution))
@settings(max_examples=40, deadline=None)
@given(stream=streams, length=st.integers(2, 10))
def test_commanded_position_never_jumps(
    mode: Execution, stream: list[tuple[int, float, int]], length: int
) -> None:
    executor = ChunkExecutor(
        Stub(length),  # type: ignore[arg-type]
        ExecutionOptions(mode=mode, blend_duration=FADE),
        lockstep=False,
        progress=lambda: Progress(None, 0, None),
    )
    stamp_ns, running, members = 0, None, []
    for gap_ms, share, seed in stream:
        stamp_ns += gap_ms * MS
        now_ns = stamp_ns + round(share * gap_ms * MS)
        fresh = chunk_at(stamp_ns, np.random.default_rng(seed).uniform(-1, 1, (length, 2)))
        executor.condition(stamp_ns)
        planned = executor.execute(fresh, now_ns, running)
        members = [each for each in members if each.end_ns > stamp_ns] + [fresh]
        if planned is None:
            assert fresh.end_ns < now_ns + round(DT / 2 * 1e9)
            continue
        before = fresh.origin if running is None else running.at(now_ns)
        due = without_near(planned, now_ns, DT / 2)
        assert due is not None
        after = joined(due, now_ns, before)
        np.testing.assert_array_equal(after.at(now_ns), before)
        target = averaged(members, 0.01) if mode is Execution.ENSEMBLE else fresh
        if running is None or mode is Execution.SYNCHRONOUS:
            bound = max(lipschitz(target), 2.0 / (DT / 2))  # not nearer than half a step
        else:
            bound = max(lipschitz(running), lipschitz(target)) + 2.0 / FADE
        assert lipschitz(after) <= bound * (1 + 1e-9)
        # Sampled as a controller does it: each step is at most what the slope allows.
        moments = np.arange(now_ns, now_ns + 200 * MS, 2 * MS)
        samples = np.stack([after.at(int(moment)) for moment in moments])
        assert np.abs(np.diff(samples, axis=0)).max() <= lipschitz(after) * 0.002 + 1e-9
        running = after


def test_asynchronous_takes_over_from_the_point_that_is_due(bench: Callable[..., Bench]) -> None:
    options = ExecutionOptions(mode=Execution.ASYNCHRONOUS, blend_duration=FADE)
    made = bench(options, latency_ns=30 * MS)
    first = made.tick(10)
    second = made.tick(200, after_ns=70 * MS)
    assert first.running is not None
    assert second.running is not None
    switch_ns = made.now_ns
    assert second.running.start_ns == switch_ns
    np.testing.assert_array_equal(second.running.at(switch_ns), first.running.at(switch_ns))
    # Past points say what was commanded; after the fade the chunk is the policy's own.
    assert second.trajectory.start_ns == switch_ns - 30 * MS
    np.testing.assert_allclose(
        second.trajectory.positions[-1],
        made.policy.chunk()[-1],
        atol=1e-7,
    )


def test_synchronous_sends_what_the_policy_gave(bench: Callable[..., Bench]) -> None:
    made = bench()
    for value in (10, 200, 30):
        sent = made.tick(value).trajectory
        np.testing.assert_array_equal(sent.positions, made.policy.chunk().astype(np.float64))


def test_a_point_due_at_once_is_left_out(bench: Callable[..., Bench]) -> None:
    made = bench(latency_ns=49 * MS)
    sent = made.tick(10)
    assert sent.due is not None
    np.testing.assert_allclose(sent.due.times, [0.10, 0.15])
    assert sent.running is not None
    np.testing.assert_allclose(sent.running.times, [0.051, 0.101])
    assert len(sent.trajectory.times) == 3  # what is recorded is the policy's chunk


def test_chunk_that_is_over_is_not_sent_and_the_arm_holds(bench: Callable[..., Bench]) -> None:
    made = bench(latency_ns=10 * MS)
    made.tick(10)
    made.latency_ns = 200 * MS
    held = made.tick(20)
    assert held.is_hold
    assert "the chunk was over when it was there, 0.20 s" in made.engine.status.reason
    assert made.engine.status.boundary == 2  # the tick counts, and its memory goes on
    made.latency_ns = 0
    assert not made.tick(30).is_hold
    assert made.engine.status.state is EngineState.RUNNING


# -- the modes' own rules ------------------------------------------------------------------------


def test_ensemble_weighs_the_oldest_chunk_with_one() -> None:
    chunks = [chunk_at(index * 50 * MS, np.full((4, 1), float(index))) for index in range(3)]
    mean = averaged(chunks, decay=0.5)
    weights = np.exp(-0.5 * np.arange(3))
    np.testing.assert_allclose(mean.positions[0], weights @ [0.0, 1.0, 2.0] / weights.sum())
    # The oldest ends after the second point, the next after the third.
    np.testing.assert_allclose(mean.positions[2], weights[:2] @ [1.0, 2.0] / weights[:2].sum())
    np.testing.assert_allclose(mean.positions[3], 2.0)


def test_ensemble_begins_anew_after_a_hold(bench: Callable[..., Bench]) -> None:
    made = bench(ExecutionOptions(mode=Execution.ENSEMBLE, blend_duration=0.0))
    for value in (10, 200):
        made.tick(value)
    made.call(made.engine.interrupt)
    made.call(made.engine.resume, Motion.REPLAN)
    sent = made.tick(30).trajectory
    np.testing.assert_array_equal(sent.positions, made.policy.chunk().astype(np.float64))


@pytest.mark.parametrize(
    ("elapsed_ms", "delays_ms", "frozen"),
    [
        (0, [], 1),  # the point under way cannot be changed any more
        (100, [49], 1),
        (100, [50, 10], 2),
        (100, [10, 120], 3),
        (330, [120], 1),  # one point is left
        (350, [120], 1),
        (400, [10], 0),
        (-1, [10], 0),
    ],
)
def test_frozen_points_cover_the_longest_delay(
    elapsed_ms: int, delays_ms: list[int], frozen: int
) -> None:
    delays_ns = [delay * MS for delay in delays_ms]
    found = frozen_points(
        elapsed_ns=elapsed_ms * MS, delays_ns=delays_ns, chunk_dt=DT, chunk_length=8
    )
    assert found == frozen


def test_rtc_goes_on_with_the_points_that_are_due_while_it_thinks(
    bench: Callable[..., Bench],
) -> None:
    made = bench(
        ExecutionOptions(mode=Execution.RTC, blend_duration=0.0),
        policy=shipped(led=True),
        latency_ns=60 * MS,
    )
    made.tick(1)
    before = made.policy.chunk()
    sent = made.tick(2, after_ns=40 * MS)  # 100 ms after the first observation
    assert made.commits()[-1].detail["conditioning"] == {
        "frozen": 2,
        "elapsed_ns": 100 * MS,
        "guidance_milli": 5000,
    }
    np.testing.assert_array_equal(made.policy.chunk()[:2], before[2:4])
    assert made.chunks[-1].frozen_points == 2
    np.testing.assert_allclose(sent.trajectory.positions[1], before[3], atol=1e-7)


@pytest.mark.parametrize("mode", [Execution.SYNCHRONOUS, Execution.RTC])
def test_the_recorded_conditioning_reproduces_every_chunk(
    bench: Callable[..., Bench], mode: Execution
) -> None:
    made = bench(
        ExecutionOptions(mode=mode), policy=shipped(led=mode is Execution.RTC), latency_ns=30 * MS
    )
    gaps = (TICK_NS, 63 * MS, 70 * MS, 101 * MS, 70 * MS)  # off the grid of the chunk's points
    seen = []
    for index, gap_ns in enumerate(gaps):
        made.now_ns += gap_ns
        seen.append(made.observation(index))
        count = len(made.commits())
        made.engine.offer(seen[-1])
        wait_for(lambda count=count: len(made.commits()) > count)
        made.engine.call(lambda session: None)
    other = Bench(policy=shipped(led=False), lockstep=True)
    try:
        for observation, commit in zip(seen, made.commits(), strict=True):
            conditioning = commit.detail.get("conditioning", {})
            assert all(type(value) is int for value in conditioning.values())
            if conditioning:
                other.policy.write_conditioning(**conditioning)
            other.engine.offer(observation)
            count = commit.step
            wait_for(lambda count=count: len(other.commits()) >= count)
            assert other.commits()[-1].detail["chunk_digest"] == commit.detail["chunk_digest"]
    finally:
        other.close()
    if mode is Execution.RTC:
        assert [c.detail["conditioning"]["frozen"] for c in made.commits()] == [0, 1, 1, 1, 1]


def test_a_mode_that_a_policy_cannot_do_is_refused_with_the_reason(
    bench: Callable[..., Bench],
) -> None:
    with pytest.raises(ValueError, match=r"denoises its chunk by flow matching.*toy cannot"):
        bench(ExecutionOptions(mode=Execution.RTC))
    relative = ActionSpaces(relative=(0,))
    with pytest.raises(ValueError, match="needs absolute actions"):
        bench(ExecutionOptions(mode=Execution.RTC), policy=shipped(led=True), spaces=relative)
    with pytest.raises(ValueError, match="without lockstep"):
        bench(ExecutionOptions(simulated_delay=0.05))
    with pytest.raises(ValueError, match="is over before it is there"):
        bench(ExecutionOptions(simulated_delay=0.15), lockstep=True)
    with pytest.raises(ValueError, match="blend_duration is -1"):
        ExecutionOptions(blend_duration=-1.0)


# -- capsules ------------------------------------------------------------------------------------


def test_continue_goes_on_with_what_was_left_of_the_chunk(bench: Callable[..., Bench]) -> None:
    made = bench()
    whole = made.tick(10).trajectory
    made.now_ns += 70 * MS
    made.snapshot("middle")
    made.tick(200)
    made.now_ns += 40 * MS
    assert made.restore("middle", Motion.CONTINUE) is Motion.CONTINUE
    rest = made.commands[-1]
    assert rest.trajectory.start_ns == made.now_ns
    np.testing.assert_allclose(rest.trajectory.times, [0.03, 0.08], atol=1e-12)
    np.testing.assert_array_equal(rest.trajectory.positions, whole.positions[1:])
    # The same capsule again gives the same again.
    assert made.restore("middle", Motion.CONTINUE) is Motion.CONTINUE
    np.testing.assert_array_equal(made.commands[-1].trajectory.positions, rest.trajectory.positions)
    np.testing.assert_array_equal(made.commands[-1].trajectory.times, rest.trajectory.times)


def test_rollback_goes_on_with_the_chunk_of_its_own_boundary(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.tick(10)
    second = made.tick(20).trajectory
    made.tick(200)
    _, applied = made.call(made.engine.rollback, Motion.CONTINUE, count=1)
    assert applied is Motion.CONTINUE
    np.testing.assert_array_equal(made.commands[-1].trajectory.positions, second.positions)


def test_continue_when_the_chunk_was_over_becomes_replan(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.tick(10)
    made.now_ns += 151 * MS
    made.snapshot("over")
    made.tick(20)
    assert made.restore("over", Motion.CONTINUE) is Motion.REPLAN
    assert made.commands[-1].is_hold


def test_resume_after_an_interrupt_goes_on_with_what_was_left(bench: Callable[..., Bench]) -> None:
    made = bench()
    whole = made.tick(10).trajectory
    made.now_ns += 60 * MS
    made.call(made.engine.interrupt)
    made.snapshot("held")
    made.now_ns += 3_000 * MS
    assert made.call(made.engine.resume, Motion.CONTINUE) is Motion.CONTINUE
    rest = made.commands[-1].trajectory
    np.testing.assert_allclose(rest.times, [0.04, 0.09], atol=1e-12)
    np.testing.assert_array_equal(rest.positions, whole.positions[1:])
    made.tick(20)
    assert made.restore("held", Motion.HOLD) is Motion.HOLD
    assert made.call(made.engine.resume, Motion.CONTINUE) is Motion.CONTINUE
    np.testing.assert_array_equal(made.commands[-1].trajectory.positions, rest.positions)


def relative_to(command: CommandOutput, stamp_ns: int) -> tuple[bytes, bytes, int]:
    sent = command.trajectory
    return sent.positions.tobytes(), sent.times.tobytes(), sent.start_ns - stamp_ns


@pytest.mark.parametrize(
    ("mode", "delay"), [(Execution.RTC, 0.0), *((mode, 0.03) for mode in Execution)]
)
def test_lockstep_goes_on_from_a_capsule_in_mid_chunk_bit_for_bit(
    bench: Callable[..., Bench], mode: Execution, delay: float
) -> None:
    options = ExecutionOptions(mode=mode, simulated_delay=delay, ensemble_decay=0.3)
    made = bench(options, policy=shipped(led=True), lockstep=True)
    for value in (1, 2, 3):
        made.tick(value)
    made.snapshot("here")
    stamp_ns = made.now_ns
    first = [relative_to(made.tick(value), stamp_ns) for value in (4, 5, 6)]
    made.now_ns += 7 * TICK_NS
    assert made.restore("here", Motion.CONTINUE) is Motion.CONTINUE
    stamp_ns = made.now_ns
    second = [relative_to(made.tick(value), stamp_ns) for value in (4, 5, 6)]
    assert first == second
    if mode is Execution.RTC:
        assert made.commits()[-3].detail["conditioning"]["frozen"] == 1
        assert made.commits()[-3].detail["conditioning"]["elapsed_ns"] == TICK_NS


def test_a_run_in_lockstep_is_the_same_twice(bench: Callable[..., Bench]) -> None:
    for mode in (Execution.ENSEMBLE, Execution.RTC):
        options = ExecutionOptions(mode=mode, simulated_delay=0.02)
        runs = []
        for _ in range(2):
            made = bench(options, policy=shipped(led=True), lockstep=True)
            runs.append([relative_to(made.tick(value), 0) for value in range(4)])
        assert runs[0] == runs[1], mode


def test_a_capsule_with_another_number_of_joints_is_refused_before_anything_changes(
    bench: Callable[..., Bench],
) -> None:
    made = bench()
    made.tick(10)
    executor = made.engine._executor
    value = executor.state_item().get()
    assert value["trajectory"] is not None
    executor.state_item().check(value)
    other = chunk_at(0, np.zeros((2, 3)))
    with pytest.raises(ValueError, match="expected those of 2 points and 2 joints"):
        executor.state_item().check(value | {"trajectory": to_record(other)})
    with pytest.raises(ValueError, match="not the state of an execution"):
        executor.state_item().check({"at_ns": 1})


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_recorded_trajectories_keep_every_bit(seed: int) -> None:
    generator = np.random.default_rng(seed)
    chunk = replace(chunk_at(seed, generator.normal(size=(5, 3))), velocity=(1,))
    back = from_record(to_record(chunk), 3)
    assert back.positions.tobytes() == chunk.positions.tobytes()
    assert back.times.tobytes() == chunk.times.tobytes()
    assert (back.start_ns, back.velocity) == (chunk.start_ns, chunk.velocity)


def test_nothing_is_left_after_the_end() -> None:
    chunk = chunk_at(0, np.ones((2, 1)))
    assert rest_of(chunk, 100 * MS, 5) is None
    rest = rest_of(chunk, 99 * MS, 5)
    assert rest is not None
    assert (rest.start_ns, len(rest.times)) == (5, 1)


# -- action spaces -------------------------------------------------------------------------------


def test_relative_actions_are_added_to_the_measured_position(bench: Callable[..., Bench]) -> None:
    made = bench(spaces=ActionSpaces(relative=(1,)))
    sent = made.tick(10, positions=(0.3, 0.7)).trajectory
    raw = made.policy.chunk().astype(np.float64)
    np.testing.assert_array_equal(sent.positions[:, 0], raw[:, 0])
    np.testing.assert_array_equal(sent.positions[:, 1], raw[:, 1] + 0.7)


def test_a_velocity_is_zero_in_a_hold_and_after_the_chunk(bench: Callable[..., Bench]) -> None:
    made = bench(spaces=ActionSpaces(velocity=(1,)))
    command = made.tick(10)
    assert command.running is not None
    after = command.running.at(command.trajectory.end_ns + 1)
    assert after[1] == 0.0
    assert after[0] == command.trajectory.positions[-1, 0]
    made.now_ns += 60 * MS
    assert command.running.at(made.now_ns)[1] != 0.0
    made.call(made.engine.interrupt)
    held = made.commands[-1]
    assert held.is_hold
    assert held.running is not None
    assert held.running.at(made.now_ns)[1] == 0.0  # at once: it does not fade
    np.testing.assert_array_equal(held.trajectory.positions[:, 1], 0.0)
    np.testing.assert_allclose(held.trajectory.positions[0, 0], command.running.at(made.now_ns)[0])
