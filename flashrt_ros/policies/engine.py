# SPDX-License-Identifier: Apache-2.0
"""The policy engine: one replay thread that ticks, commits, and serves verbs in between.

Every other thread only leaves things for it: the newest observation in a mailbox, verbs in the
session's queue. So a snapshot never sees a half-done replay, an interrupt waits for one replay
at most, and after a verb has answered nothing of an older epoch leaves the engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

import numpy as np

from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.policies.action_space import ActionSpaces
from flashrt_ros.policies.motion import Motion
from flashrt_ros.policies.observation import Observation
from flashrt_ros.policies.output import EngineListener
from flashrt_ros.policies.safety import Safety
from flashrt_ros.policies.settlement import Settlement
from flashrt_ros.policies.status import Ends, EngineOptions, EngineState, EngineStatus
from flashrt_ros.policies.telling import EventTeller
from flashrt_ros.policies.ticker import Ticker
from flashrt_ros.runtime import RestoreReport, Session, SessionHost, StateItem
from flashrt_ros.runtime.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotReady,
    UnknownInstruction,
)

logger = logging.getLogger(__name__)

_AT_ONCE = 0.02  # s that a deactivation waits for the replay thread before it holds beside it


class PolicyEngine(SessionHost):
    """Hosts a policy: ticks on observations, commits boundaries, applies verbs, moves or holds.

    Args:
        model: a policy that is bound to the session's arena.
        session: the live state; the engine becomes its replay thread.
        listener: told of chunks, commands and events, on the replay thread.
        clock: the time that observations are stamped in, ns.
        options: see `EngineOptions`.
        safety: what every command passes on its way out, and what is watched; None: the emergency
            switch, and no value that is not finite.
        spaces: what the policy's actions mean; None: absolute positions.

    Raises:
        ValueError: the policy doesn't know the words of `options.instruction`, or cannot be
            executed as `options.execution` says.
    """

    def __init__(
        self,
        model: PolicyModel,
        session: Session,
        listener: EngineListener,
        *,
        clock: Callable[[], int] = time.time_ns,
        options: EngineOptions | None = None,
        safety: Safety | None = None,
        spaces: ActionSpaces | None = None,
    ) -> None:
        super().__init__(session)
        self.model = model
        self.options = options or EngineOptions()
        self.safety = safety or Safety(
            model.spec.joint_names,
            velocities=() if spaces is None else spaces.velocity,
            lockstep=self.options.lockstep,
        )
        self._listener = listener
        self._instruction: str = self.options.instruction
        self._teller = EventTeller(session, listener, lambda: self._instruction)
        self._settlement = Settlement(
            model,
            session,
            listener,
            clock=clock,
            options=self.options,
            safety=self.safety,
            spaces=spaces,
            teller=self._teller,
            changed=self._refresh,
        )
        self._pilot, self._executor = self._settlement.pilot, self._settlement.executor
        self._ticker = Ticker(
            model,
            session,
            listener,
            settlement=self._settlement,
            teller=self._teller,
            safety=self.safety,
            instruction=lambda: self._instruction,
            void=lambda: self._pausing.is_set(),
        )
        self._lock = threading.Lock()
        self._mailbox: Observation | None = None
        self._motion = Motion.REPLAN
        self._status: EngineStatus | None = None
        self.idle = self._ticker.idle
        """Set while no tick is under way: what need not run at once gives way to ticks by it."""
        self.run = ""
        """Id of the timed run under way, for the status; see `TimedRuns`."""
        self.explain_silence: Callable[[int], str] = lambda now_ns: ""
        """Says, at a time, ns, why there is no complete observation; on the replay thread."""
        self._pausing = threading.Event()
        """Set from a deactivation that could not wait for the tick under way to its end."""
        self._given_up = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flashrt-replay", daemon=True)
        model.check_instruction(self._instruction)
        model.write_instruction(self._instruction)
        session.register_state(self._instruction_item())
        session.register_state(self._executor.state_item())

    # -- life cycle, any thread ------------------------------------------------------------

    def start(self) -> None:
        """Start the replay thread. Verbs are served from now on; ticking waits for `activate`."""
        self._thread.start()

    def close(self, timeout: float | None = None) -> None:
        """Stop the thread and answer every verb that still waits. Idempotent.

        A tick that does not end within `timeout` s, or kept `deactivate` waiting so long before, is
        left: its thread ends after it, and nothing comes of it.
        """
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._wake()
            self._thread.join(0.0 if self._given_up else timeout)
            if self._thread.is_alive() and not self._given_up:
                self._give_up(timeout or 0.0)
        self._teller.close()
        self.session.close()

    def activate(self) -> None:
        """Begin to tick with the next observation."""
        self.call(lambda session: self._set_active(True))

    def deactivate(self, timeout: float | None = None) -> None:
        """Hold the arm and stop ticking. The state stays as it is.

        A tick that is under way is hardly waited for: the hold is sent beside it, and its chunk is
        committed and not sent when it ends.

        Raises:
            DeadlineExceeded: it did not end within `timeout` s. The arm is held, and from now on
                nothing but holds leaves this engine, whatever happens: close it.
        """
        if self._given_up:
            raise DeadlineExceeded(self._given_up)
        done = self.submit(lambda session: self._set_active(False))
        if not _is_done(done, _AT_ONCE) and not self.options.lockstep:
            self._pausing.set()
            if self._settlement.active:
                self._settlement.hold_now()
        if not _is_done(done, timeout):
            self._give_up(timeout or 0.0)
            raise DeadlineExceeded(self._given_up)
        done.result()

    def _give_up(self, waited: float) -> None:
        """Any thread: the replay thread is lost; hold, and let nothing else leave from now on."""
        self._given_up = f"the tick under way did not end within {waited:g} s and was given up"
        logger.error(self._given_up)
        self._pausing.set()
        self.safety.emergency.jam(self._given_up)
        if self._settlement.active and not self.options.lockstep:
            self._settlement.hold_now()

    @property
    def status(self) -> EngineStatus:
        """The state after the last tick or verb."""
        status = self._status
        return status if status is not None else self._picture()

    def picture(self) -> EngineStatus:
        """On the replay thread: the state within a verb, which `status` does not know yet."""
        return self._picture()

    @property
    def newest_observation(self) -> Observation | None:
        """The newest complete observation since activation, ticked on or not."""
        return self._settlement.seen

    # -- inputs, any thread ----------------------------------------------------------------

    def offer(self, observation: Observation) -> None:
        """Leave an observation; the newest one wins."""
        with self._lock:
            self._mailbox = observation
        self._wake()

    def measure(self, positions: np.ndarray) -> None:
        """Tell where the joints are now, float64 `[joints]`, between observations."""
        self._pilot.measured = positions

    def fault(
        self, reason: str, *, stamp_ns: int | None = None, ends: Ends = Ends.OBSERVATION
    ) -> None:
        """Hold the arm because of a bad or missing input.

        `stamp_ns` is the stamp of the bad message, which a lockstep world waits to be answered.
        """
        self.session.submit(lambda session: self._settlement.fault(reason, stamp_ns, ends))

    def press_emergency_stop(self, reason: str) -> Future[None]:
        """Nothing but a hold leaves from now on, and one does at once; any thread.

        It does not wait for a tick that is under way: that one's chunk is refused, and its epoch
        void, as soon as it ends. Verbs that would move the arm are refused until the release.
        """
        self.safety.emergency.press(reason)
        if self._settlement.active and not self.options.lockstep:
            self._settlement.hold_now()
        return self.submit(lambda session: self._settlement.emergency())

    def watch_tick(self) -> None:
        """Hold when the tick under way does not end; any thread but the replay thread, often.

        What it comes to is not executed when it ends after all, see `Deadline`.
        """
        overdue = self._settlement.active and self.safety.deadline.is_overdue()
        if overdue and not self._pilot.holding:
            self._settlement.hold_now()

    def release_emergency_stop(self) -> Future[None]:
        """Verbs may move the arm again. It stays held until one does; any thread."""
        self.safety.emergency.release()
        return self.submit(lambda session: self._settlement.emergency())

    def clock_jumped(self) -> Future[None]:
        """The clock went back: raise the epoch and forget every input."""

        def apply(session: Session) -> None:
            session.raise_epoch()
            with self._lock:
                self._mailbox = None
            self._settlement.forget()
            self._teller.tell("CLOCK_JUMP", Motion.REPLAN)

        return self.submit(apply)

    # -- verbs, replay thread: pass these to `submit` --------------------------------------

    def adjust(self, **changes: Any) -> None:
        """Other values of `EngineOptions`, by name, from the next tick on."""
        self.options = replace(self.options, **changes)
        self._settlement.options = self.options
        self._pilot.hold_duration = self.options.hold_duration

    def restore(self, ref: str, motion: Motion, **checks: Any) -> tuple[RestoreReport, Motion]:
        """Make a capsule's state live, then do what `motion` says.

        Keyword arguments are those of `Session.restore`. Returns the report and the motion that
        was applied: `CONTINUE` becomes `REPLAN` out of tolerance.
        """
        self._check_motion(motion, Motion.HOLD, Motion.REPLAN, Motion.CONTINUE)
        self._require_safe(motion)
        return self._move_state(motion, lambda: self.session.restore(ref, **checks))

    def rollback(self, motion: Motion, **where: Any) -> tuple[RestoreReport, Motion]:
        """`Session.rollback`, then `motion`."""
        self._check_motion(motion, Motion.HOLD, Motion.REPLAN, Motion.CONTINUE)
        self._require_safe(motion)
        return self._move_state(motion, lambda: self.session.rollback(**where))

    def reset(self, motion: Motion, **checks: Any) -> tuple[RestoreReport, Motion]:
        """`Session.reset`: back to the first boundary, then `motion`."""
        self._check_motion(motion, Motion.HOLD, Motion.REPLAN)
        self._require_safe(motion)
        return self._move_state(motion, lambda: self.session.reset(**checks))

    def interrupt(self, **checks: Any) -> Motion:
        """Stop ticking, raise the epoch and hold."""
        self._require_active()
        self.session.require(**checks)
        self.session.raise_epoch()
        applied = self._settlement.settle(Motion.HOLD, "interrupted")
        self._teller.tell("INTERRUPT", applied)
        return applied

    def resume(self, motion: Motion, **checks: Any) -> Motion:
        """End a hold."""
        self._require_active()
        self._check_motion(motion, Motion.UNCHANGED, Motion.REPLAN, Motion.CONTINUE)
        self._require_safe(motion)
        self.session.require(**checks)
        if self._settlement.halt is None:
            raise NotReady("nothing to resume: the policy is not held")
        if motion is Motion.UNCHANGED:
            motion = Motion.REPLAN if self._motion is Motion.HOLD else self._motion
        applied = self._settlement.settle(motion)
        self._teller.tell("RESUME", applied)
        return applied

    def announce(self, kind: str, *, request_id: str = "", **detail: Any) -> None:
        """Tell an event of a layer above, a run's begin say; see `EngineEvent`."""
        self._teller.tell(kind, Motion.UNCHANGED, request_id=request_id, detail=detail)

    def set_instruction(self, text: str, **checks: Any) -> None:
        """Change the instruction from the next tick on. `checks`: those of `Session.require`.

        Raises:
            UnknownInstruction: the policy does not know these words; the old one stays.
        """
        self.session.require(**checks)
        try:
            self.model.check_instruction(text)
        except ValueError as error:
            raise UnknownInstruction(str(error)) from error
        self._instruction = text
        self.model.write_instruction(text)
        halt = self._settlement.halt
        if halt is not None and halt.ends is Ends.INSTRUCTION:
            self._settlement.halt = replace(halt, ends=Ends.OBSERVATION)
        self._teller.tell("INSTRUCTION", Motion.UNCHANGED)

    # -- the replay thread -----------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_once()
            except Exception:
                if not self._given_up:  # nothing is left that a late tick could be committed to
                    logger.exception("the replay thread goes on after")

    def _run_once(self) -> None:
        self.session.serve(timeout=0.02)
        with self._lock:
            observation, self._mailbox = self._mailbox, None
        if observation is not None and not self._stopping.is_set():
            self._ticker.observe(observation)
            self._refresh()
        self._settlement.watch(self.explain_silence)

    def _move_state(
        self, motion: Motion, verb: Callable[[], RestoreReport]
    ) -> tuple[RestoreReport, Motion]:
        report = verb()
        self._motion = motion
        applied = self._settlement.settle(motion)
        # Told only now: the event says what was done with motion, not what was asked for.
        self._teller.tell_restored(applied)
        return report, applied

    # -- helpers ---------------------------------------------------------------------------

    def _set_active(self, active: bool) -> None:
        self._settlement.set_active(active)
        self._pausing.clear()
        with self._lock:
            self._mailbox = None

    def _require_safe(self, motion: Motion) -> None:
        """Refuse what would move the arm while the emergency stop is pressed."""
        if motion is not Motion.HOLD:
            self.safety.emergency.require_released()

    def _require_active(self) -> None:
        if not self._settlement.active:
            raise NotReady("the node is not active: activate it first")

    @staticmethod
    def _check_motion(motion: Motion, *allowed: Motion) -> None:
        if motion not in allowed:
            names = ", ".join(f"{value.name} ({value})" for value in allowed)
            raise InvalidArgument(f"motion {motion!r} is not possible here, expected {names}")

    def _after_verb(self) -> None:
        self._refresh()

    def _instruction_item(self) -> StateItem:
        def check(value: Any) -> None:
            if not isinstance(value, str):
                raise ValueError(f"instruction in the capsule is {value!r}, expected a string")
            self.model.check_instruction(value)

        def put(value: Any) -> None:
            self._instruction = value

        return StateItem("instruction", lambda: self._instruction, check, put)

    def _picture(self) -> EngineStatus:
        settlement, halt = self._settlement, self._settlement.halt
        if self.session.needs_reset:
            state, reason = EngineState.NEEDS_RESET, self.session.fault
        elif not settlement.active:
            state, reason = EngineState.INACTIVE, ""
        elif halt is not None:
            state, reason = EngineState.HOLDING, self.safety.emergency.reason or halt.reason
        elif settlement.seen is None:
            state, reason = EngineState.WAITING, "no complete observation yet"
        else:
            state, reason = EngineState.RUNNING, ""
        live = self.session.live
        return EngineStatus(
            state=state,
            reason=reason,
            boundary=live.number,
            step=live.step,
            epoch=self.session.epoch,
            sequence=self._pilot.sequence,
            instruction=self._instruction,
            last_error=settlement.last_error,
            ticks=self._ticker.ticks,
            faults=settlement.faults,
            execution=str(self.options.execution.mode),
            run=self.run,
            emergency_stop=self.safety.emergency.pressed,
            deadline_misses=self.safety.deadline.misses,
            limit_breaches=self.safety.guard.report.commands,
            last_breach=self.safety.guard.report.last,
        )

    def _refresh(self) -> None:
        picture = self._picture()
        if self._status is None or not picture.looks_like(self._status):
            self._status = picture
            self._listener.on_status()
        else:
            self._status = picture


def _is_done(future: Future[Any], timeout: float | None) -> bool:
    """Wait for it so long, s; None: until it is."""
    return bool(wait([future], timeout).done)
