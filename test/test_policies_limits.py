# SPDX-License-Identifier: Apache-2.0
"""Limits: whatever comes in, what goes out keeps to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from flashrt_ros.policies.clamping import _intervals, clamp, find_breaches, starts_within, stop
from flashrt_ros.policies.limits import (
    CommandState,
    JointLimit,
    JointLimits,
    LimitAction,
    LimitActions,
    LimitKind,
)
from flashrt_ros.policies.limits_file import load_limits

NAMES = ("a", "b")
KINDS = ("lower", "upper", "velocity", "acceleration", "jump")


@st.composite
def any_limits(draw: st.DrawFn) -> JointLimits:
    """Each kind of each joint may be there or not."""

    def positive(low: float, high: float) -> st.SearchStrategy[float]:
        return st.one_of(st.just(np.inf), st.floats(low, high))

    each = {}
    for name in NAMES:
        each[name] = JointLimit(
            draw(st.one_of(st.just(-np.inf), st.floats(-3, -0.1))),
            draw(positive(0.1, 3)),
            draw(positive(0.01, 5)),
            draw(positive(0.01, 50)),
            draw(positive(0.001, 1)),
        )
    return JointLimits.of(NAMES, each)


@st.composite
def any_request(draw: st.DrawFn, points: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Positions anywhere, far outside too, at times with no order but growing."""
    count = draw(st.integers(1, points))
    steps = draw(st.lists(st.floats(0.005, 0.3), min_size=count, max_size=count))
    values = st.one_of(st.floats(-5, 5), st.floats(-1e6, 1e6))
    positions = draw(arrays.arrays(np.float64, (count, len(NAMES)), elements=values))
    return positions, np.cumsum(steps)


@st.composite
def any_start(draw: st.DrawFn, limits: JointLimits) -> CommandState:
    """A start from which the limits can be kept: the end of a trajectory that kept them."""
    low, high = np.maximum(limits.lower, -3), np.minimum(limits.upper, 3)
    share = draw(arrays.arrays(np.float64, len(NAMES), elements=st.floats(0, 1)))
    state = CommandState.at_rest(0, np.clip(low + share * (high - low), low, high))
    positions, times = draw(any_request())
    before = np.vstack((state.position, clamp(limits, positions, times, state)))
    velocity = (before[-1] - before[-2]) / np.diff(times, prepend=0.0)[-1]
    return CommandState(0, before[-1], velocity)


def assert_within(
    limits: JointLimits, positions: np.ndarray, times: np.ndarray, start: CommandState
) -> None:
    """The limits as a person would check them, with nothing of the algorithm in it."""
    before = np.vstack((start.position, positions[:-1]))
    steps = np.diff(times, prepend=0.0)[:, None]
    velocities = (positions - before) / steps
    changes = np.diff(np.vstack((start.velocity, velocities)), axis=0)
    # What rounding does to a quotient of differences; the positions themselves have no slack.
    slack = 1e-12 * (1 + np.abs(positions)) / steps
    assert np.all(positions >= limits.lower)
    assert np.all(positions <= limits.upper)
    assert np.all(np.abs(velocities) <= limits.velocity * (1 + 1e-9) + slack)
    assert np.all(np.abs(changes) <= limits.acceleration * steps * (1 + 1e-6) + 10 * slack)
    unavoidable = (np.abs(velocities - changes) - limits.acceleration * steps) * steps
    allowed = np.maximum(limits.jump, unavoidable)
    assert np.all(np.abs(positions - before) <= allowed + 10 * slack * steps)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), limits=any_limits(), request_=any_request())
def test_any_request_comes_out_within_the_limits(
    data: st.DataObject, limits: JointLimits, request_: tuple[np.ndarray, np.ndarray]
) -> None:
    start = data.draw(any_start(limits))
    positions, times = request_
    assert_within(limits, clamp(limits, positions, times, start), times, start)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), limits=any_limits(), request_=any_request())
def test_what_was_limited_is_within_the_limits_and_stays_bit_for_bit(
    data: st.DataObject, limits: JointLimits, request_: tuple[np.ndarray, np.ndarray]
) -> None:
    start = data.draw(any_start(limits))
    positions, times = request_
    once = clamp(limits, positions, times, start)
    assert clamp(limits, once, times, start).tobytes() == once.tobytes()
    assert find_breaches(limits, once, times, start) == []
    if not find_breaches(limits, positions, times, start):
        assert once.tobytes() == positions.tobytes()


@settings(max_examples=50, deadline=None)
@given(data=st.data(), limits=any_limits(), request_=any_request())
def test_what_is_clamped_a_joint_at_a_time_is_what_the_intervals_say_bit_for_bit(
    data: st.DataObject, limits: JointLimits, request_: tuple[np.ndarray, np.ndarray]
) -> None:
    start = data.draw(any_start(limits))
    positions, times = request_
    before, velocity = start.position, start.velocity
    safe = clamp(limits, positions, times, start)
    for index, step in enumerate(np.diff(times, prepend=0.0)):
        nearest = _intervals(limits, before, velocity, np.array([step])).clip(positions[index])
        assert safe[index].tobytes() == nearest.tobytes()
        before, velocity = nearest, (nearest - before) / step


