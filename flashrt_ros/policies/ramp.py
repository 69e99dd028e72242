# SPDX-License-Identifier: Apache-2.0
"""A soft beginning: from where the joints stay to what the policy wants, in a given time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flashrt_ros.policies.limits import CommandState
from flashrt_ros.policies.trajectory import Trajectory


class Ramp:
    """Blends the first trajectories after a hold from the position at which they begin.

    A point at `t` seconds after the beginning becomes `start + s(t / duration) * (point - start)`
    with `s(u) = 10 u**3 - 15 u**4 + 6 u**5`: from 0 to 1 with no velocity and no acceleration at
    either end (the minimum jerk profile: Flash and Hogan, J. Neurosci. 5, 1985). The blend adds at
    most `1.875 * distance / duration` to the speed; limits apply to what comes out of it.

    Several chunks may fall into one ramp: it goes by the points' times, which also makes it the
    same in every run with the same stamps.

    Args:
        duration: s; 0: no ramp.
    """

    def __init__(self, duration: float) -> None:
        self.duration = duration
        self._due = True
        self._begin: CommandState | None = None

    def begin(self) -> None:
        """The next trajectory is the first one of a motion."""
        self._due = True

    def apply(self, trajectory: Trajectory, start: CommandState) -> Trajectory:
        """The trajectory, blended where a ramp is under way; else the same object.

        `start`: where the joints are commanded to be now.
        """
        if self._due:
            self._due, self._begin = False, start if self.duration > 0.0 else None
        if self._begin is None:
            return trajectory
        elapsed = (trajectory.start_ns - self._begin.time_ns) * 1e-9
        if elapsed >= self.duration:
            self._begin = None
            return trajectory
        share = _smooth((elapsed + trajectory.times) / self.duration)[:, None]
        origin, wanted = self._begin.position, trajectory.positions
        # Where the ramp is over the point is kept to the bit.
        blended = np.where(share < 1.0, origin + share * (wanted - origin), wanted)
        return replace(trajectory, positions=blended)


def _smooth(share: np.ndarray) -> np.ndarray:
    u = np.clip(share, 0.0, 1.0)
    return np.where(u < 1.0, u**3 * (10.0 + u * (6.0 * u - 15.0)), 1.0)
