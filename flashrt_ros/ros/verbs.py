# SPDX-License-Identifier: Apache-2.0
"""Runs a verb on the replay thread for a service call, and turns what happened into an answer."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rclpy.node import Node

from flashrt_ros.msg import VerbResult
from flashrt_ros.policies import Motion
from flashrt_ros.runtime import Code, RestoreReport, RuntimeFault, Session

T = TypeVar("T")


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
    """What a verb came to."""

    code: Code
    message: str
    value: Any
    result: VerbResult


class VerbRunner:
    """Runs verbs for service callbacks, which wait for the replay thread.

    Args:
        node: for its logger.
        host: hosts the session.
        timeout: longest wait for the replay thread, s.
    """

    def __init__(self, node: Node, host: VerbHost, timeout: float) -> None:
        self._node = node
        self._host = host
        self._timeout = timeout

    def run(self, name: str, verb: Callable[[Session], tuple[Any, Motion]]) -> Outcome:
        """Run a verb that returns a value and the motion applied; never raises."""
        future = self._host.submit(lambda session: self._on_replay_thread(name, session, verb))
        try:
            return future.result(self._timeout)
        except FutureTimeout:
            if future.cancel():
                message = f"{name} was not served within {self._timeout} s and was withdrawn"
                return self.outcome(Code.DEADLINE_EXCEEDED, message)
            return self.outcome(
                Code.DEADLINE_EXCEEDED,
                f"{name} is being applied but did not finish within {self._timeout} s",
            )
        except CancelledError:
            return self.outcome(Code.CANCELLED, f"{name} was cancelled: the node is going down")
        except RuntimeFault as fault:
            return self.outcome(fault.code, str(fault))

    def _on_replay_thread(
        self, name: str, session: Session, verb: Callable[[Session], tuple[Any, Motion]]
    ) -> Outcome:
        started = time.perf_counter()
        try:
            value, motion = verb(session)
        except RuntimeFault as fault:
            code, message = fault.code, str(fault)
        except Exception as error:
            self._node.get_logger().error(f"{name} failed:\n{traceback.format_exc()}")
            code, message = Code.INTERNAL, f"{name} failed: {type(error).__name__}: {error}"
        else:
            return Outcome(Code.OK, "", value, _result(session, Code.OK, motion, started))
        result = _result(session, code, Motion.UNCHANGED, started)
        return Outcome(code, message, None, result)

    def outcome(self, code: Code, message: str) -> Outcome:
        """What an answer says that did not come from the replay thread."""
        result = _result(self._host.session, code, Motion.UNCHANGED, time.perf_counter())
        return Outcome(code, message, None, result)


def answer(response: Any, outcome: Outcome, message: str = "") -> Any:
    """Write the fields that every response has."""
    response.success = outcome.code is Code.OK
    response.message = message if response.success else outcome.message
    response.result = outcome.result
    return response


def _result(session: Session, code: Code, motion: Motion, started: float) -> VerbResult:
    live = session.live
    return VerbResult(
        code=int(code),
        boundary=live.number,
        step=live.step,
        epoch=session.epoch,
        motion=int(motion),
        duration=time.perf_counter() - started,
    )
