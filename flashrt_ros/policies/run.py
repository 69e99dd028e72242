# SPDX-License-Identifier: Apache-2.0
"""Timed runs: the policy works under an instruction for a while, then it holds or goes on.

One run at a time. What ends it, and with which code:

| what | code | motion |
|---|---|---|
| its duration has passed | OK | `at_end` |
| `cancel` | CANCELLED | `at_end` |
| a later run; another instruction, by whatever verb | PREEMPTED | that verb's |
| a tick failed: the state needs a reset | NEEDS_RESET | held already |
| the node is deactivated or cleaned up | CANCELLED | held by that |

A hold (interrupt, emergency stop, a missing observation) pauses the arm, not the run: its clock
goes on, and `ticks` says how much of it was work. So does a restore or rollback to a state with the
run's own instruction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from flashrt_ros.policies.engine import PolicyEngine
from flashrt_ros.policies.motion import Motion
from flashrt_ros.policies.status import EngineState, EngineStatus
from flashrt_ros.runtime import Code, Event, EventKind, Session
from flashrt_ros.runtime.errors import (
    Cancelled,
    InvalidArgument,
    NotReady,
    RuntimeFault,
    UnknownInstruction,
)

_REMEMBERED = 256  # ids of runs that ended, and of runs that were cancelled before they began


@dataclass(frozen=True)
class RunGoal:
    """What is asked for.

    Attributes:
        id: names the run; a caller that chooses it can cancel before the run has begun.
        instruction: empty: the one in force.
        duration_ns: of the engine's clock; 0: until it is cancelled.
        at_end: HOLD, or UNCHANGED to go on ticking.
        expected_boundary, expected_epoch: refuse unless these are live; None: any.
    """

    id: str
    instruction: str = ""
    duration_ns: int = 0
    at_end: Motion = Motion.HOLD
    expected_boundary: int | None = None
    expected_epoch: int | None = None


@dataclass(frozen=True)
class RunReport:
    """How a run ended."""

    id: str
    code: Code
    message: str
    ticks: int
    elapsed_ns: int
    motion: Motion
    status: EngineStatus


@dataclass(frozen=True)
class RunProgress:
    """Where a run is. `remaining_ns` is 0 where there is no end."""

    id: str
    elapsed_ns: int
    remaining_ns: int
    ticks: int
    status: EngineStatus


@dataclass(eq=False)
class Run:
    """A run that has begun; `ended` is done when it is over."""

    goal: RunGoal
    instruction: str
    started_ns: int
    ticks: int = 0
    ended: Future[RunReport] = field(default_factory=Future)

    def is_over(self, now_ns: int) -> bool:
        """Whether its duration has passed."""
        return 0 < self.goal.duration_ns <= now_ns - self.started_ns


class TimedRuns:
    """The runs of one engine.

    Args:
        engine: hosts the policy.
        clock: that of the engine, ns.
    """

    def __init__(self, engine: PolicyEngine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._current: Run | None = None
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._cancelled: OrderedDict[str, None] = OrderedDict()
        self._unsubscribe = engine.session.subscribe(self._on_session_event)

    # -- verbs, replay thread: pass these to `submit` --------------------------------------

    def start(self, goal: RunGoal) -> Run:
        """Begin a run: end a hold by REPLAN, set the instruction, pre-empt the run under way.

        Raises:
            Cancelled: it was cancelled before it came.
            NotReady: the node is not active.
            InvalidArgument, UnknownInstruction, StaleBoundary, StaleEpoch, EmergencyStop: nothing
                was changed, and the run under way goes on.
        """
        engine = self._engine
        if goal.id in self._cancelled:
            raise Cancelled(f"run '{goal.id}' was cancelled before it began")
        if goal.at_end not in (Motion.HOLD, Motion.UNCHANGED):
            raise InvalidArgument(f"at_end is {goal.at_end!r}, expected HOLD or UNCHANGED")
        if goal.duration_ns < 0:
            raise InvalidArgument(f"duration is {goal.duration_ns} ns, expected 0 or more")
        engine.session.require(
            expected_boundary=goal.expected_boundary, expected_epoch=goal.expected_epoch
        )
        status = engine.picture()
        if status.state is EngineState.INACTIVE:
            raise NotReady("the node is not active: activate it first")
        if goal.instruction:
            try:
                engine.model.check_instruction(goal.instruction)
            except ValueError as error:
                raise UnknownInstruction(str(error)) from error
        engine.safety.emergency.require_released()
        if status.state is EngineState.HOLDING:
            engine.resume(Motion.REPLAN)
        self._end(Code.PREEMPTED, f"run '{goal.id}' took over")
        if goal.instruction:
            engine.set_instruction(goal.instruction)
        run = Run(goal, goal.instruction or status.instruction, self._clock())
        self._current = run
        engine.run = goal.id
        engine.announce(
            "RUN_START",
            request_id=goal.id,
            instruction=run.instruction,
            duration_ns=goal.duration_ns,
            at_end=goal.at_end.name,
        )
        return run

    def cancel(self, run_id: str) -> str:
        """End the run of this id, or the one under way where it is empty. Returns what was done.

        An id that has not come yet is remembered: its run is refused when it comes.
        """
        run = self._current
        if run is not None and run_id in ("", run.goal.id):
            self._end(Code.CANCELLED, "cancelled", run.goal.at_end)
            return f"run '{run.goal.id}' is cancelled"
        if not run_id:
            return "no run is under way"
        if run_id in self._ended:
            return f"run '{run_id}' had ended"
        _remember(self._cancelled, run_id)
        return f"run '{run_id}' has not come yet and will be refused"

    # -- any thread ------------------------------------------------------------------------

    def progress(self) -> RunProgress | None:
        """Where the run under way is; None without one."""
        run = self._current
        if run is None:
            return None
        elapsed_ns = self._clock() - run.started_ns
        duration_ns = run.goal.duration_ns
        remaining_ns = max(duration_ns - elapsed_ns, 0) if duration_ns else 0
        return RunProgress(run.goal.id, elapsed_ns, remaining_ns, run.ticks, self._engine.status)

    def poll(self) -> None:
        """Look whether the run is over; call it several times a second.

        A world in lockstep goes by the stamps of observations alone, so that a run ends at the same
        tick each time.
        """
        run = self._current
        if run is None:
            return
        if self._verdict(run, self._engine.status) is not None:
            self._engine.submit(lambda session: self._review(run))

    def end_all(self, why: str) -> None:
        """The node stops: end the run, whoever stops the node sees to the arm."""
        run = self._current
        if run is not None:
            self._submit_end(run, Code.CANCELLED, why, Motion.UNCHANGED)

    def close(self) -> None:
        """Answer whoever still waits; the engine is closed by now. Idempotent."""
        self._unsubscribe()
        run, self._current = self._current, None
        if run is not None:
            run.ended.set_result(self._report(run, Code.CANCELLED, "cleaned up", Motion.UNCHANGED))

    # -- helpers ---------------------------------------------------------------------------

    def _verdict(self, run: Run, status: EngineStatus) -> tuple[Code, str, Motion] | None:
        """Why a run is over, and what then becomes of motion; None: it goes on."""
        if status.state is EngineState.NEEDS_RESET:
            return Code.NEEDS_RESET, status.reason, Motion.UNCHANGED
        if status.instruction != run.instruction:
            why = f"the instruction is now '{status.instruction}'"
            return Code.PREEMPTED, why, Motion.UNCHANGED
        if not self._engine.options.lockstep and run.is_over(self._clock()):
            return Code.OK, "", run.goal.at_end
        return None

    def _review(self, run: Run) -> None:
        """On the replay thread, where the picture is not that of an earlier verb."""
        verdict = self._verdict(run, self._engine.picture())
        if run is self._current and verdict is not None:
            self._end(*verdict)

    def _submit_end(self, run: Run, code: Code, why: str, motion: Motion) -> None:
        def end(session: Session) -> None:
            if run is self._current:
                self._end(code, why, motion)

        self._engine.submit(end)

    def _end(self, code: Code, message: str, at_end: Motion = Motion.UNCHANGED) -> None:
        """On the replay thread: end the run under way, if there is one."""
        run = self._current
        if run is None:
            return
        self._current = None
        self._engine.run = ""
        _remember(self._ended, run.goal.id)
        applied = Motion.UNCHANGED
        if at_end is Motion.HOLD:
            try:
                applied = self._engine.interrupt()
            except RuntimeFault as fault:  # not active or in need of a reset: held already
                message = f"{message} ({fault})".strip()
        report = self._report(run, code, message, applied)
        self._engine.announce(
            "RUN_END",
            request_id=run.goal.id,
            code=code.name,
            message=report.message,
            ticks=run.ticks,
            elapsed_ns=report.elapsed_ns,
        )
        run.ended.set_result(report)

    def _report(self, run: Run, code: Code, message: str, motion: Motion) -> RunReport:
        elapsed_ns = self._clock() - run.started_ns
        told = message or f"{run.ticks} ticks under '{run.instruction}'"
        status = self._engine.picture()
        return RunReport(run.goal.id, code, told, run.ticks, elapsed_ns, motion, status)

    def _on_session_event(self, event: Event) -> None:
        run = self._current
        if run is None or event.kind is not EventKind.COMMIT:
            return
        run.ticks += 1
        if run.is_over(event.record.stamp_ns):
            # Verbs are served before the next tick.
            self._submit_end(run, Code.OK, "", run.goal.at_end)


def _remember(ids: OrderedDict[str, None], run_id: str) -> None:
    ids[run_id] = None
    if len(ids) > _REMEMBERED:
        ids.popitem(last=False)
