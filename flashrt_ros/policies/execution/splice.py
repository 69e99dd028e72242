# SPDX-License-Identifier: Apache-2.0
"""From one trajectory to the next without a jump of the commanded position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flashrt_ros.policies.trajectory import Trajectory


def spliced(running: Trajectory, fresh: Trajectory, now_ns: int, fade_s: float) -> Trajectory:
    """`fresh`, taken up from `running` now.

    With w growing from 0 now to 1 after `fade_s`, a point that is still to come is
    (1 - w) * running + w * fresh at its time; a point that is past is what was commanded then. So
    the step from any commanded position to the next is at most what the two trajectories do in
    that time, and their distance times the time over `fade_s`.

    Both trajectories have the same joints; the result has the times of `fresh`.
    """
    due = (fresh.start_ns - now_ns) * 1e-9 + fresh.times
    if fade_s > 0.0:
        weight = np.clip(due / fade_s, 0.0, 1.0)[:, None]
    else:
        weight = (due > 0.0).astype(np.float64)[:, None]
    stamps = fresh.start_ns + np.rint(fresh.times * 1e9).astype(np.int64)
    before = np.stack([running.at(int(stamp)) for stamp in stamps])
    positions = (1.0 - weight) * before + weight * fresh.positions
    return replace(fresh, positions=positions, origin=running.at(fresh.start_ns))


def without_near(trajectory: Trajectory, now_ns: int, lead_s: float) -> Trajectory | None:
    """Leave out the points that are due within `lead_s` from now; None if none is due later.

    A controller goes straight from where it is to the first point that is to come: one that is
    due in a millisecond would be a jump.
    """
    due = (trajectory.start_ns - now_ns) * 1e-9 + trajectory.times
    later = due >= lead_s
    if not later.any():
        return None
    keep = later | (due <= 0.0)
    if keep.all():
        return trajectory
    times, positions = trajectory.times[keep], trajectory.positions[keep]
    return replace(trajectory, times=times, positions=positions)


def joined(trajectory: Trajectory, now_ns: int, position: np.ndarray) -> Trajectory:
    """How a controller executes a trajectory that it gets now, at `position`.

    It goes straight from there to the first point that is to come, and skips those that are past:
    joint_trajectory_controller's rule. A trajectory that is over leaves it where it is.
    """
    times = (trajectory.start_ns - now_ns) * 1e-9 + trajectory.times
    to_come = times > 0.0
    positions = trajectory.positions[to_come]
    if not to_come.any():
        times, to_come, positions = np.array([1e-9]), np.array([True]), position[None, :].copy()
    return Trajectory(now_ns, times[to_come], positions, position.copy(), trajectory.velocity)


def rest_of(trajectory: Trajectory, cursor_ns: int, start_ns: int) -> Trajectory | None:
    """What is left of a trajectory after `cursor_ns` of it, begun at `start_ns`; or None."""
    times = trajectory.times - cursor_ns * 1e-9
    left = times > 0.0
    if not left.any():
        return None
    origin = trajectory.at(trajectory.start_ns + cursor_ns)
    positions = trajectory.positions[left]
    return Trajectory(start_ns, times[left], positions, origin, trajectory.velocity)
