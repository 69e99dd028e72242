# SPDX-License-Identifier: Apache-2.0
"""Whether ticks are in time."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """Counts ticks that took too long, and says when there were too many in a row.

    A tick that takes n times the limit counts as n in a row: so one that does not end is noticed
    before it ends, by whoever asks `is_overdue` on another thread.

    The first tick is not judged: it is cold (caches, kernels that are compiled or loaded at their
    first use), and nobody drives by it: the joints are at rest.

    Args:
        limit: s for a tick; 0: none.
        misses: so many in a row, and the tick's chunk must not be executed.
        steady: a clock, s.
    """

    def __init__(
        self, limit: float, misses: int, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self.allowed = misses
        self._steady = steady
        self._cold = True
        self._began: float | None = None
        self._in_a_row = 0
        self.misses = 0
        """Ticks over the limit, since the beginning."""

    def begin(self) -> None:
        """A tick begins."""
        self._began = self._steady()

    def is_overdue(self) -> bool:
        """Whether the tick under way is so late already that its chunk must not be executed."""
        began = self._began
        return began is not None and self._row_after(self._steady() - began) >= self.allowed

    def judge(self, duration: float) -> str:
        """Take a tick's duration, s. Returns why its chunk must not be executed, else ''."""
        row = self._row_after(duration)
        judged, self._cold, self._began = not self._cold, False, None
        if not judged or self.limit == 0.0:
            return ""
        self._in_a_row = row
        if row == 0:
            return ""
        self.misses += 1
        if row < self.allowed:
            return ""
        return (
            f"deadline missed: a tick took {duration * 1e3:.1f} ms, allowed are "
            f"{self.limit * 1e3:.1f} ms, late in a row: {row}"
        )

    def failed(self) -> None:
        """The tick under way ended with an error: nothing is judged."""
        self._began = None

    def _row_after(self, duration: float) -> int:
        """Misses in a row if the tick under way took so long."""
        if self._cold or self.limit == 0.0 or duration <= self.limit:
            return 0
        return self._in_a_row + int(min(duration / self.limit, 1e6))
