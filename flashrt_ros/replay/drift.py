# SPDX-License-Identifier: Apache-2.0
"""How far another model, dtype or back end drifts from what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.replay.outcome import DriftReport
from flashrt_ros.replay.run import Run


def drift(
    run: Run,
    model: str | Path | PolicyModel | None = None,
    until: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DriftReport:
    """Replay to the end whatever differs in actions and state, and measure it.

    Raises:
        CannotReplay: what is missing.
    """
    raise NotImplementedError
