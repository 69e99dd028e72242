# SPDX-License-Identifier: Apache-2.0
"""A planner's calls: every one answered, once, and in agreement with the events that tell of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashrt_ros.client import CapsuleClient, Code, VerbRefused
from flashrt_ros.client.requests import Call
from flashrt_ros.demo.witness import CommandWitness, LineageWitness, Moment, Wrong

CORE = ("interrupt", "capsule/rollback", "capsule/evaluate")
"""The verbs that the length of a program counts; the others come on top."""

_WITHOUT_ID = ("capsule/list", "cancel_run")


class Unanswered(Exception):
    """A call has got no answer."""


@dataclass
class Tally:
    """What was asked: seconds to the answer by verb, and how many answers were refusals."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def add(self, verb: str, seconds: float, code: Code) -> None:
        """One answer."""
        self.seconds.setdefault(verb, []).append(seconds)
        self.refused[verb] = self.refused.get(verb, 0) + (code is not Code.OK)

    @property
    def core(self) -> int:
        """Interrupts, rollbacks and evaluations that were answered."""
        return sum(len(self.seconds.get(verb, ())) for verb in CORE)

    @property
    def calls(self) -> int:
        """Answers of every kind."""
        return sum(map(len, self.seconds.values()))


@dataclass(frozen=True)
class Asked:
    """A call and its answer. `index`: of the last event of ours before it."""

    call: Call[Any]
    code: Code
    response: Any
    index: int


Judge = Callable[[Asked, Sequence[Moment]], None]
"""Raises Wrong for a refusal that none of these moments explains."""


class Dialogue:
    """Asks, and judges what every answer must be whatever the verb was.

    A verb that was applied has told so in an event with its request id, and its answer must agree
    with it. A refusal leaves no event: it is judged when the next verb was applied, for it lies
    between the two.

    Args:
        policy: waits for answers.
        witnesses: listening already.
        patience: longest wait for an event, s.
    """

    def __init__(
        self,
        policy: CapsuleClient,
        witnesses: tuple[LineageWitness, CommandWitness],
        patience: float,
    ) -> None:
        self.tally = Tally()
        self.answers: list[Asked] = []
        """Those to requests with an id."""
        self.mark = 0
        """Place of the last event of ours."""
        self._policy = policy
        self._lineage, self._commands = witnesses
        self._patience = patience
        self._unjudged: list[tuple[Asked, Judge | None]] = []

    def apply(self, call: Call[Any], kind: int, *, count: int = 1) -> tuple[Any, int]:
        """Ask for what must be applied; the answer, and the place of the event that tells of it."""
        asked = self.ask(call, {Code.OK})
        return asked.response, self.confirm(asked, kind, count=count)

    def ask(
        self,
        call: Call[Any],
        codes: set[Code],
        judge: Judge | None = None,
        *,
        remember: bool = True,
    ) -> Asked:
        """Ask; the answer has one of these codes.

        judge: of a refusal, once it is known what has happened around it; remember: for `answers`.
        """
        self.look()
        code, response = self.send(call)
        if code not in codes:
            wanted = " or ".join(sorted(each.name for each in codes))
            raise Wrong(
                f"{told(call)} was answered {code.name} ({response.message}), expected {wanted}"
            )
        if response.result.repeated:
            raise Wrong(f"{told(call)} is new and was answered as one that came before: {response}")
        asked = Asked(call, code, response, self.mark)
        if remember and call.name not in _WITHOUT_ID:
            self.answers.append(asked)
        if code is not Code.OK:
            self._unjudged.append((asked, judge))
        return asked

    def send(self, call: Call[Any]) -> tuple[Code, Any]:
        """Ask; the answer as it is."""
        started = time.perf_counter()
        code, response = Code.OK, None
        try:
            response = self._policy.call(call)
        except VerbRefused as refusal:
            code, response = refusal.code, refusal.response
        except TimeoutError as error:
            raise Unanswered(f"{told(call)}: {error}") from error
        self.tally.add(call.name, time.perf_counter() - started, code)
        return code, response

    def wait(self, verb: str, started: float, result: Callable[[float], Any]) -> tuple[Code, Any]:
        """Wait for an answer that was asked for at `started` (`time.perf_counter`)."""
        code, response = Code.OK, None
        try:
            response = result(self._patience)
        except VerbRefused as refusal:
            code, response = refusal.code, refusal.response
        except TimeoutError as error:
            raise Unanswered(f"{verb}: {error}") from error
        self.tally.add(verb, time.perf_counter() - started, code)
        return code, response

    def confirm(self, asked: Asked, kind: int, *, count: int = 1) -> int:
        """An event of this kind has come and the answer agrees with it; its place."""
        request_id, result = asked.call.request.request_id, asked.response.result
        index = self._lineage.event(request_id, kind, count, self._patience)
        moment = self._lineage.moments[index]
        if _place(result) != _place(moment):
            raise Wrong(f"{asked.call.name} was answered {result}, its event says {moment}")
        self.passed(index)
        return index

    def passed(self, index: int) -> None:
        """An event of ours has come: what was refused before lies between it and the last."""
        if index <= self.mark:  # that of an evaluation, beside which others have come
            return
        for asked, judge in self._unjudged:
            between = self._lineage.moments[asked.index : index]
            if _place(asked.response.result) not in map(_place, between):
                raise Wrong(f"{told(asked.call)} was refused: {asked.response}; live was {between}")
            if judge is not None:
                judge(asked, between)
        self._unjudged.clear()
        self.mark = index

    def look(self) -> None:
        """Before a call: nothing wrong has been seen, and nothing moves that a verb has held."""
        for witness in (self._lineage, self._commands):
            if witness.fault is not None:
                raise witness.fault
        still = self._lineage.still
        if still is not None and self._commands.moves[still]:
            raise Wrong(f"the arm was held by a verb in epoch {still} and was commanded to move")


def told(call: Call[Any]) -> str:
    """A call as a person would write it: its fields that are not the default."""
    request, plain = call.request, type(call.request)()
    given = {name: getattr(request, name) for name in request.get_fields_and_field_types()}
    chosen = (f"{k}={v!r}" for k, v in given.items() if v != getattr(plain, k))
    return f"{call.name}({', '.join(chosen)})"


def _place(at: Any) -> tuple[int, int, int]:
    return at.boundary, at.step, at.epoch
