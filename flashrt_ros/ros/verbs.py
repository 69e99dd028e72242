# SPDX-License-Identifier: Apache-2.0
"""Every verb's way from a service call to the replay thread and back.

A service callback is a coroutine: it leaves its verb in the replay thread's queue and gives the
executor back until that has applied it. So callers are served in the order in which the executor
takes their requests up, none of them keeps another from being heard, and each gets an answer: what
the verb came to, or why there was nothing to apply it to.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.task import Future as RosFuture

from flashrt_ros.msg import VerbResult
from flashrt_ros.policies import Motion
from flashrt_ros.ros.boundary_detail import Applying, arguments_of
from flashrt_ros.ros.repeats import AnswerRecord
from flashrt_ros.runtime import Code, RestoreReport, RuntimeFault, Session
from flashrt_ros.runtime.errors import Cancelled, InvalidArgument

T = TypeVar("T")
Verb = Callable[[Session], tuple[Any, Motion]]

# A verb that finds the replay thread idle is done sooner than the executor would come round again.
_AT_ONCE = 0.003  # s
_SWEEP = 0.1  # s, how late a timeout may be noticed


class VerbHost(Protocol):
    """What hosts a session and may move something: the policy engine, the language engine."""

    session: Session

    def submit(self, verb: Callable[[Session], T]) -> Future[T]:
        """Queue a verb for the next gap between replays."""

    def restore(self, ref: str, motion: Motion, **checks: Any) -> tuple[RestoreReport, Motion]:
        """On the replay thread: make a capsule's state live."""

    def rollback(self, motion: Motion, **where: Any) -> tuple[RestoreReport, Motion]:
        """On the replay thread: go back along the lineage."""

    def reset(self, motion: Motion, **checks: Any) -> tuple[RestoreReport, Motion]:
        """On the replay thread: back to the first boundary."""


@dataclass(frozen=True)
class Outcome:
    """What a verb came to. `repeated`: it is that of an earlier request with the same id."""

    code: Code
    message: str
    value: Any
    result: VerbResult
    repeated: bool = False


def expected(value: int) -> int | None:
    """A compare-and-swap field: -1 stands for any.

    Raises:
        InvalidArgument: another negative number.
    """
    if value < -1:
        raise InvalidArgument(f"expected boundary or epoch is {value}: give -1 (any) or more")
    return None if value == -1 else value


def expectations(request: Any) -> dict[str, int | None]:
    """The compare-and-swap fields of a request, as `Session.require` takes them."""
    names = ("expected_boundary", "expected_epoch")
    return {name: expected(getattr(request, name)) for name in names if hasattr(request, name)}


