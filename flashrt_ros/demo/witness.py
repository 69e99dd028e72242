# SPDX-License-Identifier: Apache-2.0
"""What a planner can see from outside, and what it must never see there.

Everything here is judged from published messages alone: the lineage that `~/boundary` tells, and
the epochs and sequences of chunks and commands.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.client import LineageView, Motion
from flashrt_ros.msg import ActionChunk, Boundary

EVERYTHING = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)

_MOVES = (Boundary.RESTORE, Boundary.ROLLBACK, Boundary.RESET)
_RAISES = (*_MOVES, Boundary.INTERRUPT)


class Wrong(Exception):
    """The node has broken a promise."""


class Lost(Exception):
    """Something that was published or applied has not arrived."""


@dataclass(frozen=True)
class Moment:
    """Where the node was after one event."""

    boundary: int
    step: int
    epoch: int
    instruction: str
    held: bool


class LineageWitness:
    """Takes in every event of `~/boundary`; `fault` is the first that cannot be."""

    def __init__(self) -> None:
        self.view = LineageView()
        self.moments: list[Moment] = []
        """One for each event, in order."""
        self.commits: dict[int, tuple[int, int, int]] = {}
        """Step, epoch and stamp (ns) of each boundary that was committed."""
        self.fault: Exception | None = None
        self.still: int | None = None
        """The epoch that a verb has begun and in which nothing may move; None: it may."""
        self._told: dict[tuple[str, int], list[int]] = {}
        self._stored: dict[int, frozenset[int]] = {}
        self._changed = threading.Condition()

    def listen(self, node: Node, policy: str) -> None:
        """Subscribe to the events of a policy node."""
        node.create_subscription(Boundary, f"{policy}/boundary", self.take, EVERYTHING)

    def take(self, message: Boundary) -> None:
        """One event."""
        with self._changed:
            if self.fault is None:
                try:
                    self._take(message)
                except Exception as error:  # a callback may not raise; the planner does
                    self.fault = error
            self._changed.notify_all()

    # -- for the planner

    def wait(self, condition: Callable[[], bool], patience: float, what: str) -> None:
        """Wait until a condition holds; raises `fault`, or Lost after `patience` s."""
        with self._changed:
            self._changed.wait_for(lambda: self.fault is not None or condition(), patience)
            if self.fault is not None:
                raise self.fault
            if not condition():
                raise Lost(f"{what} did not come within {patience} s")

    def pause(self, seconds: float) -> None:
        """Until the next event, or for so long."""
        with self._changed:
            self._changed.wait(seconds)

    def event(self, request_id: str, kind: int, count: int, patience: float) -> int:
        """The place in `moments` of the last of a request's events of one kind; see `wait`."""
        told = self._told.setdefault((request_id, kind), [])
        self.wait(lambda: len(told) >= count, patience, f"event {kind} of request {request_id}")
        return told[-1]

    def count(self, request_id: str) -> dict[int, int]:
        """How many events of each kind a request has caused."""
        with self._changed:
            return {
                kind: len(told) for (name, kind), told in self._told.items() if name == request_id
            }

    def lineage(self, number: int | None = None) -> list[int]:
        """A boundary (None: the live one), its parent, and so on to the root."""
        with self._changed:
            return [seen.number for seen in self.view.ancestors(number)]

    def stored(self, index: int | None = None) -> frozenset[int]:
        """Boundaries of which there is a capsule now, or was just before a rollback's event."""
        with self._changed:
            return self._stored_now() if index is None else self._stored[index]

    # -- one event

    def _stored_now(self) -> frozenset[int]:
        """The first boundary is always stored, and never told of."""
        view = self.view
        mine = [seen.boundary for seen in view.capsules.values() if seen.session == view.session]
        return frozenset({0, *mine})

    def _take(self, message: Boundary) -> None:
        view, index = self.view, len(self.moments)
        known = set(view.boundaries)
        stored = self._stored_now()
        view.add(message)
        if view.lost:
            raise Lost(f"{view.lost} events before event {message.event_index}")
        if self.moments:
            _judge(self.moments[-1], message, known)
        moment = self._moment(message)
        raised = bool(self.moments) and moment.epoch > self.moments[-1].epoch
        self.still = moment.epoch if moment.held and raised else self.still
        self.still = self.still if moment.held else None
        self.moments.append(moment)
        if message.event == Boundary.COMMIT:
            stamp = message.input_stamps[list(message.input_names).index("camera")]
            stamp_ns = int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)
            self.commits[message.boundary] = (message.step, message.epoch, stamp_ns)
        if message.event == Boundary.ROLLBACK:
            self._stored[index] = stored
        if message.request_id:
            self._told.setdefault((message.request_id, message.event), []).append(index)

    def _moment(self, message: Boundary) -> Moment:
        held = self.moments[-1].held if self.moments else False
        if message.event in (Boundary.INTERRUPT, Boundary.HOLD):
            held = True
        elif message.event in (*_MOVES, Boundary.RESUME):
            held = message.motion == int(Motion.HOLD)
        elif message.event in (Boundary.RECOVER, Boundary.ACTIVATE):
            held = False
        return Moment(message.boundary, message.step, message.epoch, message.instruction, held)


