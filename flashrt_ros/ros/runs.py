# SPDX-License-Identifier: Apache-2.0
"""The action `~/run`, and `~/start_run` and `~/cancel_run` for callers that have no actions.

Both are thin: what a run is and how it ends is in `policies/run.py`.
"""

from __future__ import annotations

import secrets
from typing import Any

from builtin_interfaces.msg import Duration
from rclpy.action import ActionServer, CancelResponse
from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from flashrt_ros.action import RunPolicy
from flashrt_ros.msg import VerbResult
from flashrt_ros.policies import Motion
from flashrt_ros.policies.run import Run, RunGoal, RunReport, TimedRuns
from flashrt_ros.ros.capsule_services import motion_of
from flashrt_ros.ros.verbs import Outcome, VerbRunner, answer, expectations
from flashrt_ros.runtime import Code, Session
from flashrt_ros.runtime.errors import Cancelled, InvalidArgument
from flashrt_ros.srv import CancelRun, StartRun

_POLL = 0.05  # s, wall time: how late the end of a run may be noticed
_FEEDBACK_EVERY = 10  # polls: feedback at 2 Hz


def to_goal(request: Any, run_id: str) -> RunGoal:
    """A goal or a StartRun request.

    Raises:
        InvalidArgument: a field has a value that cannot be meant.
    """
    duration_ns = _ns(request.duration)
    if duration_ns < 0:
        raise InvalidArgument(f"duration is {duration_ns * 1e-9} s, expected 0 or more")
    return RunGoal(
        id=run_id,
        instruction=request.instruction,
        duration_ns=duration_ns,
        at_end=motion_of(request.at_end),
        **expectations(request),
    )


class RunServices:
    """Timed runs for planners, behaviour trees and operators.

    Args:
        node: offers the action and the services, for its whole life.
        runner: runs verbs for callbacks.
        group: lets its callbacks run while others wait.
    """

    def __init__(self, node: Node, runner: VerbRunner, group: CallbackGroup) -> None:
        self._node = node
        self._runner = runner
        self._runs: TimedRuns | None = None
        self._polls = 0
        self._goals: dict[str, list[Any]] = {}  # run id: handles of goals that wait for its end
        self._server = ActionServer(
            node,
            RunPolicy,
            "~/run",
            self._execute,
            callback_group=group,
            cancel_callback=self._on_cancel,
        )
        node.create_service(StartRun, "~/start_run", self._start, callback_group=group)
        node.create_service(CancelRun, "~/cancel_run", self._cancel, callback_group=group)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(_POLL, self._poll, callback_group=group, clock=steady)
        self._timer.cancel()

    def attach(self, runs: TimedRuns | None) -> None:
        """Serve an engine's runs; None: none any more."""
        self._runs = runs
        if runs is None:
            self._timer.cancel()
        else:
            self._timer.reset()

    # -- services --------------------------------------------------------------------------

    async def _start(self, request: StartRun.Request, response: StartRun.Response) -> Any:
        response.request_id = request.request_id or secrets.token_hex(8)
        outcome = await self._begin("start_run", request, response.request_id)
        return answer(response, outcome, f"run '{response.request_id}' has begun")

    async def _cancel(self, request: CancelRun.Request, response: CancelRun.Response) -> Any:
        outcome = await self._end(request.request_id)
        return answer(response, outcome, str(outcome.value))

    async def _begin(self, name: str, request: Any, run_id: str) -> Outcome:
        def verb(session: Session) -> tuple[Run, Motion]:
            return self._hosting().start(to_goal(request, run_id)), Motion.UNCHANGED

        return await self._runner.run(name, request, verb)

    async def _end(self, run_id: str) -> Outcome:
        def verb(session: Session) -> tuple[str, Motion]:
            return self._hosting().cancel(run_id), Motion.UNCHANGED

        # Its id is that of a run, not of a request that could come again.
        return await self._runner.run("cancel_run", None, verb)

    def _hosting(self) -> TimedRuns:
        if self._runs is None:
            raise Cancelled("the node was cleaned up meanwhile")
        return self._runs

    # -- action ----------------------------------------------------------------------------

    async def _execute(self, handle: Any) -> RunPolicy.Result:
        goal: RunPolicy.Goal = handle.request
        # A goal that names no id has that of the action: cancelling either is the same.
        run_id = goal.request_id or bytes(handle.goal_id.uuid).hex()
        result = RunPolicy.Result(request_id=run_id)
        if handle.is_cancel_requested:
            outcome = self._runner.outcome(Code.CANCELLED, "cancelled before it began")
            return self._finish(handle, answer(result, outcome))
        outcome = await self._begin("run_policy", goal, run_id)
        run: Run | None = outcome.value
        if run is None:
            return self._finish(handle, answer(result, outcome))
        self._goals.setdefault(run_id, []).append(handle)
        try:
            if handle.is_cancel_requested:  # while it began
                await self._end(run_id)
            await self._runner.settled(run.ended, None)
        finally:
            self._goals[run_id].remove(handle)
            if not self._goals[run_id]:
                del self._goals[run_id]
        report = run.ended.result()
        result.ticks = report.ticks
        result.elapsed = _duration(report.elapsed_ns)
        ended = Outcome(report.code, report.message, report, _result_of(report, outcome.repeated))
        return self._finish(handle, answer(result, ended, report.message))

    @staticmethod
    def _finish(handle: Any, result: RunPolicy.Result) -> RunPolicy.Result:
        if result.success:
            handle.succeed()
        elif handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.abort()
        return result

    def _on_cancel(self, handle: Any) -> CancelResponse:
        """Taken at any time: `_execute` looks for it where the run has not begun yet."""
        executor = self._node.executor
        for run_id, handles in self._goals.items():
            if handle in handles and executor is not None:
                # Not here: the goal must be canceling before its run ends.
                executor.create_task(self._end, run_id)
                break
        return CancelResponse.ACCEPT

    def _poll(self) -> None:
        runs = self._runs
        if runs is None:
            return
        runs.poll()
        self._polls += 1
        progress = runs.progress()
        if progress is None or self._polls % _FEEDBACK_EVERY:
            return
        status = progress.status
        feedback = RunPolicy.Feedback(
            request_id=progress.id,
            elapsed=_duration(progress.elapsed_ns),
            remaining=_duration(progress.remaining_ns),
            ticks=progress.ticks,
            boundary=status.boundary,
            step=status.step,
            epoch=status.epoch,
            state=status.state.value,
            reason=status.reason,
        )
        for handle in self._goals.get(progress.id, ()):
            handle.publish_feedback(feedback)


def _result_of(report: RunReport, repeated: bool) -> VerbResult:
    status = report.status
    return VerbResult(
        code=int(report.code),
        boundary=status.boundary,
        step=status.step,
        epoch=status.epoch,
        motion=int(report.motion),
        duration=report.elapsed_ns * 1e-9,
        repeated=repeated,
    )


def _ns(duration: Duration) -> int:
    return int(duration.sec) * 1_000_000_000 + int(duration.nanosec)


def _duration(ns: int) -> Duration:
    return Duration(sec=ns // 1_000_000_000, nanosec=ns % 1_000_000_000)
