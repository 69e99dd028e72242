# SPDX-License-Identifier: Apache-2.0
"""The policy engine: one replay thread that ticks, commits, and serves verbs in between.

Every other thread only leaves things for it: the newest observation in a mailbox, verbs in the
session's queue. So a snapshot never sees a half-done replay, an interrupt waits for one replay
at most, and after a verb has answered nothing of an older epoch leaves the engine.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from flashrt_ros.models.policy import PolicyModel, write_inputs
from flashrt_ros.policies.action_space import ActionSpaces
from flashrt_ros.policies.execution import ChunkExecutor, Progress
from flashrt_ros.policies.motion import Motion
from flashrt_ros.policies.observation import Observation
from flashrt_ros.policies.output import ChunkOutput, CommandOutput, EngineEvent, EngineListener
from flashrt_ros.policies.pilot import Pilot
from flashrt_ros.policies.safety import Safety
from flashrt_ros.policies.status import Ends, EngineOptions, EngineState, EngineStatus, Halt
from flashrt_ros.policies.trajectory import Trajectory
from flashrt_ros.runtime import Event, RestoreReport, Session, SessionHost, StateItem
from flashrt_ros.runtime.errors import InvalidArgument, NotReady, UnknownInstruction

logger = logging.getLogger(__name__)


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
        self._clock = clock
        self._pilot = Pilot(
            listener,
            self.options.hold_duration,
            clock=clock,
            guard=self.safety.guard,
            spaces=spaces,
            lockstep=self.options.lockstep,
        )
        execution = self.options.execution
        relative = spaces is not None and spaces.any_relative
        execution.check(model, lockstep=self.options.lockstep, relative=relative)
        self._executor = ChunkExecutor(
            model, execution, lockstep=self.options.lockstep, progress=self._progress
        )
        self._lock = threading.Lock()
        self._mailbox: Observation | None = None
        self._instruction = self.options.instruction
        self._active = False
        self._halt: Halt | None = None
        self._motion = Motion.REPLAN
        self._not_before_ns = 0
        self._last_observation: Observation | None = None
        self._read: Observation | None = None
        self._pending: Trajectory | None = None
        self._conditioning: Mapping[str, Any] = {}
        self._untold: Event | None = None
        self._events = 0
        self._ticks = 0
        self._faults = 0
        self._last_error = ""
        self._status: EngineStatus | None = None
        self.run = ""
        """Id of the timed run under way, for the status; see `TimedRuns`."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flashrt-replay", daemon=True)
        model.check_instruction(self._instruction)
        model.write_instruction(self._instruction)
        session.register_state(self._instruction_item())
        session.register_state(self._executor.state_item())
        self._unsubscribe = session.subscribe(self._on_session_event)

    # -- life cycle, any thread ------------------------------------------------------------

    def start(self) -> None:
        """Start the replay thread. Verbs are served from now on; ticking waits for `activate`."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and answer every verb that still waits. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._wake()
            self._thread.join()
        self._unsubscribe()
        self.session.close()

    def activate(self) -> None:
        """Begin to tick with the next observation."""
        self.call(lambda session: self._set_active(True))

    def deactivate(self) -> None:
        """Hold the arm and stop ticking. The state stays as it is."""
        self.call(lambda session: self._set_active(False))

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
        return self._last_observation

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
        self.session.submit(lambda session: self._on_fault(reason, stamp_ns, ends))

    def press_emergency_stop(self, reason: str) -> Future[None]:
        """Nothing but a hold leaves from now on, and one does at once; any thread.

        It does not wait for a tick that is under way: that one's chunk is refused, and its epoch
        void, as soon as it ends. Verbs that would move the arm are refused until the release.
        """
        self.safety.emergency.press(reason)
        if self._active and not self.options.lockstep:
            self._pilot.hold(self.session, self._clock(), immediate=True)
        return self.submit(lambda session: self._on_emergency())

    def release_emergency_stop(self) -> Future[None]:
        """Verbs may move the arm again. It stays held until one does; any thread."""
        self.safety.emergency.release()
        return self.submit(lambda session: self._on_emergency())

    def clock_jumped(self) -> Future[None]:
        """The clock went back: raise the epoch and forget every input."""

        def apply(session: Session) -> None:
            session.raise_epoch()
            with self._lock:
                self._mailbox = None
            self._last_observation = None
            self._not_before_ns = 0
            self._pilot.forget()
            self._executor.drop()
            self._tell("CLOCK_JUMP", Motion.REPLAN)

        return self.submit(apply)

    # -- verbs, replay thread: pass these to `submit` --------------------------------------

    def adjust(self, **changes: Any) -> None:
        """Other values of `EngineOptions`, by name, from the next tick on."""
        self.options = replace(self.options, **changes)
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
        applied = self._settle(Motion.HOLD, "interrupted")
        self._tell("INTERRUPT", applied)
        return applied

    def resume(self, motion: Motion, **checks: Any) -> Motion:
        """End a hold."""
        self._require_active()
        self._check_motion(motion, Motion.UNCHANGED, Motion.REPLAN, Motion.CONTINUE)
        self._require_safe(motion)
        self.session.require(**checks)
        if self._halt is None:
            raise NotReady("nothing to resume: the policy is not held")
        if motion is Motion.UNCHANGED:
            motion = Motion.REPLAN if self._motion is Motion.HOLD else self._motion
        applied = self._settle(motion)
        self._tell("RESUME", applied)
        return applied

    def announce(self, kind: str, *, request_id: str = "", **detail: Any) -> None:
        """Tell an event of a layer above, a run's begin say; see `EngineEvent`."""
        self._tell(kind, Motion.UNCHANGED, request_id=request_id, detail=detail)

    def set_instruction(self, text: str, *, expected_boundary: int | None = None) -> None:
        """Change the instruction from the next tick on.

        Raises:
            UnknownInstruction: the policy does not know these words; the old one stays.
        """
        self.session.require(expected_boundary=expected_boundary)
        try:
            self.model.check_instruction(text)
        except ValueError as error:
            raise UnknownInstruction(str(error)) from error
        self._instruction = text
        self.model.write_instruction(text)
        if self._halt is not None and self._halt.ends is Ends.INSTRUCTION:
            self._halt = None
        self._tell("INSTRUCTION", Motion.UNCHANGED)

    # -- the replay thread -----------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_once()
            except Exception:
                logger.exception("the replay thread goes on after")

    def _run_once(self) -> None:
        self.session.serve(timeout=0.02)
        with self._lock:
            observation, self._mailbox = self._mailbox, None
        if observation is not None and not self._stopping.is_set():
            self._on_observation(observation)
            self._refresh()
        self._watch()

    def _on_observation(self, observation: Observation) -> None:
        if not self._active:
            return
        self._pilot.measured = observation.positions
        last = self._last_observation
        if last is not None and observation.stamp_ns <= last.stamp_ns:
            if self.options.lockstep and observation.stamp_ns == last.stamp_ns:
                if self.safety.emergency.pressed:
                    self._pilot.hold(self.session, observation.stamp_ns, immediate=False)
                else:
                    self._pilot.repeat()
            return
        if not self.options.lockstep and observation.stamp_ns < self._not_before_ns:
            return
        self._last_observation = observation
        # A hold that this observation may end does so when its tick has commanded a motion.
        if self._halt is not None and self._halt.ends not in (Ends.OBSERVATION, Ends.TICK):
            if self.options.lockstep:
                self._pilot.hold(self.session, observation.stamp_ns, immediate=False)
            return
        self._tick(observation)

    def _tick(self, observation: Observation) -> None:
        started = time.perf_counter()
        try:
            taken_up = self._executor.begin(observation.stamp_ns)
            if taken_up is not None:
                self._pilot.running = taken_up
            write_inputs(self.model, observation.images, observation.positions, observation.vectors)
            conditioning = self._executor.condition(observation.stamp_ns)
            replaying = time.perf_counter()
            self.model.tick()
            replay_s = time.perf_counter() - replaying
            actions = self.model.chunk()
            chunk = self._pilot.chunk(observation, actions, self.model.spec.chunk_dt)
        except Exception as error:
            # The buffers may be half-way into a step: no boundary describes them any more.
            logger.exception("tick failed")
            self.session.invalidate(f"tick failed: {error}")
            self._on_fault(f"tick failed: {error}", observation.stamp_ns, Ends.VERB)
            return
        inference_s = time.perf_counter() - started
        self._read = observation
        # What a replay needs beside observation and instruction, and what it must come to.
        digest = hashlib.blake2b(np.ascontiguousarray(actions).data, digest_size=16).hexdigest()
        self._conditioning = {"chunk_digest": digest}
        if conditioning:
            self._conditioning |= {"conditioning": dict(conditioning)}
        inputs = observation.digest() + self._instruction.encode()
        now_ns = self._now(observation.stamp_ns) + self._executor.simulated_delay_ns
        planned = self._executor.execute(chunk, now_ns, self._pilot.running)
        # Capsules of this boundary hold its chunk, although it is not sent before the commit.
        self._pending = None if planned is None else self._pilot.executed(planned, now_ns)
        self.session.commit(stamp_ns=observation.stamp_ns, inputs=inputs)
        self._pending = None
        self._ticks += 1
        if planned is None:
            late_s = (now_ns - chunk.start_ns) * 1e-9
            reason = f"the chunk was over when it was there, {late_s:.2f} s after its observation"
            self._on_fault(reason, observation.stamp_ns)
            return
        missed = self.safety.deadline.judge(inference_s)
        if missed:
            self._executor.drop()
            self._on_fault(missed, observation.stamp_ns, Ends.TICK)
            return
        command = self._move(planned, now_ns)
        if command is not None:
            self._listener.on_chunk(
                ChunkOutput(
                    command,
                    self._instruction,
                    observation.stamps,
                    inference_s,
                    replay_s,
                    execution=str(self.options.execution.mode),
                    frozen_points=int(conditioning.get("frozen", 0)),
                )
            )

    def _move(self, trajectory: Trajectory, now_ns: int) -> CommandOutput | None:
        """Command a trajectory; None if the guard refused it: it has become a hold, as is said."""
        command = self._pilot.move(self.session, trajectory, now_ns)
        if self._pilot.refused:
            self._executor.drop()
            self._faults += 1
            self._last_error = self._pilot.refused
            self._begin_halt(self._pilot.refused, Ends.OBSERVATION)
            return None
        if self._halt is not None:
            reason, self._halt = self._halt.reason, None
            logger.info("recovered: %s", reason)
            self._tell("RECOVER", Motion.REPLAN, detail={"reason": reason})
        return command

    def _move_state(
        self, motion: Motion, verb: Callable[[], RestoreReport]
    ) -> tuple[RestoreReport, Motion]:
        report = verb()
        self._motion = motion
        applied = self._settle(motion)
        # Told only now: the event says what was done with motion, not what was asked for.
        event, self._untold = self._untold, None
        if event is not None:
            self._tell(event.kind.name, applied, source=event)
        return report, applied

    def _settle(self, motion: Motion, reason: str = "held by a restore") -> Motion:
        """Do what a verb says about motion; returns what was done."""
        now_ns = self._clock()
        if motion is Motion.CONTINUE:
            self._executor.suspend()
        rest = self._rest(now_ns) if motion is Motion.CONTINUE else None
        if motion is Motion.CONTINUE and rest is None:
            motion = Motion.REPLAN
        self._halt = None
        self._not_before_ns = now_ns
        if motion is Motion.HOLD:
            self._executor.suspend()
            self._halt = Halt(reason, now_ns, Ends.VERB)
        elif motion is Motion.REPLAN:
            self._executor.drop()
        if not self._active:
            return motion
        if not self.options.lockstep:
            # What a controller still executes belongs to the old epoch: replace it at once.
            if rest is not None:
                self._pilot.begin()
                motion = Motion.HOLD if self._move(rest, now_ns) is None else motion
            else:
                self._pilot.hold(self.session, now_ns, immediate=True)
        return motion

    def _rest(self, now_ns: int) -> Trajectory | None:
        """What is left of the chunk under way, if the joints are where they were then."""
        left, measured = self._executor.left, self._pilot.measured
        if left is None or left.measured is None or measured is None:
            return None
        if np.max(np.abs(measured - left.measured)) > self.options.continue_tolerance:
            return None
        return self._executor.take_up(now_ns)

    def _progress(self) -> Progress:
        """How far the trajectory has come that the joints follow now."""
        last = self._last_observation
        if self.options.lockstep:  # what was measured since is no part of the run
            at_ns = 0 if last is None else last.stamp_ns
            measured = None if last is None else last.positions
        else:
            at_ns, measured = self._clock(), self._pilot.measured
        if self._pending is not None:
            return Progress(self._pending, at_ns, measured)
        return Progress(None if self._pilot.holding else self._pilot.running, at_ns, measured)

    def _now(self, stamp_ns: int) -> int:
        """The time: in lockstep that of the observation, for the world waits for its answer."""
        return stamp_ns if self.options.lockstep else self._clock()

    def _on_fault(self, reason: str, stamp_ns: int | None, ends: Ends = Ends.OBSERVATION) -> None:
        self._faults += 1
        self._last_error = reason
        if not self._active:
            self._refresh()
            return
        if self._halt is None or self._halt.ends is not Ends.VERB:
            fresh = self._halt is None
            self._executor.suspend()
            if fresh and not self.options.lockstep:
                self._pilot.hold(self.session, self._clock(), immediate=True)
            self._begin_halt(reason, ends)
        if self.options.lockstep and stamp_ns is not None:
            self._pilot.hold(self.session, stamp_ns, immediate=False)
        self._refresh()

    def _begin_halt(self, reason: str, ends: Ends) -> None:
        """Hold from now on, or for another reason than so far; a hold's begin is told."""
        was, self._halt = self._halt, Halt(reason, self._clock(), ends)
        if was is None or (ends is Ends.VERB and was.ends is not Ends.VERB):
            self._tell("HOLD", Motion.HOLD, detail={"reason": reason, "ends": ends.value})

    def _on_emergency(self) -> None:
        """The emergency stop was pressed or released; see what holds now."""
        reason = self.safety.emergency.reason
        if not self._active:
            return
        if not reason:
            if self._halt is not None:
                self._halt = replace(self._halt, reason="emergency stop released: resume")
            return
        self._faults += 1
        self._last_error = reason
        if not self.session.needs_reset:
            self.session.raise_epoch()
        self._settle(Motion.HOLD, reason)
        self._tell("HOLD", Motion.HOLD, detail={"reason": reason, "ends": Ends.VERB.value})

    def _watch(self) -> None:
        last = self._last_observation
        if not self._active or self.options.lockstep or last is None:
            return
        now_ns = self._clock()
        if self.safety.clock.stands_still(now_ns):
            if self._halt is None:
                self._on_fault(f"the clock stands still at {now_ns * 1e-9:.3f} s", None, Ends.CLOCK)
            return
        if self._halt is not None and self._halt.ends is Ends.CLOCK:
            self._halt = replace(self._halt, ends=Ends.OBSERVATION)
        age_ns = now_ns - last.stamp_ns
        timeout_ns = round(self.options.observation_timeout * 1e9)
        if 0 < timeout_ns < age_ns and self._halt is None:
            self._on_fault(f"no complete observation for {age_ns * 1e-9:.2f} s", None)

    # -- helpers ---------------------------------------------------------------------------

    def _set_active(self, active: bool) -> None:
        if self._active and not active:
            self._executor.suspend()
            self._halt = None
            if not self.options.lockstep:
                self._pilot.hold(self.session, self._clock(), immediate=True)
        self._active = active
        if active:
            self._pilot.forget()  # somebody else may have moved the joints meanwhile
            if self.safety.emergency.pressed:
                self._begin_halt(self.safety.emergency.reason, Ends.VERB)
        self._last_observation = None
        self._not_before_ns = self._clock() if active else 0
        with self._lock:
            self._mailbox = None

    def _require_safe(self, motion: Motion) -> None:
        """Refuse what would move the arm while the emergency stop is pressed."""
        if motion is not Motion.HOLD:
            self.safety.emergency.require_released()

    def _require_active(self) -> None:
        if not self._active:
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

    def _on_session_event(self, event: Event) -> None:
        kind = event.kind.name
        if kind in ("RESTORE", "ROLLBACK", "RESET"):
            self._untold = event
        elif kind != "EPOCH":  # that one is told by the verb that raised it
            read = self._read if kind == "COMMIT" else None
            detail = self._conditioning if read is not None else None
            self._tell(kind, Motion.UNCHANGED, source=event, read=read, detail=detail)

    def _tell(
        self,
        kind: str,
        motion: Motion,
        source: Event | None = None,
        read: Observation | None = None,
        request_id: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        live = self.session.live
        self._events += 1
        event = EngineEvent(
            kind=kind,
            index=self._events,
            boundary=live.number,
            parent=live.parent,
            step=live.step,
            epoch=self.session.epoch,
            instruction=self._instruction,
            motion=motion,
            inputs_digest=live.inputs_digest,
            stamps=read.stamps if read is not None else {},
            digests=read.digests if read is not None else {},
            source=source,
            request_id=request_id,
            detail=detail or {},
        )
        self._listener.on_event(event)

    def _picture(self) -> EngineStatus:
        if self.session.needs_reset:
            state, reason = EngineState.NEEDS_RESET, self.session.fault
        elif not self._active:
            state, reason = EngineState.INACTIVE, ""
        elif self._halt is not None:
            state, reason = EngineState.HOLDING, self.safety.emergency.reason or self._halt.reason
        elif self._last_observation is None:
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
            last_error=self._last_error,
            ticks=self._ticks,
            faults=self._faults,
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