@settings(max_examples=40, deadline=None)
@given(data=st.data(), limits=any_limits())
def test_chunk_after_chunk_the_limits_can_always_be_kept(
    data: st.DataObject, limits: JointLimits
) -> None:
    state = data.draw(any_start(limits))
    for _ in range(4):
        positions, times = data.draw(any_request())
        assert starts_within(limits, state) == ""
        safe = clamp(limits, positions, times, state)
        assert_within(limits, safe, times, state)
        # The next one takes over anywhere on the last line.
        before = np.vstack((state.position, safe))[-2]
        velocity = (safe[-1] - before) / np.diff(times, prepend=0.0)[-1]
        share = data.draw(st.floats(0.01, 1.0))
        state = CommandState(0, before + share * (safe[-1] - before), velocity)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), limits=any_limits())
def test_stop_comes_to_rest_within_the_limits(data: st.DataObject, limits: JointLimits) -> None:
    start = data.draw(any_start(limits))
    times, positions = stop(limits, start, 0.1)
    brakes = np.isfinite(limits.acceleration)
    assert np.all(positions[:, ~brakes] == start.position[~brakes])  # those stop where they are
    if len(times) > 1:
        assert np.all(positions[-1] == positions[-2])
        assert positions.shape[0] <= 203
    start = CommandState(0, start.position, np.where(brakes, start.velocity, 0.0))
    assert_within(limits, positions, times, start)


def limits_of(**values: float) -> JointLimits:
    return JointLimits.of(["a"], {"a": JointLimit(**values)})


def test_joint_brakes_in_time_for_its_position_limit() -> None:
    limits = limits_of(lower=-1.0, upper=1.0, velocity=1.0, acceleration=1.0)
    times = np.arange(1, 80) * 0.05
    safe = clamp(limits, np.full((79, 1), 9.0), times, CommandState.at_rest(0, np.array([0.0])))
    speeds = np.diff(safe[:, 0]) / 0.05
    assert np.max(speeds) > 0.9  # it does go fast,
    assert np.min(np.diff(speeds)) >= -0.05 - 1e-9  # brakes no harder than it may,
    assert 0.99 < safe[-1, 0] <= 1.0  # and gets there


def test_jump_yields_where_a_joint_is_too_fast_to_stop_within_it() -> None:
    limits = limits_of(acceleration=1.0, jump=0.01)
    start = CommandState(0, np.array([0.0]), np.array([1.0]))
    times = np.arange(1, 15) * 0.1
    safe = clamp(limits, np.zeros((14, 1)), times, start)
    np.testing.assert_allclose(safe[:3, 0], [0.09, 0.17, 0.24])  # braking as hard as it may
    assert find_breaches(limits, safe, times, start) == []


def test_each_kind_is_found_with_the_value_and_the_limit() -> None:
    start = CommandState.at_rest(0, np.array([0.0]))
    times = np.array([0.1, 0.2])
    cases = [
        (limits_of(lower=-1.0, upper=1.0), [0.5, 1.5], LimitKind.POSITION, 1, 1.5, 1.0),
        (limits_of(lower=-1.0, upper=1.0), [-2.0, 0.0], LimitKind.POSITION, 0, -2.0, -1.0),
        (limits_of(velocity=2.0), [0.1, 0.4], LimitKind.VELOCITY, 1, 3.0, 2.0),
        (limits_of(acceleration=5.0), [0.1, 0.2], LimitKind.ACCELERATION, 0, 10.0, 5.0),
        (limits_of(jump=0.2), [0.2, 0.5], LimitKind.JUMP, 1, 0.3, 0.2),
    ]
    for limits, request, kind, point, value, limit in cases:
        (breach,) = find_breaches(limits, np.array(request)[:, None], times, start)
        assert (breach.kind, breach.point, breach.joint) == (kind, point, "a")
        assert breach.value == pytest.approx(value)
        assert breach.limit == limit
        assert str(breach).startswith(f"{kind.value} limit: point {point} asks 'a' for")


def test_start_outside_the_limits_is_named() -> None:
    limits = limits_of(lower=-1.0, upper=1.0, velocity=2.0)
    assert starts_within(limits, CommandState.at_rest(0, np.array([1.0]))) == ""
    outside = starts_within(limits, CommandState.at_rest(0, np.array([1.2])))
    assert outside == "joint 'a' is at 1.2, outside its limits -1 to 1"
    fast = starts_within(limits, CommandState(0, np.array([0.0]), np.array([-2.5])))
    assert "2.5 a second, more than the 2 at which" in fast
    limits = limits_of(lower=-1.0, upper=1.0, acceleration=2.0)
    late = starts_within(limits, CommandState(0, np.array([0.75]), np.array([1.5])))
    assert "1.5 a second, more than the 1 at which" in late
    assert starts_within(limits, CommandState(0, np.array([0.75]), np.array([-1.5]))) == ""


