# SPDX-License-Identifier: Apache-2.0
"""The set point over time, as joint_trajectory_controller makes it from a JointTrajectory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Trajectory:
    """Piecewise linear set points.

    times_ns: int64 [n], sim time, strictly increasing; positions: float64 [n, joints], rad.
    """

    times_ns: np.ndarray
    positions: np.ndarray

    @classmethod
    def hold(cls, positions: np.ndarray) -> Trajectory:
        """Stay at positions, [joints] rad."""
        return cls(np.zeros(1, dtype=np.int64), np.array(positions, dtype=np.float64)[None])

    def at(self, time_ns: int) -> np.ndarray:
        """Set point at a time, float64 [joints]; before the first and after the last, those."""
        index = int(np.searchsorted(self.times_ns, time_ns, side="right"))
        if index == 0:
            return self.positions[0]
        if index == len(self.times_ns):
            return self.positions[-1]
        begin, end = int(self.times_ns[index - 1]), int(self.times_ns[index])
        share = (time_ns - begin) / (end - begin)
        return self.positions[index - 1] + share * (
            self.positions[index] - self.positions[index - 1]
        )

    def replaced(
        self, now_ns: int, start_ns: int, times: np.ndarray, positions: np.ndarray
    ) -> Trajectory:
        """From the set point of now over the points still to come. Errors: see ArmWorld.command."""
        times = np.asarray(times, dtype=np.float64)
        positions = np.asarray(positions, dtype=np.float64)
        joints = self.positions.shape[1]
        if times.ndim != 1 or len(times) == 0 or positions.shape != (len(times), joints):
            raise ValueError(
                f"times has shape {times.shape} and positions {positions.shape}, expected [n] "
                f"and [n, {joints}] with n >= 1"
            )
        if not (np.isfinite(times).all() and np.isfinite(positions).all()):
            raise ValueError("a trajectory's times and positions must be finite")
        stamps = start_ns + np.rint(times * 1e9).astype(np.int64)
        if (np.diff(stamps) <= 0).any():
            raise ValueError(f"times must increase strictly, got {times.tolist()}")
        to_come = stamps > now_ns
        if not to_come.any():
            return Trajectory(np.array([now_ns]), positions[-1:].copy())
        return Trajectory(
            np.concatenate([[now_ns], stamps[to_come]]).astype(np.int64),
            np.concatenate([self.at(now_ns)[None], positions[to_come]]),
        )

    def shifted(self, by_ns: int) -> Trajectory:
        """The same set points, later by `by_ns`."""
        return Trajectory(self.times_ns + by_ns, self.positions)

    def to_json(self) -> dict[str, Any]:
        """Plain values; floats survive JSON exactly."""
        return {"times_ns": self.times_ns.tolist(), "positions": self.positions.tolist()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Trajectory:
        """What `to_json` gave."""
        return cls(
            np.array(value["times_ns"], dtype=np.int64),
            np.array(value["positions"], dtype=np.float64),
        )
