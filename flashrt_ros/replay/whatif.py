# SPDX-License-Identifier: Apache-2.0
"""Other futures from a recorded boundary: another instruction, other seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.replay.outcome import WhatIfReport
from flashrt_ros.replay.run import Run


def what_if(
    run: Run,
    at: int,
    instruction: str | None = None,
    seeds: Sequence[int] = (),
    ticks: int = 1,
    model: str | Path | PolicyModel | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> WhatIfReport:
    """Branch from boundary `at` on the recorded observations that follow it.

    Args:
        instruction: of every branch; None: what it was at that boundary.
        seeds: a branch each; none: one branch with the recorded seed.
        ticks: of each branch.

    Raises:
        CannotReplay: what is missing.
    """
    raise NotImplementedError
