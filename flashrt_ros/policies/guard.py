# SPDX-License-Identifier: Apache-2.0
"""The gate that every command passes on its way out, whatever it came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from flashrt_ros.policies.clamping import (
    clamp,
    find_breaches,
    starts_outside,
    starts_within,
    stop,
)
from flashrt_ros.policies.emergency import EmergencySwitch
from flashrt_ros.policies.limits import (
    Breach,
    CommandState,
    JointLimits,
    LimitAction,
    LimitActions,
)
from flashrt_ros.policies.ramp import Ramp
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
        trajectory: what is sent: the one that was checked, or what became of it; None: nothing
            is, as no position would be safe (see `refused`).
        limited_points: points that were changed.
        refused: why the trajectory must not be sent; `trajectory` then brings the joints to rest,
            it is sent as a hold, and its last point is the position held. Empty: nothing is wrong.
    """

    trajectory: Trajectory | None
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


class SafetyGuard:
    """Emergency stop, finite values, ramp and limits, in this order; braking for holds.

    Args:
        limits: of the joints; `JointLimits.unlimited` where there are none.
        velocities: columns that are velocities, see `Trajectory.velocity`.
        actions: what a breach of each kind does.
        ramp_duration: s from the first command after a hold until the policy's are sent as they
            are; 0: none.
        emergency: nothing but holds passes while it is pressed.
        lockstep: nothing is ramped, and what was measured decides nothing: a run must not depend
            on when a message came, and a simulation needs no soft start.
        hold_duration: s for which a joint that was braked is told to stay.
        displaced: after a hold the first command begins where the joints are measured, if one is
            further than this from where it was commanded to be, rad or m: somebody moved it.
        start_tolerance: a joint that is outside its limits by at most this counts as at its limit,
            rad or m: it rests on it, or its sensor is noisy.
    """

    def __init__(
        self,
        limits: JointLimits,
        *,
        velocities: tuple[int, ...] = (),
        actions: LimitActions | None = None,
        ramp_duration: float = 0.0,
        emergency: EmergencySwitch | None = None,
        lockstep: bool = False,
        hold_duration: float = 0.1,
        displaced: float = 0.05,
        start_tolerance: float = 0.01,
    ) -> None:
        self.limits = limits.of_velocities(velocities)
        self.actions = actions or LimitActions()
        self.emergency = emergency or EmergencySwitch()
        self.hold_duration = hold_duration
        self.displaced = displaced
        self.start_tolerance = start_tolerance
        self.report = LimitReport()
        self._velocities = list(velocities)
        self.ramp = Ramp(0.0 if lockstep else ramp_duration)
        self._lockstep = lockstep
        self._resuming = False

    def limit(self, limits: JointLimits) -> None:
        """Other limits, while nothing is commanded."""
        self.limits = limits.of_velocities(self._velocities)

    def resumed(self) -> None:
        """The next trajectory is ramped, and begins where the joints are."""
        self._resuming = True
        self.ramp.begin()

    def forget(self) -> None:
        """As `resumed`: a motion begins anew."""
        self.resumed()

    def check(self, trajectory: Trajectory, context: CommandContext) -> GuardedTrajectory:
        """Pass, change or refuse a trajectory, see `CommandGuard`."""
        commanded = self._commanded(trajectory, context)
        reason = "" if context.is_hold else self.emergency.reason or _not_finite(trajectory)
        if context.is_hold or reason:
            return self._stay(trajectory, commanded, reason)
        start = self._taken_up(commanded, context)
        request = self.ramp.apply(trajectory, start)
        guarded = GuardedTrajectory(request)
        if self.limits.are_set:
            guarded = self._limit(request, start)
        if guarded.refused:
            return self._stay(trajectory, commanded, guarded.refused)
        return guarded

    # -- where a command begins ------------------------------------------------------------

    def _commanded(self, trajectory: Trajectory, context: CommandContext) -> CommandState:
        """Where the joints are commanded to be, and how fast; before any command: measured."""
        now_ns, running = context.now_ns, context.running
        if running is not None:
            position = self._inside(running.at(now_ns))
            return CommandState(now_ns, position, running.slope_at(now_ns))
        known = trajectory.origin if context.measured is None else context.measured
        return CommandState.at_rest(now_ns, self._resting(known))

    def _taken_up(self, commanded: CommandState, context: CommandContext) -> CommandState:
        """The same; after a hold in which somebody moved a joint: as measured, at rest."""
        resuming, self._resuming = self._resuming, False
        if not resuming or self._lockstep or context.measured is None:
            return commanded
        measured = self._resting(context.measured)
        if np.max(np.abs(measured - commanded.position), initial=0.0) <= self.displaced:
            return commanded
        return CommandState.at_rest(commanded.time_ns, measured)

    def _resting(self, measured: np.ndarray) -> np.ndarray:
        position = measured.copy()
        position[self._velocities] = 0.0
        return self._inside(position)

    def _inside(self, position: np.ndarray) -> np.ndarray:
        """The position, or the limit that it is a little beyond."""
        nearest = np.clip(position, self.limits.lower, self.limits.upper)
        return np.where(np.abs(nearest - position) <= self.start_tolerance, nearest, position)

    # -- what becomes of it ----------------------------------------------------------------

    def _stay(self, trajectory: Trajectory, start: CommandState, reason: str) -> GuardedTrajectory:
        """A hold: as it is where the joints rest there already, else the way to rest."""
        outside = starts_outside(self.limits, start.position)
        if outside:  # NaN too
            return GuardedTrajectory(None, refused=reason or f"{outside}: nothing is sent")
        at_rest = not np.any(start.velocity)
        if not reason and at_rest and np.array_equal(trajectory.positions[-1], start.position):
            return GuardedTrajectory(trajectory)
        times, positions = stop(self.limits, start, self.hold_duration, self._velocities)
        # In lockstep an answer begins when its observation was made, whatever delay is simulated.
        begin_ns = trajectory.start_ns if self._lockstep else start.time_ns
        times = times + (start.time_ns - begin_ns) * 1e-9
        staying = Trajectory(begin_ns, times, positions, start.position)
        return GuardedTrajectory(staying, refused=reason)

    def _limit(self, request: Trajectory, start: CommandState) -> GuardedTrajectory:
        """The request within the limits, or why it can't or must not be brought there."""
        times = request.times - (start.time_ns - request.start_ns) * 1e-9
        ahead = times > 0.0
        unusable = starts_within(self.limits, start)
        if not unusable and not np.any(ahead):
            unusable = "the trajectory was over before it could be sent"
        if unusable:
            self.report.refused(unusable)
            return GuardedTrajectory(None, refused=unusable)
        # What is past is not executed; it is kept within the positions as it leaves all the same.
        positions = np.clip(request.positions, self.limits.lower, self.limits.upper)
        positions[ahead] = request.positions[ahead]
        breaches = find_breaches(self.limits, positions[ahead], times[ahead], start)
        if breaches:
            self.report.broken(breaches)
            if any(self.actions.of(each.kind) is LimitAction.HOLD for each in breaches):
                return GuardedTrajectory(None, refused=self.report.last)
            positions[ahead] = clamp(self.limits, positions[ahead], times[ahead], start)
        changed = int(np.any(positions != request.positions, axis=1).sum())
        return GuardedTrajectory(
            replace(request, positions=positions) if changed else request, changed
        )


