# SPDX-License-Identifier: Apache-2.0
"""Whether ticks are in time."""

from __future__ import annotations


class Deadline:
    """Counts ticks that took too long, and says when there were too many in a row.

    The first tick is not judged: it is cold (caches, kernels that are compiled or loaded at their
    first use), and nobody drives by it: the joints are at rest.

    Args:
        limit: s for a tick; 0: none.
        misses: so many in a row, and the tick's chunk must not be executed.
    """

    def __init__(self, limit: float, misses: int) -> None:
        self.limit = limit
        self.allowed = misses
        self._cold = True
        self._in_a_row = 0
        self.misses = 0
        """Ticks over the limit, since the beginning."""

    def judge(self, duration: float) -> str:
        """Take a tick's duration, s. Returns why its chunk must not be executed, else ''."""
        cold, self._cold = self._cold, False
        if cold or self.limit == 0.0:
            return ""
        if duration <= self.limit:
            self._in_a_row = 0
            return ""
        self.misses += 1
        self._in_a_row += 1
        if self._in_a_row < self.allowed:
            return ""
        return (
            f"deadline missed {self._in_a_row} times in a row: a tick took "
            f"{duration * 1e3:.1f} ms, allowed are {self.limit * 1e3:.1f} ms"
        )
