# SPDX-License-Identifier: Apache-2.0
"""How far another model, dtype or back end drifts from what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.replay.offline import replay
from flashrt_ros.replay.outcome import DriftReport
from flashrt_ros.replay.run import CannotReplay, Run, elapsed


def drift(
    run: Run,
    model: str | Path | PolicyModel | None = None,
    until: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    capsules: Path | None = None,
    backend: str | None = None,
    device: str | None = None,
) -> DriftReport:
    """Replay to the end whatever differs in actions and state, and measure it.

    The policy gets the recorded observations, not those that its own actions would have led to.
    Differences of inputs and verbs still end it: the report then reaches as far as that.

    Raises:
        CannotReplay: what is missing; also when no tick could be compared.
    """
    report = replay(
        run,
        model,
        until=until,
        progress=progress,
        drifting=True,
        capsules=capsules,
        backend=backend,
        device=device,
    )
    rows = [row for row in report.boundaries if row.max_error is not None]
    if not rows:
        raise CannotReplay(
            report.difference.message
            if report.difference is not None
            else "no chunk in the bag is the policy's output alone: nothing to compare with"
        )
    errors = np.stack([row.max_error for row in rows if row.max_error is not None])
    return DriftReport(report, elapsed([row.stamp_ns for row in rows]), errors)


def draw_drift(found: DriftReport, path: Path) -> None:
    """A picture of the error of each joint over time, as PNG, SVG or PDF by the file's suffix."""
    from matplotlib.figure import Figure

    report = found.report
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    for joint, errors in zip(report.run.info.joint_names, found.errors.T, strict=True):
        axes.plot(found.stamps, errors, label=joint, linewidth=1.2)
    largest = found.errors.max()
    if largest > 0.0:
        axes.set_yscale("symlog", linthresh=float(max(largest * 1e-4, 1e-9)))
    axes.set_xlabel("time of the run, s")
    axes.set_ylabel("largest error in the chunk, rad or m")
    axes.set_title(f"{report.run.path.name} replayed with {report.model}")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path)
