# SPDX-License-Identifier: Apache-2.0
"""A plot of a benchmark: median to 99th percentile of each row, and ratios with their quartiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .report import Measured, Row

_BLUE, _GREY = "#1f6fb4", "#9aa5b1"


def plot(measured: Measured, path: Path) -> None:
    """Draw an SVG. The same figures give the same bytes. Needs matplotlib (extra `bench`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    units: dict[str, list[Row]] = {}
    for row in measured.rows:
        units.setdefault(row.unit, []).append(row)
    compared = [row for row in measured.rows if row.ratio]
    panels: list[tuple[str, list[Row]]] = list(units.items())
    heights = [len(rows) for _, rows in panels] + ([len(compared)] if compared else [])
    settings = {"svg.hashsalt": measured.benchmark, "svg.fonttype": "none", "font.size": 8}
    with pyplot.rc_context(settings):
        figure, axes = pyplot.subplots(
            len(heights), 1, squeeze=False, layout="constrained",
            figsize=(8, 0.22 * sum(heights) + 0.9 * len(heights)),
            gridspec_kw={"height_ratios": [height + 2 for height in heights]},
        )  # fmt: skip
        for (unit, rows), axis in zip(panels, axes[:, 0], strict=False):
            _medians(axis, unit, rows)
        if compared:
            _ratios(axes[-1, 0], compared)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def _medians(axis: Any, unit: str, rows: list[Row]) -> None:
    places = range(len(rows))
    medians, ends = [row.median for row in rows], [row.p99 for row in rows]
    axis.hlines(places, medians, ends, color=_GREY, linewidth=2)
    axis.plot(ends, places, "|", color=_GREY, label="p99")
    axis.plot(medians, places, "o", color=_BLUE, markersize=4, label="median")
    if min(medians) > 0:
        axis.set_xscale("log")
    axis.set_xlabel(unit)
    axis.legend(loc="best", frameon=False)
    _names(axis, rows)


def _ratios(axis: Any, rows: list[Row]) -> None:
    for place, row in enumerate(rows):
        if row.spread is not None:
            axis.hlines(place, *row.spread, color=_GREY, linewidth=3)
        axis.plot([row.ratio], [place], "o", color=_BLUE, markersize=4)
    axis.axvline(1.0, color=_GREY, linewidth=0.8)
    axis.set_xlabel("ratio to the baseline of the same run, with quartiles over the turns")
    _names(axis, rows)


def _names(axis: Any, rows: list[Row]) -> None:
    axis.set_yticks(range(len(rows)), [_label(row) for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(axis="x", linewidth=0.3)


def _label(row: Row) -> str:
    params = ", ".join(f"{key} {value}" for key, value in list(row.params.items())[:2])
    return f"{row.name} ({params})" if params else row.name
