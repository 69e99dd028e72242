# SPDX-License-Identifier: Apache-2.0
"""The verbs of a policy node as methods: `CapsuleClient` waits, `AsyncCapsuleClient` does not."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from rclpy.node import Node

from flashrt_ros.action import RunPolicy
from flashrt_ros.client import requests
from flashrt_ros.client.calls import Answer, ServiceCaller, VerbRefused
from flashrt_ros.client.requests import Call
from flashrt_ros.client.runs import Feedback, RunClient, RunHandle
from flashrt_ros.client.status import StatusView
from flashrt_ros.msg import RuntimeStatus
from flashrt_ros.policies.motion import Motion

P = ParamSpec("P")
T = TypeVar("T")


class _Client:
    """What both clients have."""

    def __init__(self, node: Node, policy: str = "policy_node", timeout: float = 10.0) -> None:
        self._policy = policy
        self._timeout = timeout
        self._caller = ServiceCaller(node, timeout)
        self._view = StatusView(node, f"{policy}/status")
        self._node = node
        self._run_client: RunClient | None = None

    def close(self) -> None:
        """Remove clients and subscription from the node."""
        self._caller.close()
        self._view.close()
        if self._run_client is not None:
            self._run_client.close()
            self._run_client = None

    @property
    def _runs(self) -> RunClient:
        """Made when it is first asked for: an action is five more things to spin."""
        if self._run_client is None:
            self._run_client = RunClient(self._node, self._policy, self._caller)
        return self._run_client

    @property
    def status(self) -> RuntimeStatus | None:
        """The newest status, None before the first."""
        return self._view.newest


def _waiting(build: Callable[P, Call[T]]) -> Callable[Concatenate[CapsuleClient, P], T]:
    @functools.wraps(build)
    def method(client: CapsuleClient, *args: P.args, **kwargs: P.kwargs) -> T:
        return client.call(build(*args, **kwargs))

    return method


def _sending(
    build: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncCapsuleClient, P], Answer[T]]:
    @functools.wraps(build)
    def method(client: AsyncCapsuleClient, *args: P.args, **kwargs: P.kwargs) -> Answer[T]:
        return client.send(build(*args, **kwargs))

    return method


class CapsuleClient(_Client):
    """The verbs of a policy node, for a thread that does not spin the node.

    Every verb returns the service's response and raises `VerbRefused` where it was refused and
    `TimeoutError` where no answer came. Arguments: see `requests`.

    Args:
        node: spun by another thread; `spinning` makes one.
        policy: name of the policy node, relative to the node's namespace or absolute.
        timeout: longest wait for an answer, s.
    """

    def __enter__(self) -> CapsuleClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    snapshot = _waiting(requests.snapshot)
    restore = _waiting(requests.restore)
    rollback = _waiting(requests.rollback)
    fork = _waiting(requests.fork)
    evaluate = _waiting(requests.evaluate)
    cancel_evaluation = _waiting(requests.cancel_evaluation)
    list = _waiting(requests.capsules)
    delete = _waiting(requests.delete)
    move = _waiting(requests.move)
    interrupt = _waiting(requests.interrupt)
    resume = _waiting(requests.resume)
    reset = _waiting(requests.reset)
    set_instruction = _waiting(requests.set_instruction)
    start_run = _waiting(requests.start_run)
    cancel_run = _waiting(requests.cancel_run)

    def run(
        self,
        instruction: str = "",
        *,
        duration: float = 0.0,
        at_end: Motion = Motion.HOLD,
        on_feedback: Feedback | None = None,
        **more: Any,
    ) -> RunHandle:
        """Ask for a timed run by the action; `.result()` waits for its end. See `run_goal`."""
        self._runs.wait_for_server(self._timeout)
        self._caller.wait_for_server(requests.CancelRun, f"{self._policy}/cancel_run")
        goal = requests.run_goal(instruction, duration=duration, at_end=at_end, **more)
        return self._runs.start(goal, on_feedback)

    def wait_for_status(
        self, condition: Callable[[RuntimeStatus], bool], timeout: float = 10.0
    ) -> RuntimeStatus:
        """Wait until a status fulfils a condition.

        Raises:
            TimeoutError: none did in time; the message has the last one.
        """
        return self._view.wait(condition, timeout)

    def call(self, call: Call[T]) -> T:
        """Ask, wait, and give the response."""
        response = self._caller.call(call.kind, f"{self._policy}/{call.name}", call.request)
        if not response.success:
            raise VerbRefused(call.name, response)
        answered: T = response
        return answered


class AsyncCapsuleClient(_Client):
    """The same verbs for those who do not wait: each returns an `Answer` at once.

        async with AsyncCapsuleClient(node) as policy:
            await policy.interrupt()
            futures = [policy.evaluate([text]) for text in ("reach", "go home")]
            ...

    Works in asyncio and, by `Answer.result` and `Answer.add_done_callback`, without. Awaiting
    raises `VerbRefused` where the verb was refused. There is no time limit: use
    `asyncio.wait_for`. Call `ready` first: a request to a node that is not known yet raises
    TimeoutError.

    Args:
        node: spun by another thread.
        policy: name of the policy node, relative to the node's namespace or absolute.
        timeout: longest wait of `ready`, s.
    """

    async def __aenter__(self) -> AsyncCapsuleClient:
        await self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    snapshot = _sending(requests.snapshot)
    restore = _sending(requests.restore)
    rollback = _sending(requests.rollback)
    fork = _sending(requests.fork)
    evaluate = _sending(requests.evaluate)
    cancel_evaluation = _sending(requests.cancel_evaluation)
    list = _sending(requests.capsules)
    delete = _sending(requests.delete)
    move = _sending(requests.move)
    interrupt = _sending(requests.interrupt)
    resume = _sending(requests.resume)
    reset = _sending(requests.reset)
    set_instruction = _sending(requests.set_instruction)
    start_run = _sending(requests.start_run)
    cancel_run = _sending(requests.cancel_run)

    async def ready(self) -> None:
        """Wait until every service and the action of the policy node are known.

        Raises:
            TimeoutError: one is not.
        """
        deadline = time.monotonic() + self._timeout
        waiting = set(_SERVICES)
        while True:
            waiting = {
                (kind, name)
                for kind, name in waiting
                if not self._caller.client(kind, f"{self._policy}/{name}").service_is_ready()
            }
            if not waiting and self._runs.is_ready:
                return
            if time.monotonic() > deadline:
                names = ", ".join(sorted(name for _, name in waiting)) or "run"
                raise TimeoutError(
                    f"no server for {names} of {self._policy} within {self._timeout} s"
                )
            await asyncio.sleep(0.02)

    def run(
        self,
        instruction: str = "",
        *,
        duration: float = 0.0,
        at_end: Motion = Motion.HOLD,
        on_feedback: Feedback | None = None,
        **more: Any,
    ) -> RunHandle:
        """Ask for a timed run by the action; `await` the handle for its end. See `run_goal`."""
        goal: RunPolicy.Goal = requests.run_goal(
            instruction, duration=duration, at_end=at_end, **more
        )
        return self._runs.start(goal, on_feedback)

    def send(self, call: Call[T]) -> Answer[T]:
        """Ask, and give what will be the response."""
        answer: Future[T] = Future()

        def arrived(done: Future[Any]) -> None:
            response = done.result()
            if response.success:
                answer.set_result(response)
            else:
                answer.set_exception(VerbRefused(call.name, response))

        name = f"{self._policy}/{call.name}"
        self._caller.send(call.kind, name, call.request).add_done_callback(arrived)
        return Answer(answer)


_SERVICES = tuple(
    (call.kind, call.name)
    for call in (
        requests.snapshot(),
        requests.restore(""),
        requests.rollback(),
        requests.fork(),
        requests.evaluate([]),
        requests.cancel_evaluation(),
        requests.capsules(),
        requests.delete(""),
        requests.move("", ""),
        requests.interrupt(),
        requests.resume(),
        requests.reset(),
        requests.set_instruction(""),
        requests.start_run(),
        requests.cancel_run(),
    )
)
