# SPDX-License-Identifier: Apache-2.0
"""Futures tried out beside the live state: branches of a capsule run forward on a second arena.

The second arena has the live one's buffers and its model the live one's weights. It reads capsules
out of the live store, so that no byte of them is there twice, and it ticks on a thread of its own:
the live state, its epoch, its history and the arm never learn of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.policies.observation import Observation
from flashrt_ros.policies.twin import Twin
from flashrt_ros.runtime import Code, RuntimeFault, Session, Tier
from flashrt_ros.runtime.capsule import Capsule, new_id
from flashrt_ros.runtime.errors import (
    Busy,
    Cancelled,
    InvalidArgument,
    NotReady,
    UnknownInstruction,
)
from flashrt_ros.runtime.plans import Backend

T = TypeVar("T")

TAG = "evaluation"
"""Tag of the capsules that an evaluation makes."""

_MOST_WAITING = 8
_MOST_BRANCHES = 256
_MOST_TICKS = 10_000
_GIVE_WAY = 0.1  # s, longest wait for the live tick under way


@dataclass(frozen=True)
class Branch:
    """One future to try. None: the capsule's own instruction or seed."""

    label: str = ""
    instruction: str | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Evaluation:
    """What is to be tried out.

    Attributes:
        id: names it, for `Evaluator.cancel`.
        branches: one or more, run one after the other.
        capsule: id or name; empty: the live state at the next boundary.
        ticks: of each branch.
        observations: one for each tick, or one for all; empty: the newest one that the live policy
            has seen.
        keep: keep each branch's end as an unnamed capsule in the live store.
        deadline: s from now, after which what is not done is left out; None: none.
        expected_boundary, expected_epoch: refuse unless these are live; None: any.
    """

    id: str
    branches: tuple[Branch, ...]
    capsule: str = ""
    ticks: int = 1
    observations: tuple[Observation, ...] = ()
    keep: bool = False
    deadline: float | None = None
    expected_boundary: int | None = None
    expected_epoch: int | None = None


@dataclass(frozen=True)
class EvaluatedChunk:
    """A chunk that nobody executes: positions float32 [points, joints], rad or m, absolute."""

    observation: Observation
    positions: np.ndarray
    boundary: int  # counts on from the capsule's
    step: int
    inference_s: float


@dataclass(frozen=True)
class BranchReport:
    """What a branch came to. `capsule` is the id of its end, where that was kept."""

    label: str
    instruction: str
    seed: int
    chunks: tuple[EvaluatedChunk, ...]
    complete: bool
    state_digest: str
    capsule: str
    duration_s: float


@dataclass(frozen=True)
class EvaluationReport:
    """What was done. `code` is OK when every branch is complete; else the last one is cut short."""

    id: str
    code: Code
    message: str
    branches: tuple[BranchReport, ...]
    capsule: str = ""  # id of what the branches began from
    boundary: int = 0  # of it


class EvaluationHost(Protocol):
    """What an evaluator needs of the policy engine."""

    model: PolicyModel
    session: Session
    idle: threading.Event
    """Set while no live tick is under way."""

    @property
    def newest_observation(self) -> Observation | None:
        """The newest complete observation since activation."""

    def submit(self, verb: Callable[[Session], T]) -> Future[T]:
        """Queue a verb for the next gap between replays."""

    def announce(self, kind: str, *, request_id: str = "", **detail: Any) -> None:
        """On the replay thread: tell an event that no session knows of."""


@dataclass(eq=False)
class _Task:
    """An evaluation on its way."""

    evaluation: Evaluation
    deadline: float
    answer: Future[EvaluationReport] = field(default_factory=Future)
    cancelled: threading.Event = field(default_factory=threading.Event)
    source: Capsule | None = None  # what it begins from ...
    held: Capsule | None = None  # ... and the same bytes, should that be deleted meanwhile
    observations: tuple[Observation, ...] = ()

    def stop_code(self) -> Code:
        """Why no further tick is to begin; OK: go on."""
        if self.cancelled.is_set():
            return Code.CANCELLED
        return Code.DEADLINE_EXCEEDED if time.monotonic() > self.deadline else Code.OK


