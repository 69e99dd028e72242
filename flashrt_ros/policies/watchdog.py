# SPDX-License-Identifier: Apache-2.0
"""Whether time goes on: a clock that stands still makes nothing old, and so no input late."""

from __future__ import annotations

import time
from collections.abc import Callable


class ClockWatch:
    """Compares a clock that may stop (a simulator's, a bag's) with one that doesn't.

    Args:
        timeout: s of the second clock in which the first must have moved; 0: it isn't watched.
        steady: the second clock, s.
    """

    def __init__(self, timeout: float, steady: Callable[[], float] = time.monotonic) -> None:
        self.timeout = timeout
        self._steady = steady
        self._seen_ns: int | None = None
        self._since = 0.0

    def stands_still(self, now_ns: int) -> bool:
        """Whether the clock has shown `now_ns` for longer than the timeout. Ask often."""
        if now_ns != self._seen_ns:
            self._seen_ns, self._since = now_ns, self._steady()
            return False
        return self.timeout > 0.0 and self._steady() - self._since > self.timeout
