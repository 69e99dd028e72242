# SPDX-License-Identifier: Apache-2.0
"""A timed run that a client has asked for."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from rclpy.action import ActionClient
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node

from flashrt_ros.action import RunPolicy
from flashrt_ros.client import requests
from flashrt_ros.client.calls import Answer, ServiceCaller, VerbRefused
from flashrt_ros.srv import CancelRun

Feedback = Callable[[RunPolicy.Feedback], None]


class RunHandle:
    """A run that was asked for. Its id is known at once, so that it can be cancelled at once."""

    def __init__(self, run_id: str, ended: Answer[RunPolicy.Result], cancel: Any) -> None:
        self.id = run_id
        self._ended = ended
        self._cancel = cancel

    def cancel(self) -> Answer[CancelRun.Response]:
        """End it; if it has not begun yet, it never will."""
        answer: Answer[CancelRun.Response] = self._cancel(self.id)
        return answer

    def done(self) -> bool:
        """Whether it is over."""
        return self._ended.done()

    def result(self, timeout: float | None = None) -> RunPolicy.Result:
        """Wait for its end.

        Raises:
            VerbRefused: it did not begin, or ended by something else than its time.
            TimeoutError: it goes on.
        """
        return self._ended.result(timeout)

    def __await__(self) -> Generator[Any, None, RunPolicy.Result]:
        return self._ended.__await__()


class RunClient:
    """The action `~/run` of a policy node.

    Args:
        node: spun by another thread.
        policy: name of the policy node.
        caller: for the cancelling.
    """

    def __init__(self, node: Node, policy: str, caller: ServiceCaller) -> None:
        self._node = node
        self._policy = policy
        self._caller = caller
        self._client = ActionClient(
            node, RunPolicy, f"{policy}/run", callback_group=ReentrantCallbackGroup()
        )
        self._lock = threading.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether the action's server is known."""
        return bool(self._client.server_is_ready())

    def wait_for_server(self, timeout: float) -> None:
        """Wait for the action's server; raises TimeoutError."""
        if not self._client.wait_for_server(timeout):
            raise TimeoutError(f"no action server for {self._policy}/run within {timeout} s")

    def start(self, goal: RunPolicy.Goal, on_feedback: Feedback | None) -> RunHandle:
        """Send a goal; see `requests.run_goal`. One without an id is given one."""
        goal.request_id = goal.request_id or secrets.token_hex(8)
        ended: Future[RunPolicy.Result] = Future()

        def told(message: Any) -> None:
            if on_feedback is not None:
                on_feedback(message.feedback)

        def accepted(sent: Any) -> None:
            handle = sent.result()
            if not handle.accepted:
                ended.set_exception(RuntimeError(f"{self._policy}/run rejected the goal"))
                return
            handle.get_result_async().add_done_callback(finished)

        def finished(answered: Any) -> None:
            result: RunPolicy.Result = answered.result().result
            if result.success:
                ended.set_result(result)
            else:
                ended.set_exception(VerbRefused("run", result))

        with self._lock:
            self._client.send_goal_async(goal, feedback_callback=told).add_done_callback(accepted)
        return RunHandle(goal.request_id, Answer(ended), self._cancel)

    def close(self) -> None:
        """Remove the client from the node, on the thread that spins it.

        An action client that goes while the executor waits for it ends the executor's spin with an
        RCLError ("action client pointer is invalid").
        """
        executor = self._node.executor
        if executor is None:
            self._client.destroy()
        else:
            executor.create_task(self._client.destroy)

    def _cancel(self, run_id: str) -> Answer[CancelRun.Response]:
        call = requests.cancel_run(run_id)
        return Answer(self._caller.send(call.kind, f"{self._policy}/{call.name}", call.request))
