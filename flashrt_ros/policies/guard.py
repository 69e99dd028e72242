# SPDX-License-Identifier: Apache-2.0
"""The gate that every command passes on its way out, whatever it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flashrt_ros.policies.trajectory import Trajectory


@dataclass(frozen=True)
class CommandContext:
    """What a guard knows beside the trajectory.

    Attributes:
        now_ns: when the command is sent, in the engine's clock, ns.
        running: the trajectory that was sent last and is being executed: where the joints are
            commanded to be now, and how fast they move, follow from it; None before the first.
        measured: where they were measured last, float64 `[joints]`; None before that.
        is_hold: the command makes the joints stay.
    """

    now_ns: int
    running: Trajectory | None
    measured: np.ndarray | None
    is_hold: bool


@dataclass(frozen=True)
class GuardedTrajectory:
    """What a guard made of a trajectory.

    Attributes:
        trajectory: what is sent: the one that was checked, or what became of it.
        limited_points: points that were changed.
        refused: why the trajectory must not be sent; `trajectory` then brings the joints to rest,
            it is sent as a hold, and its last point is the position held. Empty: nothing is wrong.
    """

    trajectory: Trajectory
    limited_points: int = 0
    refused: str = ""


class CommandGuard(Protocol):
    """Called on the replay thread for every command, holds included; must be quick."""

    def check(self, trajectory: Trajectory, context: CommandContext) -> GuardedTrajectory:
        """Pass, change or refuse a trajectory."""
        ...

    def resumed(self) -> None:
        """The joints were held and may move again: the next trajectory is the first one."""
        ...

    def forget(self) -> None:
        """Time went back: what was commanded has no meaning any more."""
        ...


class OpenGate:
    """Lets everything pass: the guard of an engine that was given none."""

    def check(self, trajectory: Trajectory, context: CommandContext) -> GuardedTrajectory:
        """The trajectory as it is."""
        return GuardedTrajectory(trajectory)

    def resumed(self) -> None:
        """Nothing to do."""

    def forget(self) -> None:
        """Nothing to do."""