class LimitReport:
    """What the limits have done so far; written on the replay thread, read on any."""

    def __init__(self) -> None:
        self.commands = 0
        """Commands that were changed or refused because of a limit."""
        self.by_kind: Counter[str] = Counter()
        """Of them, those that broke a limit of this kind."""
        self.last = ""
        """What the last one asked for."""

    def broken(self, breaches: Sequence[Breach]) -> None:
        """A command broke these limits."""
        self.commands += 1
        self.by_kind.update(breach.kind.value for breach in breaches)
        self.last = "; ".join(str(breach) for breach in breaches)

    def refused(self, reason: str) -> None:
        """A command could not be brought within the limits."""
        self.commands += 1
        self.last = reason


def _not_finite(trajectory: Trajectory) -> str:
    for name in ("times", "positions", "origin"):
        values = getattr(trajectory, name)
        bad = np.argwhere(~np.isfinite(values))
        if bad.size:
            where = bad[0].tolist()
            return f"{name}{where} of a trajectory is {values[tuple(where)]}: it is not sent"
    # Finite positions may be too far apart for a finite velocity between them.
    path = np.vstack((trajectory.origin, trajectory.positions))
    with np.errstate(over="ignore"):
        velocities = np.diff(path, axis=0) / np.diff(trajectory.times, prepend=0.0)[:, None]
    if not np.all(np.isfinite(velocities)):
        return "a trajectory asks for a velocity that is not finite: it is not sent"
    return ""
