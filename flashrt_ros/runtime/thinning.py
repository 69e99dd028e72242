# SPDX-License-Identifier: Apache-2.0
"""Automatic boundary snapshots that thin out with age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .capsule import Capsule, CapsuleInfo
from .rows import slabs_of
from .store import Store


@dataclass(frozen=True)
class AutoSnapshots:
    """Freeze every `every`-th boundary, within `budget_bytes` and `keep` capsules.

    When there are too many, the one whose loss widens a gap least, relative to its age, goes
    first: the recent past stays dense and the far past becomes sparse, in steps that grow with age.
    """

    every: int = 1
    budget_bytes: int = 256 << 20
    keep: int = 256


def least_missed(numbers: Sequence[int]) -> int:
    """Index of the snapshot to let go: smallest (gap that it would leave) / (its age).

    `numbers` ascend; the last one is the present and is never chosen. Needs two or more. The gap
    of the oldest reaches back to 0, the first boundary, which a session always keeps.
    """
    now = numbers[-1]
    best, best_loss = 0, float("inf")
    for index in range(len(numbers) - 1):
        before = numbers[index - 1] if index else 0
        loss = (numbers[index + 1] - before) / (now - numbers[index] + 1)
        if loss < best_loss:
            best, best_loss = index, loss
    return best


class AutoKeeper:
    """The automatic snapshots of one session."""

    def __init__(self, auto: AutoSnapshots, store: Store) -> None:
        self.auto = auto
        self._store = store
        self._kept: list[Capsule] = []  # by boundary, ascending
        self._bound = 0  # no less than the bytes that they hold

    def add(self, capsule: Capsule) -> None:
        self._kept.append(capsule)
        self._bound += self._store.info(capsule).own_bytes

    def forget(self, capsule_id: str) -> None:
        """It was dropped by somebody else."""
        self._kept = [capsule for capsule in self._kept if capsule.id != capsule_id]

    def thin(self) -> list[CapsuleInfo]:
        """Drop what is too much. Returns what was dropped."""
        dropped: list[CapsuleInfo] = []
        allowed = self.auto.budget_bytes
        if self._bound > allowed:
            self._bound = self._held_bytes()
            if self._bound > allowed:
                allowed -= allowed // 8  # a little further, or every boundary would count again
        while len(self._kept) > 1 and (len(self._kept) > self.auto.keep or self._bound > allowed):
            victim = self._kept.pop(least_missed([c.boundary for c in self._kept]))
            dropped.append(self._store.info(victim))
            self._bound -= self._store.drop(victim, background=True)
        return dropped

    def _held_bytes(self) -> int:
        with self._store.lock:
            kept = [capsule for capsule in self._kept if capsule.fixed is not None]
            refs = [ref for capsule in kept for ref in capsule.rows]
            rows = sum(slab.block.nbytes for slab in slabs_of(refs))
            return rows + sum(c.fixed.block.nbytes for c in kept if c.fixed is not None)