class Evaluator:
    """Runs evaluations one after the other, in the order in which they were asked for.

    Everything that an evaluation needs is made here and not when the first one comes: a plan's
    capture must not meet a live replay. Call `close` before the engine is closed.

    Args:
        host: the engine; not started yet, or without a replay under way.
        backend: how the twin's plans are replayed.

    Raises:
        Unsupported: the model has no `twin`.
    """

    def __init__(self, host: EvaluationHost, backend: Backend | str = Backend.EAGER) -> None:
        self._host = host
        self._twin = Twin(host.model, host.session, backend)
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._running: _Task | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="flashrt-evaluation", daemon=True)
        self._thread.start()

    @property
    def session(self) -> Session:
        """The live session."""
        return self._host.session

    def submit(self, evaluation: Evaluation) -> Future[EvaluationReport]:
        """Queue an evaluation. Its future raises the RuntimeFault that refused it.

        What began is reported, also when it was cut short: see `EvaluationReport.code`.
        """
        seconds = evaluation.deadline
        task = _Task(evaluation, float("inf") if seconds is None else time.monotonic() + seconds)
        try:
            _check(evaluation)
            with self._changed:
                if self._closed:
                    raise Cancelled("the evaluator is closed")
                if len(self._waiting) >= _MOST_WAITING:
                    raise Busy(f"{len(self._waiting)} evaluations wait already")
                self._waiting.append(task)
        except RuntimeFault as fault:
            task.answer.set_exception(fault)
            return task.answer
        prepared = self._host.submit(lambda session: self._prepare(session, task))
        prepared.add_done_callback(lambda done: self._prepared(task, done))
        return task.answer

    def cancel(self, evaluation_id: str = "") -> str:
        """End an evaluation at its next tick border; empty: the one under way. Returns its id.

        Raises InvalidArgument when there is no such evaluation.
        """
        with self._changed:
            tasks = ([self._running] if self._running is not None else []) + list(self._waiting)
            for task in tasks:
                if evaluation_id in ("", task.evaluation.id):
                    task.cancelled.set()
                    self._changed.notify_all()
                    return task.evaluation.id
            known = ", ".join(task.evaluation.id for task in tasks) or "none"
        raise InvalidArgument(
            f"no evaluation '{evaluation_id}' is under way or waits; there are: {known}"
        )

    def close(self, timeout: float | None = None) -> None:
        """End what is under way at its next tick border and answer what waits. Idempotent.

        After `timeout` s its thread is left to end by itself: it may wait for a host that hangs.
        """
        with self._changed:
            self._closed = True
            for task in (*self._waiting, self._running):
                if task is not None:
                    task.cancelled.set()
            self._changed.notify_all()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._twin.session.close()

    # -- the replay thread -----------------------------------------------------------------

    def _prepare(self, session: Session, task: _Task) -> None:
        """Fix what the branches begin from and see; refuse what cannot be meant."""
        evaluation = task.evaluation
        session.require(
            expected_boundary=evaluation.expected_boundary,
            expected_epoch=evaluation.expected_epoch,
        )
        for branch in evaluation.branches:
            if branch.instruction is not None:
                try:
                    self._host.model.check_instruction(branch.instruction)
                except ValueError as error:
                    raise UnknownInstruction(f"branch '{branch.label}': {error}") from error
        newest = self._host.newest_observation
        task.observations = evaluation.observations or ((newest,) if newest is not None else ())
        if not task.observations:
            raise NotReady("no complete observation yet: give one with the request")
        if not evaluation.capsule:
            task.source = session.snapshot(tags=(TAG,))
            return
        task.source = session.store.find(evaluation.capsule)
        # One that is on disk is read when its turn comes, not here; nor does it go so easily.
        if task.source.tier is not Tier.DISK:
            meta = task.source.meta
            # Of no session: or a rollback could take it for one of its own.
            own = replace(meta, id=new_id(), name="", parent=meta.id, session=TAG, tags=(TAG,))
            task.held = session.store.branch(task.source, own)

    def _announce(self, report: EvaluationReport, temporary: Capsule | None) -> None:
        def tell(session: Session) -> None:
            if temporary is not None and session.store.has(temporary):
                session.drop(temporary)
            branches = [
                {
                    "label": branch.label,
                    "instruction": branch.instruction,
                    "seed": branch.seed,
                    "ticks": len(branch.chunks),
                    "complete": branch.complete,
                    "state_digest": branch.state_digest,
                    "capsule": branch.capsule,
                }
                for branch in report.branches
            ]
            self._host.announce(
                "EVALUATE",
                request_id=report.id,
                source={"capsule": report.capsule, "boundary": report.boundary},
                code=report.code.name,
                branches=branches,
            )

        try:
            self._host.submit(tell).result()
        except RuntimeFault:
            pass  # the session is closed: nobody listens any more

    # -- the evaluator's thread ------------------------------------------------------------

    def _prepared(self, task: _Task, done: Future[None]) -> None:
        error = done.exception()
        with self._changed:
            if error is not None:
                self._waiting.remove(task)
                task.answer.set_exception(error)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next_is_ready() or self._closed)
                if not self._waiting:
                    return
                if not self._next_is_ready():  # closed while the replay thread still prepares it
                    self._changed.wait(0.01)
                    continue
                task = self._running = self._waiting.popleft()
            try:
                report = self._evaluate(task)
            except BaseException as error:  # whoever waits is answered whatever happens
                task.answer.set_exception(error)
            else:
                task.answer.set_result(report)
            finally:
                with self._changed:
                    self._running = None

    def _next_is_ready(self) -> bool:
        return bool(self._waiting) and self._waiting[0].source is not None

    def _evaluate(self, task: _Task) -> EvaluationReport:
        assert task.source is not None
        branches: list[BranchReport] = []
        code, message = Code.OK, ""
        try:
            for branch in task.evaluation.branches:
                code = task.stop_code()
                if code is not Code.OK:
                    break
                branches.append(self._run_branch(task, branch))
        except RuntimeFault as fault:
            code, message = fault.code, str(fault)
        except ValueError as error:  # an observation that does not fit the policy
            code, message = Code.INVALID_ARGUMENT, str(error)
        finally:
            self._let_go(task)
        if code is Code.OK and not all(branch.complete for branch in branches):
            code = task.stop_code()
        report = EvaluationReport(
            id=task.evaluation.id,
            code=code,
            message=message or _summary(code, branches, task.evaluation),
            branches=tuple(branches),
            capsule=task.source.id,
            boundary=task.source.boundary,
        )
        self._announce(report, None if task.evaluation.capsule else task.source)
        return report

    def _let_go(self, task: _Task) -> None:
        store = self._host.session.store
        if task.held is not None and store.has(task.held):
            store.drop(task.held)

    def _run_branch(self, task: _Task, branch: Branch) -> BranchReport:
        assert task.source is not None
        started = time.perf_counter()
        twin, source, held = self._twin, task.source, task.held
        gone = held is not None and not twin.session.store.has(source)
        # After a tick that failed the buffers are mixed; a restore overwrites every one of them.
        begin = held if gone and held is not None else source
        twin.begin(begin, branch.instruction, branch.seed)
        chunks: list[EvaluatedChunk] = []
        for index in range(task.evaluation.ticks):
            # A branch has time, a live tick has not; but a live replay that hangs ends no deadline.
            self._host.idle.wait(_GIVE_WAY)
            if task.stop_code() is not Code.OK:
                break
            several = len(task.observations) > 1
            observation = task.observations[index if several else 0]
            positions, inference_s = twin.tick(observation)
            step = twin.session.live.step
            boundary = source.boundary + index + 1
            chunks.append(EvaluatedChunk(observation, positions, boundary, step, inference_s))
        complete = len(chunks) == task.evaluation.ticks
        return BranchReport(
            label=branch.label,
            instruction=twin.instruction,
            seed=twin.session.seed,
            chunks=tuple(chunks),
            complete=complete,
            state_digest=twin.session.digest(),
            capsule=twin.keep((TAG,)) if task.evaluation.keep and complete else "",
            duration_s=time.perf_counter() - started,
        )