class VerbRunner:
    """Runs verbs for the coroutines that answer services; never raises.

    It is there for the node's whole life. Between `detach` and `attach` (the node is not
    configured) every verb is answered NOT_READY.

    Args:
        node: spun by an executor; for its logger.
        hint: what a caller is told to do while no session is hosted.
    """

    def __init__(self, node: Node, hint: str = "configure the node first") -> None:
        self._node = node
        self._hint = hint
        self._host: VerbHost | None = None
        self._timeout = 0.0
        self.digests = False
        self._record = AnswerRecord()
        self._lock = threading.Lock()
        self._waiting: dict[RosFuture, float] = {}
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._sweeper = node.create_timer(_SWEEP, self._sweep, clock=steady)
        self._sweeper.cancel()

    def attach(self, host: VerbHost, timeout: float, *, digests: bool = False) -> None:
        """Serve a session.

        timeout: longest wait for the replay thread, s; digests: answer with the digest of a state
        that was restored.

        The record of answers begins anew: those of another session mean nothing here.
        """
        self._timeout = timeout
        self.digests = digests
        self._record = AnswerRecord()
        self._host = host

    def detach(self) -> None:
        """There is no session any more; what waits is answered when the host closes."""
        self._host = None

    @property
    def answering(self) -> int:
        """Calls that wait for their answer."""
        with self._lock:
            return len(self._waiting)

    @property
    def is_attached(self) -> bool:
        """Whether there is a session to serve."""
        return self._host is not None

    @property
    def host(self) -> VerbHost:
        """What verbs are applied to.

        Raises:
            Cancelled: it is gone: the node was cleaned up meanwhile.
        """
        if self._host is None:
            raise Cancelled("the node was cleaned up meanwhile")
        return self._host

    async def run(self, name: str, request: Any, verb: Verb) -> Outcome:
        """Apply a verb that returns a value and the motion applied.

        A request whose id was seen before is not applied again: it gets the earlier outcome, also
        while that is still under way. Fields `expected_boundary` and `expected_epoch` are the
        verb's own to check.
        """
        host = self._host
        if host is None:
            return self.outcome(Code.NOT_READY, f"{name}: {self._hint}")

        def submit() -> Future[Outcome]:
            return host.submit(self.on_replay_thread(name, request, verb))

        return await self.follow(name, request, submit)

    def on_replay_thread(self, name: str, request: Any, verb: Verb) -> Callable[[Session], Outcome]:
        """A verb for `VerbHost.submit` whose events carry the request."""
        applying = Applying(name, getattr(request, "request_id", ""), arguments_of(request))
        return lambda session: self._apply(applying, session, verb)

    async def follow(
        self,
        name: str,
        request: Any,
        submit: Callable[[], Future[Outcome]],
        *,
        limited: bool = True,
    ) -> Outcome:
        """`run` for what is not a verb of the replay thread: `submit` starts it.

        limited: give up after the node's timeout for verbs.
        """
        record = self._record
        try:
            future, repeated = record.claim(name, request, submit)
        except RuntimeFault as fault:
            return self.outcome(fault.code, str(fault))
        if not await self.settled(future, self._timeout if limited else None):
            if future.cancel():
                record.forget(request)
                message = f"{name} was not served within {self._timeout} s and was withdrawn"
            else:
                message = f"{name} is being applied but did not finish within {self._timeout} s"
            return self.outcome(Code.DEADLINE_EXCEEDED, message)
        outcome = self._settled(name, future)
        if not repeated:
            return outcome
        result = VerbResult(
            **{field: getattr(outcome.result, field) for field in _RESULT_FIELDS}, repeated=True
        )
        return Outcome(outcome.code, outcome.message, outcome.value, result, repeated=True)

    async def settled(self, future: Future[Any], timeout: float | None) -> bool:
        """Give the executor back until a future is done; False after `timeout` s."""
        try:
            future.exception(_AT_ONCE)
        except FutureTimeout:
            pass
        except CancelledError:
            return True
        if future.done():
            return True
        executor = self._node.executor
        waiting: RosFuture = RosFuture(executor=executor)
        with self._lock:
            self._waiting[waiting] = time.monotonic() + timeout if timeout else float("inf")
            self._sweeper.reset()
        future.add_done_callback(lambda _: self._resume(waiting))
        try:
            await waiting
        finally:
            with self._lock:
                del self._waiting[waiting]
        return future.done()

    def outcome(self, code: Code, message: str, value: Any = None) -> Outcome:
        """What an answer says that did not come from the replay thread."""
        host = self._host
        if host is None:
            return Outcome(code, message, value, VerbResult(code=int(code)))
        result = result_of(host.session, code, Motion.UNCHANGED, time.perf_counter())
        return Outcome(code, message, value, result)

    def _settled(self, name: str, future: Future[Outcome]) -> Outcome:
        try:
            return future.result()
        except CancelledError:
            return self.outcome(Code.CANCELLED, f"{name} was withdrawn")
        except RuntimeFault as fault:
            return self.outcome(fault.code, str(fault))
        except Exception as error:
            self._node.get_logger().error(f"{name} failed:\n{traceback.format_exc()}")
            message = f"{name} failed: {type(error).__name__}: {error}"
            return self.outcome(Code.INTERNAL, message)

    def _apply(self, applying: Applying, session: Session, verb: Verb) -> Outcome:
        """On the replay thread."""
        started = time.perf_counter()
        name = applying.verb
        try:
            with applying:
                value, motion = verb(session)
        except RuntimeFault as fault:
            code, message = fault.code, str(fault)
        except Exception as error:
            self._node.get_logger().error(f"{name} failed:\n{traceback.format_exc()}")
            code, message = Code.INTERNAL, f"{name} failed: {type(error).__name__}: {error}"
        else:
            return Outcome(Code.OK, "", value, result_of(session, Code.OK, motion, started))
        result = result_of(session, code, Motion.UNCHANGED, started)
        return Outcome(code, message, None, result)

    def _resume(self, waiting: RosFuture) -> None:
        """Any thread: let the coroutine that waits go on, and wake the executor for it."""
        if waiting.done():
            return
        waiting.set_result(None)
        executor = self._node.executor
        if executor is not None:
            try:
                executor.wake()
            except Exception:  # the executor is being shut down
                self._node.get_logger().debug("no executor to wake")

    def _sweep(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [waiting for waiting, deadline in self._waiting.items() if deadline < now]
            if not self._waiting:
                self._sweeper.cancel()
        for waiting in late:
            self._resume(waiting)


def answer(response: Any, outcome: Outcome, message: str = "") -> Any:
    """Write the fields that every response has."""
    response.success = outcome.code is Code.OK
    response.message = message if response.success else outcome.message
    response.result = outcome.result
    return response


_RESULT_FIELDS = ("code", "boundary", "step", "epoch", "motion", "duration")


def result_of(session: Session, code: Code, motion: Motion, started: float) -> VerbResult:
    """The result of something that began at `started` (`time.perf_counter`)."""
    live = session.live
    return VerbResult(
        code=int(code),
        boundary=live.number,
        step=live.step,
        epoch=session.epoch,
        motion=int(motion),
        duration=time.perf_counter() - started,
    )
