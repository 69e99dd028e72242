# SPDX-License-Identifier: Apache-2.0
"""Pictures of a replayed run, as SVG text that can stand in a page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from flashrt_ros.replay import run as run_module
from flashrt_ros.replay.outcome import ReplayedBoundary, ReplayReport
from flashrt_ros.replay.run import Run, RunEvent

# Okabe and Ito's colours, which people with colour blindness tell apart (https://jfly.uni-koeln.de/color/).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
_DIFFERENCE = "#B00020"
_MARKS = {
    "INTERRUPT": ("s", "#D55E00"),
    "RESUME": (">", "#009E73"),
    "RESTORE": ("^", "#0072B2"),
    "ROLLBACK": ("<", "#56B4E9"),
    "RESET": ("v", "#CC79A7"),
    "SNAPSHOT": ("o", "#000000"),
    "HOLD": ("X", "#B00020"),
    "CLOCK_JUMP": ("*", "#E69F00"),
}
_ARROWS = frozenset({"RESTORE", "ROLLBACK"})  # a reset goes to the beginning: its mark says enough
_WIDTH = 9.5  # inches


def elapsed(events: Sequence[RunEvent]) -> np.ndarray:
    """Time of each event from the first one, float64 `[events]`, s; see `run.elapsed`."""
    return run_module.elapsed([event.stamp_ns for event in events])


def lanes(events: Sequence[RunEvent]) -> dict[int, int]:
    """Boundary number to its lane in a drawing of the lineage.

    A boundary stays in its parent's lane while it is the parent's first child; a branch that
    begins at an older boundary gets a lane of its own.
    """
    lane = {0: 0}
    tips: dict[int, int] = {0: 0}  # lane to its newest boundary
    for event in events:
        if event.kind != "COMMIT":
            if event.boundary not in lane:  # an ablated restore begins a tree of its own
                lane[event.boundary] = len(tips)
                tips[lane[event.boundary]] = event.boundary
            continue
        of_parent = lane.get(event.parent)
        if of_parent is None or tips[of_parent] != event.parent:
            of_parent = len(tips)
        lane[event.boundary] = of_parent
        tips[of_parent] = event.boundary
    return lane


def by_verbs(events: Sequence[RunEvent]) -> list[RunEvent]:
    """Events that someone asked for or that held the arm: no ticks, no automatic snapshots."""
    return [
        event
        for event in events
        if event.kind != "COMMIT"
        and (event.kind not in ("SNAPSHOT", "DELETE") or event.name or event.request_id)
    ]


def timeline(report: ReplayReport) -> str:
    """What the policy was told and what planners did, over time."""
    events = report.run.events
    times = elapsed(events)
    rows = [kind for kind in _MARKS if any(event.kind == kind for event in events)]
    figure, axes = _figure(1.3 + 0.2 * len(rows))
    when = {event.index: time for event, time in zip(events, times, strict=True)}
    verbs = by_verbs(events)
    instructions = list(dict.fromkeys(event.instruction for event in events))
    colours = {text: _COLOURS[i % len(_COLOURS)] for i, text in enumerate(instructions)}
    begin = 0
    for i in range(1, len(events) + 1):
        if i == len(events) or events[i].instruction != events[begin].instruction:
            end = times[i] if i < len(events) else times[-1]
            text = events[begin].instruction
            axes.barh(0, end - times[begin], left=times[begin], color=colours[text], alpha=0.55)
            begin = i
    for text in instructions:
        axes.barh(0, 0, color=colours[text], alpha=0.55, label=f"“{text}”")
    for row, kind in enumerate(rows):
        mark, colour = _MARKS[kind]
        at = [when[event.index] for event in verbs if event.kind == kind]
        axes.plot(at, [0.75 + 0.3 * row] * len(at), mark, color=colour, ms=5, clip_on=False)
    _mark_difference(axes, report, times)
    axes.set(xlabel="s from the first event", ylim=(-0.5, 0.75 + 0.3 * len(rows)))
    ticks = [0.0, *(0.75 + 0.3 * row for row in range(len(rows)))]
    axes.set_yticks(ticks, ["instruction", *(kind.lower() for kind in rows)])
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return _svg(figure)


def lineage(run: Run) -> str:
    """Which boundary descends from which: a lane for each branch, arrows where a verb went back."""
    events = run.events
    times = elapsed(events)
    lane = lanes(events)
    when = {0: 0.0}
    figure, axes = _figure(0.9 + 0.28 * (max(lane.values()) + 1))
    lines: dict[int, list[tuple[float, int]]] = {}
    verbs = {event.index for event in by_verbs(events)}
    live = 0
    for time, event in zip(times, events, strict=True):
        if event.kind == "COMMIT":
            here = lane[event.boundary]
            if here not in lines and event.parent in when:
                begin = (when[event.parent], lane[event.parent])
                axes.plot(*zip(begin, (time, here), strict=True), color="#999999", lw=0.7, zorder=0)
            lines.setdefault(here, []).append((time, here))
            when[event.boundary] = time
        elif event.index in verbs and event.kind in _MARKS:
            mark, colour = _MARKS[event.kind]
            point = (time, lane.get(live, 0))
            axes.plot(*point, mark, color=colour, ms=5, zorder=3)
            if event.boundary not in when:
                when[event.boundary] = time
                lines[lane[event.boundary]] = [(time, lane[event.boundary])]
            elif event.kind in _ARROWS:
                target = (when[event.boundary], lane[event.boundary])
                arrow = {"arrowstyle": "->", "color": colour, "connectionstyle": "arc3,rad=0.3"}
                axes.annotate("", xy=target, xytext=point, arrowprops=arrow)
            elif event.kind == "SNAPSHOT":
                place: dict[str, Any] = {"xytext": (4, 4), "textcoords": "offset points"}
                axes.annotate(event.name, point, fontsize=7, **place)
        live = event.boundary
    for number, line in lines.items():
        axes.plot(*zip(*line, strict=True), color=_COLOURS[number % len(_COLOURS)], lw=2)
    axes.set(xlabel="s from the first event", yticks=[], ylabel="branch")
    axes.invert_yaxis()
    axes.margins(y=0.1)
    return _svg(figure)


def actions(report: ReplayReport) -> str:
    """The first point of each chunk, joint by joint: as recorded, and as computed."""
    ticks = _compared(report)
    names = report.run.info.joint_names
    if not ticks:
        return ""
    times = _times_of(report, ticks)
    figure = Figure(figsize=(_WIDTH, 1.15 * len(names) + 0.5), layout="constrained")
    for joint, axes in enumerate(np.atleast_1d(figure.subplots(len(names), sharex=True))):
        for label, values, style in (
            ("recorded", [tick.expected for tick in ticks], {"lw": 2.6, "alpha": 0.45}),
            ("replayed", [tick.actual for tick in ticks], {"lw": 0.9}),
        ):
            first = [np.nan if chunk is None else chunk[0, joint] for chunk in values]
            axes.plot(times, first, label=label, color=_COLOURS[joint % len(_COLOURS)], **style)
        axes.set_ylabel(names[joint], rotation=0, ha="right", va="center")
        axes.spines[["top", "right"]].set_visible(False)
        if joint == 0:
            axes.legend(loc="upper right", frameon=False, ncols=2, fontsize=8)
    figure.supxlabel("s from the first event; rad or m", fontsize=9)
    return _svg(figure)


def errors(report: ReplayReport) -> str:
    """The largest difference in each chunk, joint by joint; empty where there is none at all."""
    ticks = [tick for tick in _compared(report) if tick.max_error is not None]
    if not any(np.any(tick.max_error) for tick in ticks if tick.max_error is not None):
        return ""
    times = _times_of(report, ticks)
    figure, axes = _figure(2.4)
    values = np.array([tick.max_error for tick in ticks])
    for joint, name in enumerate(report.run.info.joint_names):
        colour = _COLOURS[joint % len(_COLOURS)]
        axes.plot(times, values[:, joint], ".-", label=name, color=colour, lw=1, ms=4)
    axes.set(xlabel="s from the first event", ylabel="largest |difference|, rad or m")
    axes.legend(frameon=False, fontsize=8, ncols=3)
    return _svg(figure)


def _compared(report: ReplayReport) -> list[ReplayedBoundary]:
    return [
        tick for tick in report.boundaries if tick.event == "COMMIT" and tick.actual is not None
    ]


def _times_of(report: ReplayReport, ticks: Sequence[ReplayedBoundary]) -> np.ndarray:
    events = report.run.events
    when = {event.index: time for event, time in zip(events, elapsed(events), strict=True)}
    return np.array([when[tick.index] for tick in ticks])


def _mark_difference(axes: matplotlib.axes.Axes, report: ReplayReport, times: np.ndarray) -> None:
    if report.difference is None:
        return
    for time, event in zip(times, report.run.events, strict=True):
        if event.boundary == report.difference.boundary:
            axes.axvline(time, color=_DIFFERENCE, lw=1.6, label="first difference")
            return


def _figure(height: float) -> tuple[Figure, matplotlib.axes.Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    """SVG of a figure, from its `<svg` on, with ids that no other figure of the page has."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 9}):
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)