def _check(evaluation: Evaluation) -> None:
    """Raise InvalidArgument for numbers that cannot be meant."""
    branches, ticks = len(evaluation.branches), evaluation.ticks
    if not 1 <= branches <= _MOST_BRANCHES:
        raise InvalidArgument(f"{branches} branches, expected 1 to {_MOST_BRANCHES}")
    if not 1 <= ticks <= _MOST_TICKS:
        raise InvalidArgument(f"{ticks} ticks for each branch, expected 1 to {_MOST_TICKS}")
    if len(evaluation.observations) not in (0, 1, ticks):
        raise InvalidArgument(
            f"{len(evaluation.observations)} observations for {ticks} ticks: give one for each, "
            "one for all, or none for the newest"
        )
    if evaluation.deadline is not None and not evaluation.deadline > 0.0:
        raise InvalidArgument(f"deadline is {evaluation.deadline} s, expected more than 0, or none")


def _summary(code: Code, branches: Sequence[BranchReport], evaluation: Evaluation) -> str:
    done = sum(branch.complete for branch in branches)
    told = f"{done} of {len(evaluation.branches)} branches of {evaluation.ticks} ticks"
    why = {Code.CANCELLED: ", cancelled", Code.DEADLINE_EXCEEDED: ", the deadline has passed"}
    return told + why.get(code, "")
