# SPDX-License-Identifier: Apache-2.0
"""Outcomes of replays as text for people and as JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashrt_ros.replay.outcome import DriftReport, ReplayReport, WhatIfReport

if TYPE_CHECKING:
    from flashrt_ros.replay.pool import BagOutcome


def replay_text(report: ReplayReport) -> str:
    """A few lines: verdict, first difference, speed, notes."""
    run = report.run
    lines = [f"{run.path} {run.node} session {run.info.session}"]
    compared = ", ".join(f"{count} {what}" for what, count in sorted(report.compared.items()))
    lines.append(
        f"{report.ticks} ticks in {report.seconds:.2f} s with {report.model} "
        f"({_rate(report):.0f} ticks/s, {report.realtime_factor:.1f} x real time)"
    )
    lines.append(f"compared: {compared or 'nothing'}")
    lines += [f"note: {note}" for note in report.notes]
    skipped = sum(row.event == "COMMIT" and bool(row.note) for row in report.boundaries)
    if skipped:
        reason = next(row.note for row in report.boundaries if row.event == "COMMIT" and row.note)
        lines.append(f"note: the actions of {skipped} ticks were not compared ({reason}, ...)")
    if report.difference is None:
        lines.append("identical")
    else:
        found = report.difference
        lines += [
            f"DIFFERS in {found.kind} '{found.name}' at boundary {found.boundary}",
            f"  {found.message}",
        ]
    return "\n".join(lines) + "\n"


def replay_json(report: ReplayReport) -> dict[str, Any]:
    """Without the chunks: those are in the bag."""
    run = report.run
    return {
        "bag": str(run.path),
        "node": run.node,
        "session": run.info.session,
        "model": report.model,
        "identical": report.identical,
        "difference": None if report.difference is None else asdict(report.difference),
        "ticks": report.ticks,
        "events": len(report.boundaries),
        "compared": report.compared,
        "seconds": report.seconds,
        "ticks_per_second": _rate(report),
        "realtime_factor": report.realtime_factor,
        "notes": list(report.notes),
    }


def drift_text(found: DriftReport) -> str:
    """A table: each joint's median, 99th percentile and largest error, and when that was."""
    report, errors = found.report, found.errors
    rows = []
    for joint, column in zip(report.run.info.joint_names, errors.T, strict=True):
        worst = int(column.argmax())
        rows.append(
            [
                joint,
                *(f"{value:.3g}" for value in (np.median(column), np.quantile(column, 0.99))),
                f"{column[worst]:.3g}",
                f"{found.stamps[worst]:.2f}",
            ]
        )
    head = ["joint", "median", "99 %", "largest", "at s"]
    text = f"drift of {report.model} over {len(errors)} ticks, rad or m\n{_table(head, rows)}"
    if report.difference is not None and report.difference.kind not in ("action", "buffer"):
        text += f"ended by: {report.difference.message}\n"
    return text


def drift_json(found: DriftReport) -> dict[str, Any]:
    """Errors of each joint, a number a tick."""
    names = found.report.run.info.joint_names
    return {
        **replay_json(found.report),
        "stamps": found.stamps.tolist(),
        "errors": {
            name: column.tolist() for name, column in zip(names, found.errors.T, strict=True)
        },
    }


def what_if_text(found: WhatIfReport) -> str:
    """A table: spread of each joint over the branches, at the last point of the last tick."""
    actions = found.actions()
    last, recorded = actions[:, -1, -1, :], found.recorded[-1, -1, :]
    rows = [
        [
            name,
            *(f"{value:.4f}" for value in (column.mean(), column.std(), column.min())),
            f"{column.max():.4f}",
            f"{recorded[index]:.4f}",
            f"{actions[..., index].std(axis=0).max():.4f}",
        ]
        for index, (name, column) in enumerate(zip(found.run.info.joint_names, last.T, strict=True))
    ]
    head = ["joint", "mean", "std", "min", "max", "recorded", "largest std"]
    return (
        f"{len(found.branches)} branches from boundary {found.boundary}, {found.ticks} ticks, "
        f"instruction '{found.branches[0].instruction}'; last point of the last chunk, rad or m\n"
        + _table(head, rows)
    )


def what_if_json(found: WhatIfReport) -> dict[str, Any]:
    """Spread by tick, point and joint, and the last chunk of each branch."""
    actions = found.actions()
    return {
        "bag": str(found.run.path),
        "model": found.model,
        "boundary": found.boundary,
        "ticks": found.ticks,
        "joint_names": list(found.run.info.joint_names),
        "mean": actions.mean(axis=0).tolist(),
        "std": actions.std(axis=0).tolist(),
        "min": actions.min(axis=0).tolist(),
        "max": actions.max(axis=0).tolist(),
        "recorded": [
            [[None if np.isnan(value) else float(value) for value in point] for point in chunk]
            for chunk in found.recorded
        ],
        "branches": [
            {
                "seed": branch.seed,
                "instruction": branch.instruction,
                "last_chunk": branch.chunks[-1].tolist(),
            }
            for branch in found.branches
        ],
        "seconds": found.seconds,
    }


def outcomes_text(outcomes: Sequence[BagOutcome]) -> str:
    """One line a bag."""
    rows = []
    for outcome in outcomes:
        report = outcome.report
        if report is None:
            rows.append([str(outcome.path), outcome.verdict, "-", "-", outcome.reason])
        else:
            reason = report.difference.message if report.difference is not None else ""
            speed = f"{report.realtime_factor:.1f}"
            rows.append([str(outcome.path), outcome.verdict, str(report.ticks), speed, reason])
    return _table(["bag", "verdict", "ticks", "x real time", "why"], rows)


def outcome_json(outcome: BagOutcome) -> dict[str, Any]:
    """As `replay_json`, with the verdict; for a bag that cannot be replayed the reason."""
    found = {"bag": str(outcome.path), "verdict": outcome.verdict, "reason": outcome.reason}
    return found if outcome.report is None else found | replay_json(outcome.report)


def write_json(path: Path | None, value: Any) -> None:
    """Write JSON, if a path is given."""
    if path is not None:
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _rate(report: ReplayReport) -> float:
    return report.ticks / report.seconds if report.seconds > 0.0 else 0.0


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join(lines) + "\n"
