# SPDX-License-Identifier: Apache-2.0
"""Trajectories as JSON values that keep every bit: for the registered state of a capsule."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from flashrt_ros.policies.trajectory import Trajectory


def to_record(trajectory: Trajectory) -> dict[str, Any]:
    """Start, and one block of little-endian float64: origin, then a row of time and positions."""
    rows = np.column_stack((trajectory.times, trajectory.positions))
    block = np.concatenate((trajectory.origin, rows.ravel())).astype("<f8")
    return {
        "start_ns": trajectory.start_ns,
        "points": len(trajectory.times),
        "velocity": list(trajectory.velocity),
        "block": base64.b64encode(block.tobytes()).decode(),
    }


def from_record(value: Any, joints: int) -> Trajectory:
    """The inverse of `to_record`.

    Raises:
        ValueError: it is no such record, or of another number of joints.
    """
    try:
        start_ns, points = int(value["start_ns"]), int(value["points"])
        velocity = tuple(int(index) for index in value["velocity"])
        block = np.frombuffer(base64.b64decode(value["block"], validate=True), dtype="<f8")
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a recorded trajectory: {error!r}") from error
    if points < 1 or block.size != joints + points * (joints + 1):
        raise ValueError(
            f"a recorded trajectory has {block.size} numbers, expected those of {points} points "
            f"and {joints} joints"
        )
    rows = block[joints:].reshape(points, joints + 1)
    times, positions, origin = rows[:, 0].copy(), rows[:, 1:].copy(), block[:joints].copy()
    return Trajectory(start_ns, times, positions, origin, velocity)
