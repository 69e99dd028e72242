# SPDX-License-Identifier: Apache-2.0
"""The lineage of a session, rebuilt outside the node from its boundary events alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flashrt_ros.msg import Boundary

_MOVES = (Boundary.RESTORE, Boundary.ROLLBACK, Boundary.RESET)


@dataclass(frozen=True)
class SeenBoundary:
    """A boundary of the tree. `origin`: "<session>:<boundary>" of a root that is a foreign one."""

    number: int
    parent: int  # -1: a root
    step: int
    inputs_digest: str
    origin: str = ""


@dataclass(frozen=True)
class SeenCapsule:
    """A capsule that exists, as far as the events say."""

    id: str
    name: str
    session: str
    boundary: int
    parent: str  # a capsule's id, or empty
    tier: str


class LineageView:
    """A tree of boundaries and the capsules on it, for one session.

    Feed it every `msg/Boundary` of `~/boundary` in order, from the session's first event on. The
    boundary 0, the root, is there from the begin. Messages of another session start it anew.
    """

    def __init__(self) -> None:
        self._start("")

    def _start(self, session: str) -> None:
        self.session = session
        self.boundaries: dict[int, SeenBoundary] = {}
        self.capsules: dict[str, SeenCapsule] = {}
        self.live = 0
        self.epoch = 0
        self.instruction = ""
        self.lost = 0
        """Events that did not come: the tree may lack something."""
        self._index: int | None = None

    def add(self, message: Boundary) -> None:
        """Take one event in."""
        if message.session != self.session:
            self._start(message.session)
        if self._index is not None:
            self.lost += message.event_index - self._index - 1
        self._index = message.event_index
        detail: dict[str, Any] = json.loads(message.detail) if message.detail else {}
        self.live, self.epoch = message.boundary, message.epoch
        self.instruction = message.instruction
        self._see(message, detail)
        if message.event in (Boundary.SNAPSHOT, Boundary.FORK, Boundary.MOVE):
            self._see_capsule(message, detail["capsule"])
        elif message.event == Boundary.DELETE:
            self.capsules.pop(message.capsule, None)

    def ancestors(self, number: int | None = None) -> Iterator[SeenBoundary]:
        """A boundary (the live one), its parent, and so on to a root."""
        seen = self.boundaries.get(self.live if number is None else number)
        while seen is not None:
            yield seen
            seen = self.boundaries.get(seen.parent)

    def children(self, number: int) -> list[int]:
        """Numbers of the boundaries that descend directly from one."""
        return [seen.number for seen in self.boundaries.values() if seen.parent == number]

    def _see(self, message: Boundary, detail: Mapping[str, Any]) -> None:
        if message.boundary in self.boundaries:
            return
        origin = detail.get("origin", "") if message.event in _MOVES else ""
        self.boundaries[message.boundary] = SeenBoundary(
            message.boundary, message.parent, message.step, message.inputs_digest, origin
        )

    def _see_capsule(self, message: Boundary, about: Mapping[str, Any]) -> None:
        known = self.capsules.get(message.capsule)
        if known is not None:
            self.capsules[message.capsule] = replace(known, tier=about["tier"])
            return
        if message.name:  # a name that is given again has been taken from the older capsule
            older = [seen.id for seen in self.capsules.values() if seen.name == message.name]
            for capsule in older:
                del self.capsules[capsule]
        self.capsules[message.capsule] = SeenCapsule(
            message.capsule,
            message.name,
            about["session"],
            about["boundary"],
            about["parent"],
            about["tier"],
        )