def _judge(before: Moment, message: Boundary, known: set[int]) -> None:
    """Raise Wrong where an event cannot follow what was before it."""
    raised = message.epoch - before.epoch
    if raised != (1 if message.event in _RAISES else 0):
        raise Wrong(f"{_name(message)}: the epoch was {before.epoch} before")
    fresh = message.boundary not in known
    if message.event == Boundary.COMMIT:
        follows = (message.parent, message.step) == (before.boundary, before.step + 1)
        if not (fresh and follows and message.boundary > max(known, default=0)):
            raise Wrong(f"{_name(message)} does not follow {before}")
    elif message.event in _MOVES:
        if fresh:
            raise Wrong(f"{_name(message)} goes to a boundary that never was")
    elif (message.boundary, message.step) != (before.boundary, before.step):
        raise Wrong(f"{_name(message)} moved the live state from {before}")


def _name(message: Boundary) -> str:
    return (
        f"event {message.event_index} (kind {message.event}, boundary {message.boundary}, parent "
        f"{message.parent}, step {message.step}, epoch {message.epoch})"
    )


class CommandWitness:
    """Takes in every chunk and command; `fault` is the first that is of an epoch gone by."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, int, int]] = []
        """Boundary, step and epoch of each."""
        self.commands = 0
        self.moves: Counter[int] = Counter()
        """Commands that move, by epoch."""
        self.fault: Wrong | None = None
        self._newest = {"chunk": 0, "command": 0}
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def listen(self, node: Node, policy: str) -> None:
        """Subscribe to the chunks of a policy node, and to the commands."""
        node.create_subscription(ActionChunk, f"{policy}/action_chunk", self.take, EVERYTHING)
        node.create_subscription(JointTrajectory, "joint_trajectory", self.obey, EVERYTHING)

    def take(self, message: ActionChunk) -> None:
        """One chunk."""
        self.chunks.append((message.boundary, message.step, message.epoch))
        self._judge("chunk", message.epoch, message.sequence)

    def obey(self, message: JointTrajectory) -> None:
        """One command, as a controller gets it."""
        pairs = dict(item.split("=") for item in message.header.frame_id.split())
        epoch = int(pairs["epoch"])
        self.commands += 1
        if len(message.points) > 1:
            self.moves[epoch] += 1
        self._judge("command", epoch, int(pairs["sequence"]))

    def _judge(self, what: str, epoch: int, sequence: int) -> None:
        """Sequences grow on each topic, and over both no older epoch has a newer sequence."""
        told = f"a {what} of epoch {epoch} and sequence {sequence}"
        newest = self._newest[what]
        later = [each for each, first in self._first.items() if each > epoch and first < sequence]
        earlier = [each for each, last in self._last.items() if each < epoch and last > sequence]
        if sequence <= newest:
            self._blame(f"{told} came after sequence {newest}")
        if later or earlier:
            self._blame(f"{told}, although epochs {later + earlier} have been on its other side")
        self._newest[what] = max(newest, sequence)
        self._first[epoch] = min(self._first.get(epoch, sequence), sequence)
        self._last[epoch] = max(self._last.get(epoch, sequence), sequence)

    def _blame(self, text: str) -> None:
        if self.fault is None:
            self.fault = Wrong(text)
