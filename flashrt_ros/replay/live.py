# SPDX-License-Identifier: Apache-2.0
"""Replays a run through a real policy node: inputs over DDS, verbs as service calls, sim time.

The node runs in lockstep, in a process and a namespace of its own and on this machine only: the
recorded topics of a robot are never published to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from flashrt_ros.replay import compare
from flashrt_ros.replay.inputs import InputFault, RunInputs
from flashrt_ros.replay.live_node import LiveNode, LiveOptions
from flashrt_ros.replay.live_verbs import QUIET_KINDS, VerbCaller
from flashrt_ros.replay.machine import spec_of
from flashrt_ros.replay.outcome import Difference, ReplayedBoundary, ReplayReport
from flashrt_ros.replay.plan import goal_of, make_plan
from flashrt_ros.replay.rows import covered_s, row_of
from flashrt_ros.replay.run import CannotReplay, Run, RunChunk, RunEvent


def replay_live(
    run: Run,
    model: str | Path | None = None,
    until: int | None = None,
    tolerance: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
    patience: float = 60.0,
) -> ReplayReport:
    """Replay a run through a policy node over DDS, and compare what the node sends.

    Args:
        run: what `open_run` gave; from its first boundary on.
        model: a checkpoint directory or the name of a shipped one; None: the recorded one.
        until: the last boundary to replay.
        tolerance: largest difference of actions that is none, rad or m.
        progress: called with (ticks done, ticks in all).
        patience: longest wait for the node, s.

    Raises:
        CannotReplay: the run does not begin at its first boundary, restores capsules from before
            it, has inputs that are stamped when they are received, or the node failed.
    """
    plan = make_plan(run, None, None, until)
    if plan.begin is not None or plan.start != 0:
        raise CannotReplay(
            "a live replay begins at the policy's first boundary, and this bag begins later: "
            "replay it offline"
        )
    with LiveNode(run, LiveOptions(model=model, patience=patience)) as node:
        return _LiveReplay(run, node, run.events[: plan.end], tolerance).replayed(progress)


class _Found(Exception):
    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.message)
        self.difference = difference


class _LiveReplay:
    """Causes each recorded event, and compares it with the one that the node then sends."""

    def __init__(
        self, run: Run, node: LiveNode, events: tuple[RunEvent, ...], tolerance: float
    ) -> None:
        self._run = run
        self._node = node
        self._tolerance = tolerance
        self._events = [event for event in events if event.kind not in QUIET_KINDS]
        self._commits = [event for event in self._events if event.kind == "COMMIT"]
        self._inputs = RunInputs(run, spec_of(run), self._commits)
        self._verbs = VerbCaller(run, node)
        self._rows: list[ReplayedBoundary] = []
        self._compared = {"events": 0, "actions": 0, "states": 0}
        self._restamped = False

    def replayed(self, progress: Callable[[int, int], None] | None) -> ReplayReport:
        """Replay; the report says how far it came."""
        began = time.perf_counter()
        first: Difference | None = None
        ticks = 0
        try:
            for event in self._events:
                if event.kind == "COMMIT":
                    self._tick(event)
                    ticks += 1
                    if progress is not None:
                        progress(ticks, len(self._commits))
                else:
                    self._verb(event)
                self._compared["events"] += 1
        except _Found as found:
            first = found.difference
        seconds = time.perf_counter() - began
        covered = covered_s(self._rows)
        notes = [*self._run.notes, f"live, through {self._node.name}"]
        if self._restamped:
            notes.append("inputs were stamped alike for lockstep; their digests are not compared")
        return ReplayReport(
            run=self._run,
            model=self._node.model,
            identical=first is None,
            ticks=ticks,
            boundaries=tuple(self._rows),
            difference=first,
            seconds=seconds,
            realtime_factor=covered / seconds if seconds > 0 else 0.0,
            compared=self._compared,
            notes=tuple(notes),
        )

    def _verb(self, event: RunEvent) -> None:
        self._node.set_clock(event.stamp_ns)
        try:
            self._verbs.cause(event)
            live = self._node.next_event(QUIET_KINDS)
        except CannotReplay as error:
            raise _Found(
                compare.verb_differs(event, "what the node answered", "done", error)
            ) from None
        self._verbs.learn(event, live)
        self._compare_event(event, live)
        self._rows.append(row_of(event))

    def _tick(self, event: RunEvent) -> None:
        messages = self._inputs.messages(event)
        if isinstance(messages, InputFault):
            fault = messages
            raise _Found(
                Difference(
                    event.boundary, "input", fault.name, fault.expected, fault.actual, fault.message
                )
            )
        stamp_ns = min(raw_stamp for raw_stamp in (item.stamp_ns for item in event.inputs))
        self._restamped |= any(item.stamp_ns != stamp_ns for item in event.inputs)
        self._node.set_clock(max(event.stamp_ns, stamp_ns))
        live = self._node.tick(messages, stamp_ns, QUIET_KINDS)
        self._compare_event(event, live)
        recorded = self._run.chunks.get(event.boundary)
        sent = self._node.chunk(event.boundary, live.epoch)
        self._compare_chunk(event, recorded, sent, live)

    def _compare_chunk(
        self, event: RunEvent, recorded: RunChunk | None, sent: RunChunk | None, live: RunEvent
    ) -> None:
        actual = sent.positions if sent is not None else None
        seconds = sent.inference_s if sent is not None else 0.0
        row = row_of(event, recorded, actual, seconds)
        self._rows.append(row)
        digests = (event.detail.get("chunk_digest", ""), live.detail.get("chunk_digest", ""))
        if row.expected is not None and sent is not None and sent.is_policy_output:
            self._compared["actions"] += 1
            found = compare.actions_differ(
                event, self._run.info.joint_names, row.expected, sent.positions, self._tolerance
            )
            if found is not None:
                raise _Found(found)
        elif all(digests) and self._tolerance == 0.0:
            self._compared["actions"] += 1
            if digests[0] != digests[1]:
                raise _Found(compare.chunk_differs(event, *digests))

    def _compare_event(self, event: RunEvent, live: RunEvent) -> None:
        names = ["kind", "boundary", "parent", "step", "instruction", "name"]
        if not self._restamped:
            names.append("inputs_digest")
        for name in names:
            expected, actual = getattr(event, name), getattr(live, name)
            if expected != actual:
                raise _Found(compare.verb_differs(event, f"its {name}", expected, actual))
        recorded, sent = event.state_digest, live.state_digest
        if recorded and sent and self._tolerance == 0.0:
            self._compared["states"] += 1
            if recorded != sent:
                raise _Found(self._state(event, live))
        goal = goal_of(event, self._run.info.session)
        if goal is not None and event.sealed is False:
            raise _Found(compare.broken_seal(event))

    @staticmethod
    def _state(event: RunEvent, live: RunEvent) -> Difference:
        recorded, sent = event.detail.get("buffers", {}), live.detail.get("buffers", {})
        differing = [name for name in recorded if recorded[name] != sent.get(name)]
        name = differing[0] if differing else "state_digest"
        return Difference(
            event.boundary, "buffer" if differing else "state", name,
            recorded.get(name, event.state_digest), sent.get(name, live.state_digest),
            f"boundary {event.boundary}, after {event.kind}: buffer '{name}' differs from the "
            f"recorded state ({len(differing)} buffers do)",
        )  # fmt: skip
