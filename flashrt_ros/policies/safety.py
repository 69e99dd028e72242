# SPDX-License-Identifier: Apache-2.0
"""What keeps an engine's commands safe, put together; docs/safety.md has every rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashrt_ros.policies.deadline import Deadline
from flashrt_ros.policies.emergency import EmergencySwitch
from flashrt_ros.policies.guard import SafetyGuard
from flashrt_ros.policies.limits import JointLimits, LimitActions
from flashrt_ros.policies.watchdog import ClockWatch


@dataclass(frozen=True)
class SafetyOptions:
    """How careful an engine is.

    Attributes:
        limits: of the policy's joints; None: none.
        actions: what a breach of each kind of limit does.
        ramp_duration: s from the first command after a hold until the policy's are sent as they
            are; 0: none. Not in lockstep.
        tick_deadline: longest tick, s; 0: any. Not in lockstep.
        deadline_misses: hold after so many late ticks in a row.
        clock_timeout: hold when the clock stands still for so long, s of wall time; 0: never.
            Not in lockstep.
        displaced: see `SafetyGuard`.
    """

    limits: JointLimits | None = None
    actions: LimitActions = LimitActions()
    ramp_duration: float = 0.0
    tick_deadline: float = 0.0
    deadline_misses: int = 3
    clock_timeout: float = 0.0
    displaced: float = 0.05


class Safety:
    """The guard of every command, the emergency switch that it asks, and two watches.

    Args:
        names: the policy's joints.
        options: see `SafetyOptions`.
        velocities: columns of the actions that are velocities.
        lockstep: wall time decides nothing.
        hold_duration: time to the one point of a hold, s.
    """

    def __init__(
        self,
        names: Sequence[str],
        options: SafetyOptions | None = None,
        *,
        velocities: tuple[int, ...] = (),
        lockstep: bool = False,
        hold_duration: float = 0.1,
    ) -> None:
        options = options or SafetyOptions()
        self.emergency = EmergencySwitch()
        self.guard = SafetyGuard(
            options.limits or JointLimits.unlimited(names),
            velocities=velocities,
            actions=options.actions,
            ramp_duration=options.ramp_duration,
            emergency=self.emergency,
            lockstep=lockstep,
            hold_duration=hold_duration,
            displaced=options.displaced,
        )
        self._lockstep = lockstep
        self.deadline = Deadline(0.0, options.deadline_misses)
        self.clock = ClockWatch(0.0)
        self.adjust(
            ramp_duration=options.ramp_duration,
            tick_deadline=options.tick_deadline,
            clock_timeout=options.clock_timeout,
        )

    def adjust(self, **changes: float) -> None:
        """Other values, by name, from the next command on: numbers of `SafetyOptions`,
        `hold_duration` and `continue_tolerance`. In lockstep what goes by wall time stays
        off."""
        guard, watched = self.guard, not self._lockstep
        guard.hold_duration = changes.get("hold_duration", guard.hold_duration)
        guard.displaced = changes.get("continue_tolerance", guard.displaced)
        allowed = changes.get("deadline_misses", self.deadline.allowed)
        self.deadline.allowed = int(allowed)
        if watched:
            guard.ramp.duration = changes.get("ramp_duration", guard.ramp.duration)
            self.deadline.limit = changes.get("tick_deadline", self.deadline.limit)
            self.clock.timeout = changes.get("clock_timeout", self.clock.timeout)
