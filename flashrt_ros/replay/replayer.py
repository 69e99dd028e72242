# SPDX-License-Identifier: Apache-2.0
"""Takes the events of a run one by one, does what each says was done, and compares."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flashrt_ros.policies.observation import Observation
from flashrt_ros.replay import compare
from flashrt_ros.replay.inputs import InputFault, RunInputs
from flashrt_ros.replay.machine import (
    STATE_FIELDS,
    Machine,
    differing_fields,
    weights_changed,
)
from flashrt_ros.replay.outcome import Difference, ReplayedBoundary, ReplayReport
from flashrt_ros.replay.plan import MOVES, Plan, goal_of, state_after
from flashrt_ros.replay.rows import covered_s, row_of
from flashrt_ros.replay.run import Run, RunEvent
from flashrt_ros.replay.shelf import StateKey
from flashrt_ros.runtime.lineage import chained_digest

_READ_AT_ONCE = 1 << 30
"""Weights up to so many bytes are read in full before a replay, larger ones after a difference."""


class _Found(Exception):
    """The first difference."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.message)
        self.difference = difference


class _Ended(Exception):
    """A bag that was cut ends before the inputs of a boundary do."""


class Replayer:
    """Takes the events of a run one by one, and does what each of them says was done."""

    def __init__(
        self, run: Run, machine: Machine, plan: Plan, *, tolerance: float, drifting: bool
    ) -> None:
        self.cache_every = 0
        self._run = run
        self._machine = machine
        self._plan = plan
        self._tolerance = tolerance
        self._drifting = drifting
        self._events = run.events[plan.start : plan.end]
        self._commits = [event for event in self._events if event.kind == "COMMIT"]
        self._inputs = RunInputs(run, machine.model.spec, self._commits)
        self._compared: Counter[str] = Counter()
        self._first: Difference | None = None
        self._chains: dict[int, str] = {0: chained_digest("", b"")}
        self._made: dict[str, StateKey] = {}
        self._last: RunEvent | None = None
        self._rows: list[ReplayedBoundary] = []
        self._ticks = 0

    @property
    def ticks_planned(self) -> int:
        """Ticks from the start to the end."""
        return len(self._commits)

    def replayed(
        self, progress: Callable[[int, int], None] | None, notes: tuple[str, ...]
    ) -> ReplayReport:
        """Replay; the report says how far it came."""
        began = time.perf_counter()
        if not self._is_lenient:
            self._check_fingerprint()
        if self._first is None:
            try:
                self._begin()
                self._go_through(progress)
            except _Found as found:
                self._first = self._first or found.difference
            except _Ended as ended:
                notes = (*notes, f"ended where the bag was cut: {ended}")
        seconds = time.perf_counter() - began
        covered = covered_s(self._rows)
        return ReplayReport(
            run=self._run,
            model=self._machine.model.name,
            identical=self._first is None,
            ticks=self._ticks,
            boundaries=tuple(self._rows),
            difference=self._first,
            seconds=seconds,
            realtime_factor=covered / seconds if seconds > 0 else 0.0,
            compared=dict(self._compared),
            notes=(*self._run.notes, *notes, *self._software_notes(), *self._start_notes()),
        )

    @property
    def _is_lenient(self) -> bool:
        return self._drifting or self._tolerance > 0.0

    def _go_through(self, progress: Callable[[int, int], None] | None) -> None:
        for position, event in enumerate(self._events, start=self._plan.start):
            self._take(position, event)
            self._last = event
            if event.kind == "COMMIT" and progress is not None:
                progress(self._ticks, len(self._commits))

    # -- beginning

    def _begin(self) -> None:
        begin, events = self._plan.begin, self._run.events
        if begin is not None:
            self._machine.go_to(begin)
            self._keep(begin, self._plan.start - 1)
            before = events[self._plan.start - 1] if self._plan.start > 0 else None
            self._chains[begin.boundary] = before.inputs_digest if before is not None else ""
            self._last = before
            if before is not None:
                self._compare_state(before)
        elif not self._events:
            pass
        elif self._plan.start == 0 and self._events[0].kind not in ("INSTRUCTION", *MOVES):
            self._say(self._events[0])  # given before the recording began
        elif self._plan.start > 0:
            self._last = events[self._plan.start - 1]
        # Chains of states that lie before the start are known only from what was recorded.
        for event in events[: self._plan.start]:
            self._chains[event.boundary] = event.inputs_digest
            self._remember_capsule(event)

    def _check_fingerprint(self) -> None:
        fields = differing_fields(self._machine, self._run.info)
        for name, recorded, here in fields:
            if name in STATE_FIELDS:
                self._first = Difference(
                    self._events[0].boundary, "fingerprint", name, recorded, here,
                    f"the policy here is another than the recorded one: {name} is {here}, recorded "
                    f"{recorded}; measure how far it drifts with --drift, or name the right one "
                    "with --model",
                )  # fmt: skip
                return
        now = weights_changed(self._machine, self._run.info, _READ_AT_ONCE)
        if now:
            self._first = self._weights_differ(now)

    def _weights_differ(self, now: str) -> Difference:
        recorded = self._run.info.fingerprint.get("weights", "")
        return Difference(
            self._events[0].boundary, "fingerprint", "weights", recorded, now,
            f"the weights in {self._machine.folder} are not those that were recorded, though the "
            f"digest kept beside them says so: {now} instead of {recorded}",
        )  # fmt: skip

    def _software_notes(self) -> tuple[str, ...]:
        fields = differing_fields(self._machine, self._run.info)
        return tuple(
            f"recorded with {name} {recorded}, replayed with {here}"
            for name, recorded, here in fields
            if name not in STATE_FIELDS
        )

    def _start_notes(self) -> tuple[str, ...]:
        if self._plan.start == 0 and self._plan.begin is None:
            return ()
        index = self._events[0].index if self._events else 0
        begin = self._plan.begin or "the policy's first state"
        return (f"begun at event {index} from {begin}",)

    # -- one event

    def _take(self, position: int, event: RunEvent) -> None:
        last = self._last
        has_gap = last is not None and event.index != last.index + 1
        try:
            if event.kind == "COMMIT":
                self._commit(event)
            else:
                self._verb(position, event)
        except _Found as found:
            if has_gap and last is not None and found.difference.kind in ("verb", "instruction"):
                raise _Found(compare.lost(event, last, found.difference.message)) from None
            raise
        if event.sealed is False:
            raise _Found(compare.broken_seal(event))
        self._compared["events"] += 1
        key = state_after(event)
        if position < self._plan.last_use.get(key, -1):
            self._keep(key, position)
        self._drop_done(position)

    def _keep(self, key: StateKey, position: int) -> None:
        if self._plan.last_use.get(key, -1) > position:
            self._machine.keep(key)

    def _drop_done(self, position: int) -> None:
        goal = self._plan.goals.get(position)
        if goal is not None and self._plan.last_use.get(goal) == position:
            self._machine.drop(goal)

    def _verb(self, position: int, event: RunEvent) -> None:
        last, machine = self._last, self._machine
        self._check_epoch(event)
        if event.kind in MOVES:
            self._move(event)
        else:
            if last is not None and event.boundary != last.boundary:
                self._fail(event, "its boundary", event.boundary, last.boundary)
            if event.kind == "INSTRUCTION":
                self._say(event)
            elif event.instruction != machine.instruction:
                self._fail(event, "its instruction", event.instruction, machine.instruction)
            self._remember_capsule(event)
        self._compare_state(event)
        self._rows.append(row_of(event))

    def _move(self, event: RunEvent) -> None:
        machine, info = self._machine, self._run.info
        goal = goal_of(event, info.session)
        assert goal is not None
        made = self._made.get(event.capsule)
        if made is not None and made != goal:
            self._fail(event, f"the state of capsule {event.capsule}", goal, made)
        if event.sealed is False:
            raise _Found(compare.broken_seal(event))
        if not machine.has(goal):
            self._fail(event, "where it goes", goal, "never been there")
        buffers = event.detail.get("restored", ())
        machine.go_to(goal, buffers)
        if goal.capsule:
            self._chains[event.boundary] = event.inputs_digest
        elif buffers:
            self._chains[event.boundary] = self._chains.get(goal.boundary, "")
        if event.instruction != machine.instruction:
            self._fail(event, "its instruction", event.instruction, machine.instruction)
        chain = self._chains.get(event.boundary)
        if chain is not None and chain != event.inputs_digest:
            self._fail(event, "the digest of all inputs", event.inputs_digest, chain)

    def _say(self, event: RunEvent) -> None:
        try:
            self._machine.say(event.instruction)
        except ValueError as error:
            raise _Found(
                compare.verb_differs(event, "its instruction", repr(event.instruction), error)
            ) from None

    def _check_epoch(self, event: RunEvent) -> None:
        last = self._last
        if last is None:
            return
        if event.kind in compare.RAISING and event.epoch != last.epoch + 1:
            self._fail(event, "its epoch", event.epoch, last.epoch + 1)
        if event.kind in compare.QUIET and event.epoch != last.epoch:
            self._fail(event, "its epoch", event.epoch, last.epoch)
        if event.epoch < last.epoch:
            self._fail(event, "its epoch", event.epoch, f"{last.epoch} or more")

    def _remember_capsule(self, event: RunEvent) -> None:
        """Which state a capsule was told to hold."""
        if event.kind == "SNAPSHOT":
            self._made[event.capsule] = state_after(event)
        elif event.kind == "FORK":
            source = event.detail.get("capsule", {})
            if source.get("session") == self._run.info.session:
                key = StateKey(int(source["boundary"]), str(source.get("instruction", "")))
                self._made[event.capsule] = key

    # -- a tick

    def _commit(self, event: RunEvent) -> None:
        self._check_epoch(event)
        self._check_lineage(event)
        observation = self._observation(event)
        self._check_chain(event, observation)
        began = time.perf_counter()
        conditioning: Mapping[str, Any] = event.detail.get("conditioning") or {}
        computed = self._machine.tick(observation, {k: int(v) for k, v in conditioning.items()})
        inference_s = time.perf_counter() - began
        self._ticks += 1
        chunk = self._run.chunks.get(event.boundary)
        actual = np.asarray(computed, dtype=np.float64)  # as messages carry it
        row = row_of(event, chunk, actual, inference_s)
        self._rows.append(row)
        self._compare_state(event)
        self._compare_actions(event, row, computed)
        if self.cache_every and self._ticks % self.cache_every == 0:
            self._machine.shelve(state_after(event), self._run.info.session)

    def _check_lineage(self, event: RunEvent) -> None:
        last = self._last
        if last is not None and event.parent != last.boundary:
            self._fail(event, "its parent", event.parent, last.boundary)
        if last is not None and event.step != last.step + 1:
            self._fail(event, "its step", event.step, last.step + 1)
        if event.instruction != self._machine.instruction:
            found = Difference(
                event.boundary,
                "instruction",
                "instruction",
                event.instruction,
                self._machine.instruction,
                f"boundary {event.boundary} was computed under the instruction "
                f"'{event.instruction}', the replay has '{self._machine.instruction}'",
            )  # fmt: skip
            raise _Found(found)

    def _observation(self, event: RunEvent) -> Observation:
        observation = self._inputs.observation(event)
        if isinstance(observation, InputFault):
            fault = observation
            if fault.beyond:
                raise _Ended(fault.message)
            raise _Found(
                Difference(
                    event.boundary, "input", fault.name, fault.expected, fault.actual, fault.message
                )
            )
        self._compared["inputs"] += len(event.inputs)
        return observation

    def _check_chain(self, event: RunEvent, observation: Observation) -> None:
        before = self._chains.get(event.parent)
        if not before or not event.inputs_digest:
            self._chains[event.boundary] = event.inputs_digest
            return
        inputs = observation.digest() + event.instruction.encode()
        chain = chained_digest(before, inputs)
        self._chains[event.boundary] = chain
        if chain != event.inputs_digest:
            found = Difference(
                event.boundary,
                "input",
                "inputs_digest",
                event.inputs_digest,
                chain,
                f"boundary {event.boundary}: the digest of all inputs on the lineage differs, "
                "though each input of this tick is as it was: a stamp, or an earlier input",
            )  # fmt: skip
            raise _Found(found)

    def _compare_actions(
        self, event: RunEvent, row: ReplayedBoundary, computed: np.ndarray
    ) -> None:
        """The policy's chunk by its digest, and the published one where that is the policy's."""
        digest = event.detail.get("chunk_digest", "") if self._tolerance == 0.0 else ""
        same = compare.chunk_digest(computed) == digest if digest else None
        if same is not None or row.expected is not None:
            self._compared["actions"] += 1
        found = None
        if row.expected is not None and row.actual is not None:
            joints = self._run.info.joint_names
            found = compare.actions_differ(event, joints, row.expected, row.actual, self._tolerance)
        if same and not self._run.info.parameters.get("lockstep", True):
            # On a robot the published chunk may also be what a ramp made of it.
            found = None
        if found is None and same is False:
            found = compare.chunk_differs(event, digest, compare.chunk_digest(computed))
        if found is not None:
            self._differs(found)

    def _compare_state(self, event: RunEvent) -> None:
        if not event.state_digest or self._tolerance > 0.0:
            return
        self._compared["states"] += 1
        found = compare.states_differ(event, self._machine.digests())
        if found is not None:
            self._differs(found)

    def _differs(self, found: Difference) -> None:
        """Inputs were the same and what was computed is not."""
        if self._first is None and not self._is_lenient:
            now = weights_changed(self._machine, self._run.info)
            if now:
                found = replace(
                    self._weights_differ(now),
                    boundary=found.boundary,
                    message=f"{found.message}; {self._weights_differ(now).message}",
                )
            for note in self._software_notes():
                found = replace(found, message=f"{found.message}; {note}")
        if self._drifting:
            self._first = self._first or found
            return
        raise _Found(found)

    @staticmethod
    def _fail(event: RunEvent, what: str, expected: object, actual: object) -> None:
        raise _Found(compare.verb_differs(event, what, expected, actual))
