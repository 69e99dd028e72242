# SPDX-License-Identifier: Apache-2.0
"""How often messages come, judged against a required rate."""

from __future__ import annotations

from collections import deque


class RateMeter:
    """Rate of arrivals in a sliding window that holds some of them at the required rate.

    Args:
        required: Hz, above 0.
    """

    def __init__(self, required: float) -> None:
        self.required = required
        self._period_ns = 1e9 / required
        self._window_ns = max(2e9, 8 * self._period_ns)
        self._arrivals: deque[int] = deque()
        self._began_ns: int | None = None

    def clear(self) -> None:
        """Begin anew: time went back."""
        self._arrivals.clear()
        self._began_ns = None

    def add(self, now_ns: int) -> None:
        """A message came."""
        if self._began_ns is None:
            self._began_ns = now_ns
        self._arrivals.append(now_ns)
        self._forget(now_ns)

    def rate(self, now_ns: int) -> float | None:
        """Hz; None while too little has been seen to judge: for one window from the first message.

        Intervals between arrivals are counted, and what a message that is overdue has lasted so
        far: a sender that falls silent comes ever more slowly, and not at all after a window.
        """
        if self._began_ns is None or now_ns - self._began_ns < self._window_ns:
            return None
        self._forget(now_ns)
        if not self._arrivals:
            return 0.0
        first, last = self._arrivals[0], self._arrivals[-1]
        elapsed_ns = max(last, now_ns - self._period_ns) - first
        return (len(self._arrivals) - 1) * 1e9 / elapsed_ns if elapsed_ns > 0 else self.required

    def is_below(self, now_ns: int) -> bool:
        """Whether messages come more slowly than required."""
        rate = self.rate(now_ns)
        return rate is not None and rate < self.required * (1 - 1e-6)

    def _forget(self, now_ns: int) -> None:
        while self._arrivals and now_ns - self._arrivals[0] > self._window_ns:
            self._arrivals.popleft()
