# SPDX-License-Identifier: Apache-2.0
"""What a planner writes down, and what it draws from that for its next call."""

from __future__ import annotations

import random
from typing import Any

from flashrt_ros.demo.dialogue import Dialogue
from flashrt_ros.demo.witness import LineageWitness
from flashrt_ros.msg import Branch

INSTRUCTIONS = ("wait", "reach", "go home")
NAMES = "abcdefgh"


class Notebook:
    """The capsules that the answers gave, and arguments at random.

    Args:
        lineage: the tree as the events tell it.
        dialogue: the calls so far.
        seed: of what is drawn.
    """

    def __init__(self, lineage: LineageWitness, dialogue: Dialogue, seed: int) -> None:
        self.random = random.Random(seed)
        self.capsules: dict[str, Any] = {}
        """Name to CapsuleInfo."""
        self._lineage, self._dialogue = lineage, dialogue
        self._ids = 0

    def fields(self, *, cas: bool = True) -> dict[str, Any]:
        """A request id, and sometimes a compare-and-swap that holds: only we raise the epoch."""
        self._ids += 1
        fields: dict[str, Any] = {"request_id": f"program-{self._ids}"}
        if cas and self.random.random() < 0.3:
            fields["expected_epoch"] = self._lineage.moments[self._dialogue.mark].epoch
        return fields

    def past(self, number: int | None = None) -> list[tuple[int, int]]:
        """Number and stamp, ns, of a boundary (None: the live one) and of those before it."""
        commits = self._lineage.commits
        return [(each, commits[each][2] if each else 0) for each in self._lineage.lineage(number)]

    def name(self) -> str:
        """Mostly a name that a capsule has."""
        known = sorted(self.capsules)
        return self.random.choice(known if known and self.random.random() < 0.8 else NAMES)

    def names(self, count: int) -> list[str]:
        """Names for new capsules, mostly free ones."""
        free = [name for name in NAMES if name not in self.capsules]
        enough = len(free) >= count and self.random.random() < 0.7
        return self.random.sample(free if enough else NAMES, count)

    def branch(self) -> Branch:
        """A future to try."""
        text = self.random.choice(["", *INSTRUCTIONS])
        return Branch(label=text, instruction=text, seed=self.random.choice([-1, 7, 8]))
