# SPDX-License-Identifier: Apache-2.0
"""Whether the emergency stop is pressed."""

from __future__ import annotations

import threading

from flashrt_ros.runtime.errors import EmergencyStop


class EmergencySwitch:
    """Pressed or released, from any thread; what sends commands asks it before each one.

    A press counts from the moment that `press` returns: whoever sends a command afterwards sees
    it, also a tick that began before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason = ""
        self._jammed = False

    @property
    def reason(self) -> str:
        """Why nothing may move; empty: it is released."""
        return self._reason

    @property
    def pressed(self) -> bool:
        """Whether nothing may move."""
        return bool(self._reason)

    def press(self, reason: str) -> bool:
        """Press it; `reason` must not be empty. Returns whether it was released before."""
        with self._lock:
            was_released, self._reason = not self._reason, reason
        return was_released

    def jam(self, reason: str) -> None:
        """Press it for good: whatever it is the switch of must not move anything any more."""
        self.press(reason)
        self._jammed = True

    def release(self) -> bool:
        """Release it. Returns whether it was pressed before and is not now."""
        with self._lock:
            if self._jammed:
                return False
            was_pressed, self._reason = bool(self._reason), ""
        return was_pressed

    def require_released(self) -> None:
        """Raise EmergencyStop if it is pressed: for whatever would let the joints move."""
        if self._reason:
            raise EmergencyStop(f"{self._reason}: release it, then resume")
