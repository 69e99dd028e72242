# SPDX-License-Identifier: Apache-2.0
"""Replays a run without DDS, as fast as it computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.replay.outcome import ReplayReport
from flashrt_ros.replay.run import Run


def replay(
    run: Run,
    model: str | Path | PolicyModel | None = None,
    from_boundary: int | None = None,
    until: int | None = None,
    tolerance: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayReport:
    """Replay a run and compare it boundary by boundary, up to the first difference.

    Args:
        run: what `open_run` gave.
        model: a checkpoint directory, the name of a shipped one, or a policy that is not bound
            yet; None: the one that the run names.
        from_boundary: restore the nearest capsule at or before it and start there.
        until: the last boundary to replay.
        tolerance: largest difference of actions that is none, rad or m; 0: bit for bit. With more
            than 0 state digests are not compared.
        progress: called with (ticks done, ticks in all).

    Raises:
        CannotReplay: what is missing.
    """
    raise NotImplementedError
