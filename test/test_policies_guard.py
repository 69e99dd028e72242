# SPDX-License-Identifier: Apache-2.0
"""The guard, the ramp, the emergency switch, the deadline and the clock's watch, without ROS."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from flashrt_ros.policies.deadline import Deadline
from flashrt_ros.policies.emergency import EmergencySwitch
from flashrt_ros.policies.guard import CommandContext, SafetyGuard
from flashrt_ros.policies.limits import CommandState, JointLimit, JointLimits, LimitActions
from flashrt_ros.policies.ramp import Ramp
from flashrt_ros.policies.trajectory import Trajectory, hold
from flashrt_ros.policies.watchdog import ClockWatch
from flashrt_ros.runtime.errors import EmergencyStop

NAMES = ("a", "b")
NOW = 5_000_000_000
LIMITS = JointLimits.of(NAMES, dict.fromkeys(NAMES, JointLimit(-1.0, 1.0, 2.0, 10.0, 0.3)))
FREE = JointLimits.unlimited(NAMES)


def chunk(*rows: float, dt: float = 0.1, start_ns: int = NOW) -> Trajectory:
    """A trajectory with the same rows for both joints, from 0."""
    positions = np.repeat(np.array(rows, dtype=float)[:, None], 2, axis=1)
    return Trajectory(start_ns, dt * (1 + np.arange(len(rows))), positions, np.zeros(2))


def context(
    running: Trajectory | None = None,
    measured: tuple[float, float] | None = (0.0, 0.0),
    is_hold: bool = False,
    now_ns: int = NOW,
) -> CommandContext:
    return CommandContext(
        now_ns, running, None if measured is None else np.array(measured), is_hold
    )


def sent(guard: SafetyGuard, trajectory: Trajectory, around: CommandContext) -> Trajectory:
    checked = guard.check(trajectory, around)
    assert checked.trajectory is not None
    return checked.trajectory


# -- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [FREE, LIMITS])
def test_what_is_within_the_limits_is_the_same_object(limits: JointLimits) -> None:
    request = chunk(0.01, 0.05, 0.1)
    checked = SafetyGuard(limits).check(request, context())
    assert checked.trajectory is request
    assert (checked.limited_points, checked.refused) == (0, "")


def test_breach_is_clamped_counted_and_reported() -> None:
    guard = SafetyGuard(LIMITS)
    checked = guard.check(chunk(0.05, 0.3, 0.5), context())
    assert checked.refused == ""
    assert checked.limited_points == 2
    assert guard.report.commands == 1
    assert guard.report.by_kind == {"velocity": 1, "acceleration": 1}
    assert "velocity limit: point 1 asks 'a' for 2.5, limit 2" in guard.report.last


def test_breach_of_a_kind_that_holds_refuses_and_the_joints_stay() -> None:
    guard = SafetyGuard(LIMITS, actions=LimitActions.parse(["velocity=hold"]))
    checked = guard.check(chunk(0.05, 0.3), context())
    assert checked.refused.startswith("velocity limit: point 1 asks 'a'")
    assert checked.trajectory is not None
    assert np.all(checked.trajectory.positions == 0.0)


def test_refused_while_moving_brakes_within_the_limits() -> None:
    running = chunk(0.05, 0.2, 0.35)
    now_ns = NOW + 150_000_000  # at 0.125, 1.5 a second
    guard = SafetyGuard(LIMITS)
    checked = guard.check(chunk(0.9, start_ns=now_ns), context(running, now_ns=now_ns))
    assert checked.refused.startswith("acceleration limit") or "jump" in checked.refused
    assert checked.trajectory is not None
    path = np.concatenate(([0.125], checked.trajectory.positions[:, 0]))
    speeds = np.concatenate(([1.5], np.diff(path) / np.diff(checked.trajectory.times, prepend=0)))
    assert speeds[-1] == 0.0
    assert np.all(np.diff(speeds)[:-1] >= -10.0 * 0.02 - 1e-9)
    assert path[-1] == pytest.approx(0.125 + 1.5**2 / 20, rel=0.1)


@settings(max_examples=100, deadline=None)
@given(
    rows=arrays.arrays(np.float64, (6, 2), elements=st.floats(-5, 5)),
    late=st.integers(0, 400_000_000),
    before=arrays.arrays(np.float64, (4, 2), elements=st.floats(-5, 5)),
)
def test_whatever_the_policy_says_the_joints_are_told_nothing_beyond_the_limits(
    rows: np.ndarray, late: int, before: np.ndarray
) -> None:
    """As executed: from where the first command has brought them when the second one comes."""
    guard = SafetyGuard(LIMITS, ramp_duration=0.1, actions=LimitActions.parse(["clamp"]))
    times = 0.1 * (1 + np.arange(6))
    first = sent(guard, Trajectory(NOW, times[:4], before, np.zeros(2)), context())
    now_ns = NOW + late
    request = Trajectory(NOW + late // 2, times, rows, np.zeros(2))
    second = sent(guard, request, context(first, now_ns=now_ns))
    assert np.all(np.abs(second.positions) <= 1.0)
    ahead = second.times - (now_ns - second.start_ns) * 1e-9
    due, positions = ahead[ahead > 0], second.positions[ahead > 0]
    path = np.vstack((first.at(now_ns), positions))
    steps = np.diff(due, prepend=0.0)[:, None]
    speeds = np.vstack((first.slope_at(now_ns), np.diff(path, axis=0) / steps))
    assert np.all(np.abs(speeds) <= 2.0 + 1e-6)
    assert np.all(np.abs(np.diff(speeds, axis=0)) <= 10.0 * steps + 1e-6)


def test_trajectory_that_is_over_is_refused() -> None:
    late = NOW + 400_000_000
    checked = SafetyGuard(LIMITS).check(chunk(0.01, 0.02), context(now_ns=late))
    assert checked.refused == "the trajectory was over before it could be sent"


def test_joint_beyond_its_limit_is_sent_nothing_at_all() -> None:
    guard = SafetyGuard(LIMITS)
    for is_hold in (False, True):
        checked = guard.check(
            hold(np.array([1.2, 0.0]), NOW, 0.1), context(measured=(1.2, 0.0), is_hold=is_hold)
        )
        assert checked.trajectory is None
        assert "joint 'a' is at 1.2, outside its limits -1 to 1" in checked.refused


def test_joint_that_rests_a_little_beyond_its_limit_is_held_at_the_limit() -> None:
    resting = context(measured=(1.004, 0.0), is_hold=True)
    staying = sent(SafetyGuard(LIMITS), hold(np.array([1.004, 0.0]), NOW, 0.1), resting)
    assert staying.positions.tolist() == [[1.0, 0.0]]


# -- values that are not finite, emergency stop ------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_value_that_is_not_finite_never_passes(value: float) -> None:
    request = chunk(0.01, 0.02)
    for name, where in (("positions", (1, 0)), ("times", (1,)), ("origin", (1,))):
        request = chunk(0.01, 0.02)
        getattr(request, name)[where] = value  # after the checks of Trajectory itself
        checked = SafetyGuard(FREE).check(request, context())
        assert f"{name}{list(where)} of a trajectory is {value}" in checked.refused
        assert checked.trajectory is not None
        assert np.all(np.isfinite(checked.trajectory.positions))
        assert np.all(np.isfinite(checked.trajectory.times))


def test_velocity_that_is_not_finite_never_passes_though_the_positions_are() -> None:
    checked = SafetyGuard(FREE).check(chunk(1e308, -1e308), context())
    assert "asks for a velocity that is not finite" in checked.refused


def test_nothing_but_holds_passes_while_the_emergency_stop_is_pressed() -> None:
    switch = EmergencySwitch()
    guard = SafetyGuard(FREE, emergency=switch)
    assert switch.press("emergency stop")
    assert not switch.press("emergency stop")
    checked = guard.check(chunk(0.1, 0.2), context())
    assert checked.refused == "emergency stop"
    staying = hold(np.zeros(2), NOW, 0.1)
    assert guard.check(staying, context(is_hold=True)).trajectory is staying
    with pytest.raises(EmergencyStop, match="emergency stop: release it, then resume"):
        switch.require_released()
    assert switch.release()
    assert not switch.release()
    switch.require_released()
    assert guard.check(chunk(0.1, 0.2), context()).refused == ""


# -- ramp --------------------------------------------------------------------------------------


def test_ramp_begins_where_the_joints_stay_and_ends_with_the_policys_own_points() -> None:
    ramp = Ramp(0.35)
    start = CommandState.at_rest(NOW, np.array([0.0, 0.0]))
    blended = ramp.apply(chunk(1.0, 1.0, 1.0, 1.0, 1.0), start).positions[:, 0]
    assert np.all(np.diff(blended) >= 0.0)
    assert 0.0 < blended[0] < 0.3
    assert blended[3] == blended[4] == 1.0
    assert np.max(np.diff(blended)) / 0.1 <= 1.875 / 0.35


def test_ramp_goes_on_over_several_chunks_and_then_leaves_them_alone() -> None:
    ramp = Ramp(0.35)
    start = CommandState.at_rest(NOW, np.array([0.0, 0.0]))
    whole = ramp.apply(chunk(1.0, 1.0, 1.0, 1.0), start)
    later = CommandState.at_rest(NOW + 200_000_000, whole.at(NOW + 200_000_000))
    second = ramp.apply(chunk(1.0, 1.0, start_ns=NOW + 200_000_000), later)
    np.testing.assert_allclose(second.positions, whole.positions[2:], rtol=1e-9)
    after = chunk(1.0, start_ns=NOW + 350_000_000)
    assert ramp.apply(after, later) is after


def test_first_command_and_the_first_after_each_hold_are_ramped() -> None:
    guard = SafetyGuard(FREE, ramp_duration=0.15)
    first = sent(guard, chunk(1.0, 1.0), context())
    assert first.positions[0, 0] < 1.0
    running = sent(guard, chunk(1.0, 1.0, start_ns=NOW + 200_000_000), context(first))
    assert running.positions[0, 0] == 1.0
    guard.resumed()
    at_rest = hold(np.zeros(2), NOW + 300_000_000, 0.1)
    moving = chunk(1.0, start_ns=NOW + 300_000_000)
    again = sent(guard, moving, context(at_rest, now_ns=NOW + 300_000_000))
    assert again.positions[0, 0] < 1.0


def test_in_lockstep_nothing_is_ramped_and_what_was_measured_decides_nothing() -> None:
    guard = SafetyGuard(LIMITS, ramp_duration=0.5, lockstep=True)
    request, staying = chunk(0.01, 0.05), hold(np.zeros(2), NOW, 0.1)
    for measured in ((0.0, 0.0), (0.5, 0.0)):
        guard.resumed()
        assert guard.check(request, context(staying, measured)).trajectory is request


def test_in_lockstep_a_refused_trajectory_becomes_a_hold_with_its_own_stamp() -> None:
    guard = SafetyGuard(LIMITS, actions=LimitActions.parse(["hold"]), lockstep=True)
    late = context(now_ns=NOW + 50_000_000)
    checked = guard.check(chunk(0.9), late)
    assert checked.refused
    assert checked.trajectory is not None
    assert checked.trajectory.start_ns == NOW
    assert checked.trajectory.times[0] > 0.05


def test_after_a_hold_the_first_command_begins_where_somebody_moved_the_joints_to() -> None:
    staying = hold(np.zeros(2), NOW, 0.1)
    for measured, begins in (((0.04, 0.0), 0.0), ((0.6, 0.0), 0.6)):
        guard = SafetyGuard(FREE, ramp_duration=1.0)
        guard.resumed()
        moved = sent(guard, chunk(0.6, 0.6, dt=1e-3), context(staying, measured=measured))
        assert moved.positions[0, 0] == pytest.approx(begins, abs=1e-4)


# -- velocities (twist) ------------------------------------------------------------------------


def test_columns_of_velocities_are_limited_as_such_and_braked_to_zero() -> None:
    limits = JointLimits.of(
        NAMES, {"a": JointLimit(), "b": JointLimit(-0.1, 0.1, velocity=0.5, acceleration=1.0)}
    )
    guard = SafetyGuard(limits, velocities=(1,))
    request = chunk(2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0)
    safe = sent(guard, request, context(measured=(0.0, 3.0)))
    np.testing.assert_allclose(safe.positions[:, 1], [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5])
    assert np.all(safe.positions[:, 0] == 2.0)
    now_ns = NOW + 600_000_000
    staying = sent(
        guard, hold(np.array([2.0, 0.0]), now_ns, 0.1), context(safe, is_hold=True, now_ns=now_ns)
    )
    values = np.concatenate(([0.5], staying.positions[:, 1]))
    assert values[-1] == 0.0
    assert np.all(np.diff(values)[:-1] >= -1.0 * 0.02 - 1e-9)
    assert np.all(staying.positions[:, 0] == 2.0)


# -- deadline and clock ------------------------------------------------------------------------


def test_deadline_never_judges_the_first_tick_and_holds_after_misses_in_a_row() -> None:
    deadline = Deadline(0.1, misses=2)
    assert deadline.judge(9.0) == ""  # cold
    assert deadline.judge(0.15) == ""
    assert deadline.judge(0.05) == ""  # not in a row any more
    assert deadline.judge(0.15) == ""
    why = deadline.judge(0.15)
    assert why == "deadline missed: a tick took 150.0 ms, allowed are 100.0 ms, late in a row: 2"
    assert deadline.judge(0.3) != ""  # and goes on until one is in time
    assert deadline.judge(0.1) == ""
    assert deadline.misses == 4


def test_tick_that_does_not_end_counts_as_late_while_it_is_under_way() -> None:
    now = [0.0]
    deadline = Deadline(0.1, misses=3, steady=lambda: now[0])
    for cold in (True, False):
        deadline.begin()
        now[0] += 0.29
        assert not deadline.is_overdue()
        now[0] += 0.05
        assert deadline.is_overdue() is not cold
        assert ("in a row: 3" in deadline.judge(0.34)) is not cold
        assert not deadline.is_overdue()  # none is under way
    deadline.begin()
    deadline.failed()
    now[0] += 9.0
    assert not deadline.is_overdue()


def test_without_a_deadline_nothing_is_late() -> None:
    deadline = Deadline(0.0, misses=1)
    assert [deadline.judge(99.0) for _ in range(3)] == ["", "", ""]
    assert deadline.misses == 0


def test_clock_that_stands_still_is_noticed_by_another_one() -> None:
    steady = [0.0]
    watch = ClockWatch(1.0, lambda: steady[0])
    assert not watch.stands_still(7)
    steady[0] = 0.9
    assert not watch.stands_still(7)
    steady[0] = 1.1
    assert watch.stands_still(7)
    assert not watch.stands_still(8)
    steady[0] = 2.0
    assert not watch.stands_still(8)
    assert watch.stands_still(8) is False
    unwatched = ClockWatch(0.0, lambda: steady[0])
    unwatched.stands_still(7)
    steady[0] = 100.0
    assert not unwatched.stands_still(7)
