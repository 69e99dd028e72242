# SPDX-License-Identifier: Apache-2.0
"""What happens to motion: the joints move or are held, why, and what ends a hold."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.policies.action_space import ActionSpaces
from flashrt_ros.policies.execution import LEAD_SHARE, ChunkExecutor, Progress
from flashrt_ros.policies.motion import Motion
from flashrt_ros.policies.observation import Observation
from flashrt_ros.policies.output import CommandOutput, EngineListener
from flashrt_ros.policies.pilot import Pilot
from flashrt_ros.policies.safety import Safety
from flashrt_ros.policies.status import Ends, EngineOptions, Halt
from flashrt_ros.policies.telling import EventTeller
from flashrt_ros.policies.trajectory import Trajectory
from flashrt_ros.runtime import Session

logger = logging.getLogger(__name__)


class Settlement:
    """Settles motion after ticks, verbs and faults; on the replay thread unless a method says so.

    Args:
        model: its spec, and what real-time chunking tells it.
        session: gives commands their commit ids.
        listener: gets them.
        clock: ns.
        options: see `EngineOptions`; may be replaced while it runs.
        safety: what every command passes, and what is watched.
        spaces: what the actions mean; None: absolute positions.
        teller: told of holds that begin and end.
        changed: called when the status may have changed.

    Raises:
        ValueError: the model cannot be executed as `options.execution` says.
    """

    def __init__(
        self,
        model: PolicyModel,
        session: Session,
        listener: EngineListener,
        *,
        clock: Callable[[], int],
        options: EngineOptions,
        safety: Safety,
        spaces: ActionSpaces | None,
        teller: EventTeller,
        changed: Callable[[], None],
    ) -> None:
        relative = spaces is not None and spaces.any_relative
        options.execution.check(model, lockstep=options.lockstep, relative=relative)
        self.options = options
        self.active = False
        self.halt: Halt | None = None
        self.not_before_ns = 0
        """Observations from before this are ignored."""
        self.seen: Observation | None = None
        """The newest observation since activation."""
        self._begun = False
        """Whether a complete observation has come since activation: nothing is sent before."""
        self.pending: Trajectory | None = None
        """What is about to be commanded, while its boundary is committed: capsules hold it."""
        self.faults = 0
        self.last_error = ""
        self._session = session
        self._clock = clock
        self._safety = safety
        self._teller = teller
        self._changed = changed
        self.pilot = Pilot(
            listener,
            options.hold_duration,
            clock=clock,
            guard=safety.guard,
            spaces=spaces,
            lead_s=model.spec.chunk_dt * LEAD_SHARE,
            lockstep=options.lockstep,
        )
        self.executor = ChunkExecutor(
            model, options.execution, lockstep=options.lockstep, progress=self._progress
        )

    def now(self, stamp_ns: int) -> int:
        """The time: in lockstep that of the observation, for the world waits for its answer."""
        return stamp_ns if self.options.lockstep else self._clock()

    # -- around a tick ---------------------------------------------------------------------

    def see(self, observation: Observation) -> None:
        """A complete observation that is newer than the last: commands may leave from now on."""
        self.seen = observation
        self._begun = True

    def move(self, trajectory: Trajectory, now_ns: int) -> CommandOutput | None:
        """Command a trajectory; None if the guard refused it: it has become a hold, as is said."""
        command = self.pilot.move(self._session, trajectory, now_ns)
        if self.pilot.refused:
            self.executor.drop()
            self.faults += 1
            self.last_error = self.pilot.refused
            self.begin_halt(self.pilot.refused, Ends.OBSERVATION)
            return None
        if self.halt is not None:
            reason, self.halt = self.halt.reason, None
            logger.info("recovered: %s", reason)
            self._teller.tell("RECOVER", Motion.REPLAN, detail={"reason": reason})
        return command

    # -- after a verb ----------------------------------------------------------------------

    def settle(self, motion: Motion, reason: str = "held by a restore") -> Motion:
        """Do what a verb says about motion; returns what was done."""
        now_ns = self._clock()
        if motion is Motion.CONTINUE:
            self.executor.suspend()
        rest = self._rest(now_ns) if motion is Motion.CONTINUE else None
        if motion is Motion.CONTINUE and rest is None:
            motion = Motion.REPLAN
        self.halt = None
        self.not_before_ns = now_ns
        if motion is Motion.HOLD:
            self.executor.suspend()
            self.halt = Halt(reason, now_ns, Ends.VERB)
        elif motion is Motion.REPLAN:
            self.executor.drop()
        if not self.active:
            return motion
        if not self.options.lockstep:
            # What a controller still executes belongs to the old epoch: replace it at once.
            if rest is not None:
                self.pilot.begin()
                motion = Motion.HOLD if self.move(rest, now_ns) is None else motion
            else:
                self.hold_now()
        return motion

    def _rest(self, now_ns: int) -> Trajectory | None:
        """What is left of the chunk under way, if the joints are where they were then."""
        if not (self._begun or self.options.lockstep):
            return None
        left, measured = self.executor.left, self.pilot.measured
        if left is None or left.measured is None or measured is None:
            return None
        if np.max(np.abs(measured - left.measured)) > self.options.continue_tolerance:
            return None
        return self.executor.take_up(now_ns)

    def _progress(self) -> Progress:
        """How far the trajectory has come that the joints follow now."""
        if self.options.lockstep:  # what was measured since is no part of the run
            at_ns = 0 if self.seen is None else self.seen.stamp_ns
            measured = None if self.seen is None else self.seen.positions
        else:
            at_ns, measured = self._clock(), self.pilot.measured
        if self.pending is not None:
            return Progress(self.pending, at_ns, measured)
        return Progress(None if self.pilot.holding else self.pilot.running, at_ns, measured)

    # -- holds -----------------------------------------------------------------------------

    def hold_now(self) -> None:
        """Send a hold, unless nothing can have been commanded yet that it would end; any thread."""
        if self._begun:
            self.pilot.hold(self._session, self._clock(), immediate=True)

    def answer(self, stamp_ns: int) -> None:
        """Lockstep: answer an observation, or a bad message, of this stamp with a hold."""
        self.pilot.hold(self._session, stamp_ns, immediate=False)

    def fault(self, reason: str, stamp_ns: int | None, ends: Ends = Ends.OBSERVATION) -> None:
        """Hold for a reason that no verb gave; see `PolicyEngine.fault`."""
        self.faults += 1
        self.last_error = reason
        if not self.active:
            self._changed()
            return
        if self.halt is None or self.halt.ends is not Ends.VERB:
            fresh = self.halt is None
            self.executor.suspend()
            if fresh and not self.options.lockstep:
                self.hold_now()
            self.begin_halt(reason, ends)
        if self.options.lockstep and stamp_ns is not None:
            self.answer(stamp_ns)
        self._changed()

    def begin_halt(self, reason: str, ends: Ends) -> None:
        """Hold from now on, or for another reason than so far; a hold's begin is told."""
        was, self.halt = self.halt, Halt(reason, self._clock(), ends)
        if was is None or (ends is Ends.VERB and was.ends is not Ends.VERB):
            detail = {"reason": reason, "ends": ends.value}
            self._teller.tell("HOLD", Motion.HOLD, detail=detail)

    def emergency(self) -> None:
        """The emergency stop was pressed or released; see what holds now."""
        reason = self._safety.emergency.reason
        if not self.active:
            return
        if not reason:
            if self.halt is not None:
                self.halt = replace(self.halt, reason="emergency stop released: resume")
            return
        self.faults += 1
        self.last_error = reason
        if not self._session.needs_reset:
            self._session.raise_epoch()
        self.settle(Motion.HOLD, reason)
        detail = {"reason": reason, "ends": Ends.VERB.value}
        self._teller.tell("HOLD", Motion.HOLD, detail=detail)

    def watch(self, explain: Callable[[int], str]) -> None:
        """Look whether observations still come, and the clock still moves.

        explain: says, at a time, ns, why there is no complete observation.
        """
        if not self.active or self.options.lockstep or self.seen is None:
            return
        now_ns = self._clock()
        if self._safety.clock.stands_still(now_ns):
            if self.halt is None:
                self.fault(f"the clock stands still at {now_ns * 1e-9:.3f} s", None, Ends.CLOCK)
            return
        if self.halt is not None and self.halt.ends is Ends.CLOCK:
            self.halt = replace(self.halt, ends=Ends.OBSERVATION)
        age_ns = now_ns - self.seen.stamp_ns
        timeout_ns = round(self.options.observation_timeout * 1e9)
        if 0 < timeout_ns < age_ns and self.halt is None:
            reason = f"no complete observation for {age_ns * 1e-9:.2f} s"
            which = explain(now_ns)
            self.fault(f"{reason}: {which}" if which else reason, None)

    # -- begin and end ---------------------------------------------------------------------

    def set_active(self, active: bool) -> None:
        """Begin with the next observation, or hold and stop."""
        if self.active and not active:
            self.executor.suspend()
            self.halt = None
            if not self.options.lockstep:
                self.hold_now()
        self.active = active
        if active:
            self.pilot.forget()  # somebody else may have moved the joints meanwhile
            if self._safety.emergency.pressed:
                self.begin_halt(self._safety.emergency.reason, Ends.VERB)
        self.seen = None
        self._begun = False
        self.not_before_ns = self._clock() if active else 0

    def forget(self) -> None:
        """Time went back: nothing that was seen or commanded has a meaning any more."""
        self.seen = None
        self.not_before_ns = 0
        self.pilot.forget()
        self.executor.drop()
