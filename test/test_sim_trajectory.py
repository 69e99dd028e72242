# SPDX-License-Identifier: Apache-2.0
"""Set points follow a joint trajectory as joint_trajectory_controller's do."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.sim.trajectory import Trajectory
from flashrt_ros.sim.world import ArmWorld

SECOND = 1_000_000_000


def ramp(*values: float) -> np.ndarray:
    return np.array(values)[:, None] * np.ones(2)


def test_interpolates_from_the_present_set_point_to_the_first_point() -> None:
    held = Trajectory.hold(np.array([1.0, 1.0]))
    new = held.replaced(5 * SECOND, 5 * SECOND, np.array([1.0, 2.0]), ramp(3.0, 4.0))
    at = [new.at(int(t * SECOND))[0] for t in (5.0, 5.25, 5.5, 6.0, 6.5, 7.0, 99.0)]
    assert at == pytest.approx([1.0, 1.5, 2.0, 3.0, 3.5, 4.0, 4.0])


def test_points_already_past_are_skipped() -> None:
    held = Trajectory.hold(np.zeros(2))
    new = held.replaced(5 * SECOND, 3 * SECOND, np.array([1.0, 2.0, 4.0]), ramp(9.0, 9.0, 4.0))
    assert new.at(6 * SECOND)[0] == pytest.approx(2.0)
    assert new.at(7 * SECOND)[0] == pytest.approx(4.0)


def test_a_trajectory_wholly_past_holds_its_last_point() -> None:
    held = Trajectory.hold(np.zeros(2))
    new = held.replaced(9 * SECOND, 3 * SECOND, np.array([1.0, 2.0]), ramp(9.0, 4.0))
    assert new.at(9 * SECOND)[0] == new.at(20 * SECOND)[0] == 4.0


def test_replacing_in_mid_flight_goes_on_from_where_it_is() -> None:
    first = Trajectory.hold(np.zeros(2)).replaced(0, 0, np.array([2.0]), ramp(2.0))
    second = first.replaced(SECOND, SECOND, np.array([1.0]), ramp(0.0))
    assert second.at(SECOND)[0] == pytest.approx(1.0)
    assert second.at(SECOND * 3 // 2)[0] == pytest.approx(0.5)


@pytest.mark.parametrize(("times", "positions", "message"), [
    (np.zeros(0), np.zeros((0, 5)), "expected"),
    (np.array([0.1, 0.1]), np.zeros((2, 5)), "increase"),
    (np.array([0.1]), np.full((1, 5), np.nan), "finite"),
    (np.array([0.1]), np.zeros((1, 4)), "expected"),
])  # fmt: skip
def test_a_bad_command_is_refused_and_the_running_one_goes_on(times, positions, message) -> None:
    world = ArmWorld(0)
    before = world.save()
    with pytest.raises(ValueError, match=message):
        world.command(0, times, positions)
    assert world.save() == before
    world.advance_tick()


def test_a_late_command_starts_in_its_middle() -> None:
    world = ArmWorld(0)
    start = world.observe().positions
    world.advance_tick()
    stamp = world.time_ns - 70_000_000  # 70 ms ago: the first point, at 50 ms, is past
    target = np.stack([start + 9.0, start, start + 0.2])
    world.command(stamp, np.array([0.05, 0.1, 0.3]), target)
    world.advance(0.02)
    assert np.abs(world.observe().positions - start).max() < 0.05


def test_survives_json_exactly() -> None:
    running = Trajectory.hold(np.array([0.1, 1 / 3])).replaced(7, 9, np.array([0.3]), ramp(np.pi))
    again = Trajectory.from_json(running.to_json())
    assert np.array_equal(again.times_ns, running.times_ns)
    assert np.array_equal(again.positions, running.positions)
