# SPDX-License-Identifier: Apache-2.0
"""Automatic boundary snapshots that thin out with age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class AutoSnapshots:
    """Freeze every `every`-th boundary, within `budget_bytes` and `keep` capsules.

    When there are too many, the one whose loss widens a gap least, relative to its age, goes
    first: the recent past stays dense and the far past becomes sparse, in steps that grow with age.
    """

    every: int = 1
    budget_bytes: int = 256 << 20
    keep: int = 256


def least_missed(steps: Sequence[int]) -> int:
    """Index of the snapshot to let go: smallest (gap that it would leave) / (its age).

    `steps` ascend; the last one is the present and is never chosen. Needs two or more.
    """
    now = steps[-1]
    best, best_loss = 0, float("inf")
    for index in range(len(steps) - 1):
        before = steps[index - 1] if index else steps[0] - 1
        loss = (steps[index + 1] - before) / (now - steps[index] + 1)
        if loss < best_loss:
            best, best_loss = index, loss
    return best