def test_limits_that_cannot_be_meant_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"limit 'velocity' of joint 'a' is 0\.0"):
        limits_of(velocity=0.0)
    with pytest.raises(ValueError, match=r"'a' has the lower limit 2\.0 and the upper limit 1\.0"):
        limits_of(lower=2.0, upper=1.0)
    with pytest.raises(ValueError, match="limit 'jump' of joint 'a' is nan"):
        limits_of(jump=np.nan)
    with pytest.raises(ValueError, match="no limits for elbow; there are some for a"):
        JointLimits.of(["a", "elbow"], {"a": JointLimit()})


def test_actions_are_read_a_kind_each_or_all_at_once() -> None:
    assert LimitActions.parse([]).of(LimitKind.JUMP) is LimitAction.HOLD
    actions = LimitActions.parse(["hold", "velocity=clamp"])
    assert actions.position is LimitAction.HOLD
    assert actions.velocity is LimitAction.CLAMP
    for wrong in ("jerk=clamp", "position=slow", ""):
        with pytest.raises(ValueError, match="limit action"):
            LimitActions.parse([wrong])


# -- files -------------------------------------------------------------------------------------

URDF = (
    '<robot name="arm"><joint name="a" type="revolute"><limit lower="-1" upper="1" velocity="2"/>'
    '</joint><joint name="b" type="continuous"><limit velocity="4"/></joint></robot>'
)


def write(folder: Path, text: str) -> str:
    path = folder / "limits.yaml"
    path.write_text(text)
    return str(path)


def test_without_files_nothing_is_limited() -> None:
    assert not load_limits(NAMES).limits.are_set


def test_of_a_urdf_and_a_file_the_narrower_limits_count(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "joint_limits:\n"
        "  a: {has_position_limits: true, min_position: -2, max_position: 0.5, max_jump: 0.1}\n"
        "  b: {has_velocity_limits: false, max_velocity: 1, max_acceleration: 9}\n"
        "  of_another_arm: {max_velocity: 1}\n",
    )
    limits = load_limits(NAMES, path=path, urdf=URDF).limits
    assert (limits.lower[0], limits.upper[0]) == (-1.0, 0.5)
    assert limits.velocity.tolist() == [2.0, 4.0]
    assert limits.acceleration.tolist() == [np.inf, 9.0]
    assert limits.jump.tolist() == [0.1, np.inf]


def test_velocities_are_limited_by_the_yaml_file_alone_as_no_urdf_has_them(tmp_path: Path) -> None:
    names, columns = ("a", "linear", "b"), (1,)
    loaded = load_limits(names, urdf=URDF, velocities=columns)
    assert loaded.limits.velocity.tolist() == [2.0, np.inf, 4.0]
    assert loaded.unlimited == ("linear",)
    path = write(tmp_path, "joint_limits:\n  linear: {max_velocity: 0.5}\n")
    loaded = load_limits(names, path=path, urdf=URDF, velocities=columns)
    assert loaded.limits.velocity.tolist() == [2.0, 0.5, 4.0]
    assert loaded.unlimited == ()
    path = write(tmp_path, "joint_limits:\n  a: {max_acceleration: 9}\n")
    with pytest.raises(ValueError, match="no limits for linear"):
        load_limits(names, path=path, urdf=URDF, velocities=columns)


def test_the_shipped_example_limits_every_joint_of_the_simulated_arm() -> None:
    example = Path(__file__).parents[1] / "config" / "limits_example.yaml"
    names = ["waist", "shoulder", "elbow", "wrist_pitch", "wrist_roll"]
    loaded = load_limits(names, path=str(example))
    assert loaded.ignored == ()
    for item in KINDS:
        assert np.all(np.isfinite(getattr(loaded.limits, item)))


def test_keys_that_are_not_enforced_are_told(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "default_velocity_scaling_factor: 0.1\n"
        "joint_limits:\n  a: {max_velocity: 1, has_jerk_limits: false, max_jerk: 3}\n  b: {}\n",
    )
    assert load_limits(NAMES, path=path).ignored == (
        "default_velocity_scaling_factor",
        "a.max_jerk",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("joint_limits:\n  a: {max_velocity: 1}\n", "no limits for b; there are some for a"),
        ("limits: {}\n", "has no 'joint_limits'"),
        ("joint_limits: [\n", "is not YAML"),
        ("joint_limits: {a: 3, b: {}}\n", "joint 'a' is 3, expected a map"),
        ("joint_limits: {a: {max_speed: 3}, b: {}}\n", "joint 'a' has max_speed, expected"),
        ("joint_limits: {a: {max_jump: fast}, b: {}}\n", "max_jump: 'fast', expected a number"),
        ("joint_limits: {a: {has_velocity_limits: true}, b: {}}\n", "true and no max_velocity"),
        ("joint_limits: {a: {max_velocity: -1}, b: {}}\n", "'velocity' of joint 'a' is -1.0"),
    ],
)
def test_file_that_cannot_be_meant_is_named_with_the_joint(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=message) as refusal:
        load_limits(NAMES, path=path)
    assert path in str(refusal.value)
