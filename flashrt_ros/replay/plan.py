# SPDX-License-Identifier: Apache-2.0
"""Where a replay begins, where it ends, and which states it must keep on the way.

The bag is scanned first: of all boundaries that a run had snapshots of, only those that it really
went back to need a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashrt_ros.replay.run import CannotReplay, Run, RunEvent
from flashrt_ros.replay.shelf import Shelf, StateKey

MOVES = ("RESTORE", "ROLLBACK", "RESET")


@dataclass(frozen=True)
class Plan:
    """Replay events[start:end], beginning in the state `begin`; None: the policy's first.

    goals: position of an event that goes to a state, to that state; last_use: state to the last
    position that goes to it.
    """

    start: int
    end: int
    begin: StateKey | None
    goals: dict[int, StateKey]
    last_use: dict[StateKey, int]


def goal_of(event: RunEvent, session: str) -> StateKey | None:
    """The state that a verb has put back, or taken buffers from; None for other events."""
    if event.kind not in MOVES:
        return None
    capsule = event.detail.get("capsule", {})
    if capsule and capsule.get("session", session) != session:
        return StateKey(-1, "", event.capsule)
    if event.detail.get("restored") and capsule:
        return StateKey(int(capsule["boundary"]), str(capsule.get("instruction", "")))
    return StateKey(event.boundary, event.instruction)


def state_after(event: RunEvent) -> StateKey:
    """The live state after an event."""
    return StateKey(event.boundary, event.instruction)


def make_plan(
    run: Run, shelf: Shelf | None, from_boundary: int | None = None, until: int | None = None
) -> Plan:
    """Find the latest start at or before a boundary from which everything can be had.

    Without `from_boundary` the earliest one.

    Raises:
        CannotReplay: there is none; says which state is missing.
    """
    events, session = run.events, run.info.session
    end = _end(events, until)
    goals = {
        position: goal
        for position, event in enumerate(events[:end])
        if (goal := goal_of(event, session)) is not None and event.sealed is not False
    }
    first = StateKey(0, run.info.instruction)
    last_visit = _last_visits(events[:end], goals)
    for position, goal in goals.items():
        if goal == first or (shelf is not None and goal in shelf):
            last_visit[position] = end  # to be had from anywhere
    candidates: list[int] | range = range(end)
    if from_boundary is not None:
        candidates = range(_position_of(run, from_boundary, end), -1, -1)
    earliest = _earliest_visits(last_visit, end)
    latest = candidates[0] if from_boundary is not None else end
    for start in candidates:
        # The boundary itself is asked for: a reset that follows it doesn't lead to it.
        begin = _begin(run, shelf, start, by_reset=start < latest)
        if begin is not _IMPOSSIBLE and earliest[start] >= start - 1:
            last_use = {goal: position for position, goal in goals.items() if position >= start}
            return Plan(start, end, begin, goals, last_use)
    raise CannotReplay(_refusal(run, shelf, goals, last_visit))


_IMPOSSIBLE = StateKey(-2, "")


def _begin(run: Run, shelf: Shelf | None, start: int, *, by_reset: bool) -> StateKey | None:
    """The state to begin in so that events[start] comes next; None: the policy's first."""
    events, info = run.events, run.info
    event = events[start]
    if event.kind == "RESET" and by_reset:
        return None
    if start == 0:
        before = event.parent if event.kind == "COMMIT" else event.boundary
        if before == 0 and event.kind not in MOVES:
            return None
        key = StateKey(before, event.instruction)
    else:
        key = state_after(events[start - 1])
        if key == StateKey(0, info.instruction):
            return None
    return key if shelf is not None and key in shelf else _IMPOSSIBLE


def _last_visits(events: Sequence[RunEvent], goals: dict[int, StateKey]) -> dict[int, int]:
    """Position of a goal to the last position before it at which its state was live; -2: never."""
    wanted = set(goals.values())
    seen: dict[StateKey, int] = {}
    found: dict[int, int] = {}
    for position, event in enumerate(events):
        if position in goals:
            found[position] = seen.get(goals[position], -2)
        key = state_after(event)
        if key in wanted:
            seen.setdefault(key, position)
            seen[key] = position
    return found


def _earliest_visits(last_visit: dict[int, int], end: int) -> list[int]:
    """For each start, the smallest last visit of all goals from there on."""
    smallest = [end] * (end + 1)
    for position in range(end - 1, -1, -1):
        smallest[position] = min(smallest[position + 1], last_visit.get(position, end))
    return smallest


def _end(events: Sequence[RunEvent], until: int | None) -> int:
    if until is not None:
        for position, event in enumerate(events):
            if event.kind == "COMMIT" and event.boundary > until:
                return position
    return len(events)


def _position_of(run: Run, boundary: int, end: int) -> int:
    """The position after the event that made a boundary live for the first time."""
    first = run.events[0]
    if boundary == (first.parent if first.kind == "COMMIT" else first.boundary):
        return 0
    for position, event in enumerate(run.events[:end]):
        if event.boundary == boundary:
            return min(position + 1, end - 1)
    numbers = [event.boundary for event in run.events]
    raise CannotReplay(
        f"boundary {boundary} is not in the bag, which has {min(numbers)} to {max(numbers)}"
    )


def _refusal(
    run: Run, shelf: Shelf | None, goals: dict[int, StateKey], last_visit: dict[int, int]
) -> str:
    events = run.events
    where = (
        f"in {shelf.path}, which has {len(shelf)} of this run"
        if shelf is not None
        else "beside the bag: record with --capsules-every, or name a directory with --capsules"
    )
    never = [position for position, visit in last_visit.items() if visit == -2]
    if never:
        event, goal = events[never[0]], goals[never[0]]
        return (
            f"event {event.index} ({event.kind}) goes to {goal}"
            f"{f', capsule {event.capsule!r}' if event.capsule else ''}"
            f"{f' named {event.name!r}' if event.name else ''}, which was made before the bag "
            f"begins; there is no such capsule {where}"
        )
    return (
        f"the bag begins in mid-session with event {events[0].index} at boundary "
        f"{events[0].boundary}, and there is no capsule to begin from {where}"
    )
