# SPDX-License-Identifier: Apache-2.0
"""A joint trajectory with a start time: what an action chunk means to a controller."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Trajectory:
    """Joint targets from a start time on, as trajectory_msgs/JointTrajectory has them.

    Attributes:
        start_ns: the time that the points' times count from, ns.
        times: float64 `[points]`, s from the start, strictly increasing and above 0.
        positions: float64 `[points, joints]`, rad or m, absolute.
        origin: float64 `[joints]`, where the joints were (measured or commanded) at the start.
        velocity: columns that are velocities, rad/s or m/s, instead: 0 after the last point.

    Raises:
        ValueError: shapes differ, times do not grow, or a value is not finite.
    """

    start_ns: int
    times: np.ndarray
    positions: np.ndarray
    origin: np.ndarray
    velocity: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.positions.ndim != 2 or self.times.shape != (self.positions.shape[0],):
            raise ValueError(
                f"trajectory of {self.times.shape} times and {self.positions.shape} positions: "
                "expected [points] and [points, joints]"
            )
        if self.origin.shape != (self.positions.shape[1],):
            raise ValueError(
                f"trajectory origin has shape {self.origin.shape}, expected [joints] = "
                f"({self.positions.shape[1]},)"
            )
        if self.times.size == 0 or self.times[0] <= 0.0 or np.any(np.diff(self.times) <= 0.0):
            raise ValueError(
                f"trajectory times {self.times.tolist()} must be above 0 and strictly increasing"
            )
        bad = np.argwhere(~np.isfinite(self.positions))
        if bad.size:
            point, joint = bad[0]
            raise ValueError(
                f"trajectory point {point}, joint {joint} is {self.positions[point, joint]}: "
                "expected a finite position"
            )

    @property
    def end_ns(self) -> int:
        """The time of the last point, ns."""
        return self.start_ns + round(float(self.times[-1]) * 1e9)

    def at(self, time_ns: int) -> np.ndarray:
        """The commanded position at a time: linear between points, held after the last one."""
        elapsed = (time_ns - self.start_ns) * 1e-9
        index = int(np.searchsorted(self.times, elapsed, side="left"))
        if elapsed <= 0.0:
            return self.origin.copy()
        if index == self.times.size:
            after = self.positions[-1].copy()
            after[list(self.velocity)] = 0.0
            return after
        if elapsed == self.times[index]:
            return self.positions[index].copy()
        begin, start = (0.0, self.origin) if index == 0 else self._point(index - 1)
        end, stop = self._point(index)
        return np.asarray(start + (stop - start) * ((elapsed - begin) / (end - begin)))

    def slope_at(self, time_ns: int) -> np.ndarray:
        """How fast `at` changes at a time, `[joints]`, a second; at a point: that before it.

        0 before the start and after the end.
        """
        elapsed = (time_ns - self.start_ns) * 1e-9
        # A nanosecond is what rounding may have made of a time that is a point's.
        index = int(np.searchsorted(self.times, elapsed - 1e-9, side="left"))
        if elapsed <= 0.0 or index == self.times.size:
            return np.zeros_like(self.origin)
        begin, start = (0.0, self.origin) if index == 0 else self._point(index - 1)
        end, stop = self._point(index)
        return np.asarray((stop - start) / (end - begin))

    def velocity_at(self, time_ns: int) -> np.ndarray:
        """How fast the commanded position moves from a time on, rad/s or m/s, `[joints]`.

        0 before the start and from the last point on.
        """
        elapsed = (time_ns - self.start_ns) * 1e-9
        index = int(np.searchsorted(self.times, elapsed, side="right"))
        if elapsed < 0.0 or index == self.times.size:
            return np.zeros_like(self.origin)
        begin, start = (0.0, self.origin) if index == 0 else self._point(index - 1)
        end, stop = self._point(index)
        return np.asarray((stop - start) / (end - begin))

    def _point(self, index: int) -> tuple[float, np.ndarray]:
        return float(self.times[index]), self.positions[index]


def hold(position: np.ndarray, start_ns: int, duration: float) -> Trajectory:
    """A trajectory that stays: one point at the position itself, `duration` seconds ahead."""
    return Trajectory(start_ns, np.array([duration]), position[None, :].copy(), position.copy())
