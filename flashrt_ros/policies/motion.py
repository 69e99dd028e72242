# SPDX-License-Identifier: Apache-2.0
"""What a verb that changes the live state does to motion: the world does not roll back."""

from __future__ import annotations

from enum import IntEnum


class Motion(IntEnum):
    """The same numbers as `msg/Motion.msg`."""

    UNCHANGED = 0
    """Resume only: keep what the last verb chose."""
    HOLD = 1
    """Stay at the last commanded or measured position until told otherwise."""
    REPLAN = 2
    """Drop queued actions, wait for an observation that is not older than the verb, tick on it."""
    CONTINUE = 3
    """Go on with what was left of the capsule's chunk, if the joints are where they were then."""
