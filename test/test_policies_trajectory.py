# SPDX-License-Identifier: Apache-2.0
"""Trajectories: interpolation, what is left of one, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.policies import Trajectory
from flashrt_ros.policies.trajectory import hold


def ramp() -> Trajectory:
    return Trajectory(
        1_000_000_000, np.array([0.1, 0.2]), np.array([[1.0], [3.0]]), np.array([0.0])
    )


@pytest.mark.parametrize(
    ("after_s", "position"), [(-1.0, 0.0), (0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.15, 2.0), (9, 3)]
)
def test_position_is_linear_between_points_and_held_at_both_ends(
    after_s: float, position: float
) -> None:
    at = ramp().at(1_000_000_000 + round(after_s * 1e9))
    np.testing.assert_allclose(at, [position], atol=1e-9)


def test_hold_does_not_move() -> None:
    held = hold(np.array([0.3, -0.2]), 7, 0.1)
    np.testing.assert_array_equal(held.at(7), held.at(10**9))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_value_that_is_not_finite_is_refused_by_point_and_joint(value: float) -> None:
    with pytest.raises(ValueError, match="point 1, joint 0"):
        Trajectory(0, np.array([0.1, 0.2]), np.array([[0.0], [value]]), np.zeros(1))


@pytest.mark.parametrize("times", [[0.0, 0.1], [0.1, 0.1], [0.2, 0.1], []])
def test_times_must_grow_from_above_zero(times: list[float]) -> None:
    with pytest.raises(ValueError, match="strictly increasing"):
        Trajectory(0, np.array(times), np.zeros((len(times), 1)), np.zeros(1))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        Trajectory(0, np.array([0.1]), np.zeros((2, 1)), np.zeros(1))
    with pytest.raises(ValueError, match="origin"):
        Trajectory(0, np.array([0.1]), np.zeros((1, 2)), np.zeros(1))
