# SPDX-License-Identifier: Apache-2.0
"""Which stamps an input may have, one after the other; docs/contract.md has the table."""

from __future__ import annotations

from collections import Counter

from flashrt_ros.policies.contract import TimeRules


class StampsWentBack(Exception):
    """An input's stamps began anew, in its past: every input is to be cleared, the epoch raised."""


class StampGuard:
    """Refuses stamps that cannot be, drops messages that are late or come twice.

    In lockstep nothing is judged by the clock, and the newest stamp may come again.

    Args:
        rules: of the contract.
        lockstep: a world that waits for an answer to each observation.
    """

    def __init__(self, rules: TimeRules, *, lockstep: bool) -> None:
        self._rules = rules
        self._lockstep = lockstep
        self._back: dict[str, int] = {}
        self.drops: Counter[str] = Counter()
        """Messages that were late, came twice, or before the clock began, by input."""

    def clear(self) -> None:
        """Forget what came so far, but for the counts."""
        self._back.clear()

    def admits(self, name: str, stamp_ns: int, newest_ns: int | None, now_ns: int) -> bool:
        """Whether a message is to be taken; else it is counted as dropped.

        Args:
            name: of the input.
            stamp_ns: of the message, ns.
            newest_ns: of the input's newest message that was taken, ns; None: there is none.
            now_ns: the node's clock, ns.

        Raises:
            ValueError: a stamp of zero, or in the future.
            StampsWentBack: see there.
        """
        if not self._lockstep:
            if now_ns == 0:  # use_sim_time, and nothing on /clock yet
                self.drops[name] += 1
                return False
            self._check(name, stamp_ns, now_ns)
        if newest_ns is None or stamp_ns > newest_ns or (self._lockstep and stamp_ns == newest_ns):
            self._back.pop(name, None)
            return True
        self.drops[name] += 1
        self._look_back(name, stamp_ns, newest_ns)
        return False

    def _check(self, name: str, stamp_ns: int, now_ns: int) -> None:
        # A simulator's first message may truly be of time 0.
        if stamp_ns == 0 and now_ns > 1_000_000_000:
            raise ValueError(
                f"stamp of '{name}' is 0, expected the time of acquisition; a driver that "
                "does not stamp needs stamp: receipt in the contract"
            )
        tolerance_s = self._rules.future_tolerance
        ahead_ns = stamp_ns - now_ns
        if ahead_ns > whole_ns(tolerance_s):
            raise ValueError(
                f"stamp of '{name}' is {ahead_ns * 1e-9:.3f} s in the future "
                f"({stamp_ns * 1e-9:.3f} against {now_ns * 1e-9:.3f}), expected at most "
                f"{tolerance_s} s: are the clocks in step, and use_sim_time the same everywhere?"
            )

    def _look_back(self, name: str, stamp_ns: int, newest_ns: int) -> None:
        """One message that is far behind is late; a second that goes on from it is a new time."""
        if newest_ns - stamp_ns <= whole_ns(self._rules.jump_back):
            return
        before_ns = self._back.get(name)
        self._back[name] = stamp_ns
        if before_ns is not None and before_ns < stamp_ns:
            raise StampsWentBack(
                f"stamps of '{name}' went back by {(newest_ns - stamp_ns) * 1e-9:.3f} s"
            )


def whole_ns(seconds: float) -> int:
    """Limits are compared as whole ns: as floats, 0.3 s of age can exceed 0.3 s allowed."""
    return round(seconds * 1e9)
