# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page about replayed bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from flashrt_ros import __version__
from flashrt_ros.replay import figures
from flashrt_ros.replay.outcome import ReplayReport
from flashrt_ros.replay.pool import BagOutcome
from flashrt_ros.replay.run import RunEvent


@dataclass(frozen=True)
class _Section:
    """What the page shows of one bag."""

    name: str
    verdict: str
    reason: str
    report: ReplayReport | None
    timeline: str = ""
    lineage: str = ""
    actions: str = ""
    errors: str = ""
    verbs: tuple[RunEvent, ...] = ()


def write_page(outcomes: Sequence[BagOutcome], path: Path, title: str = "Replayed bags") -> None:
    """Write the page: a table of all bags, and of each its timeline, lineage and actions.

    Styles and pictures are inside; it opens without a network and runs no script.
    """
    environment = Environment(
        loader=PackageLoader("flashrt_ros.replay"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        title=title,
        version=__version__,
        bags=[_section(outcome) for outcome in outcomes],
        identical=sum(outcome.verdict == "identical" for outcome in outcomes),
    )
    path.write_text(page, encoding="utf-8")


def _section(outcome: BagOutcome) -> _Section:
    report = outcome.report
    if report is None:
        return _Section(outcome.name, outcome.verdict, outcome.reason, None)
    return _Section(
        outcome.name,
        outcome.verdict,
        outcome.reason,
        report,
        figures.timeline(report),
        figures.lineage(report.run),
        figures.actions(report),
        figures.errors(report),
        tuple(figures.by_verbs(report.run.events)),
    )
