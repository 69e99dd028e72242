# SPDX-License-Identifier: Apache-2.0
"""What the demonstration found: a table, `summary.json`, and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from flashrt_ros.demo.errand import Trial, Way

LABELS = {
    Way.UNINTERRUPTED: "never interrupted",
    Way.RESTORED: "capsule restored",
    Way.KV_ONLY: "only KV restored",
    Way.COLD: "started cold",
}
_WAY_COLOURS = {
    Way.UNINTERRUPTED: "#444444",
    Way.RESTORED: "#0072b2",
    Way.KV_ONLY: "#e69f00",
    Way.COLD: "#cc79a7",
}
_BLOCK_COLOURS = {"red": "#d62728", "green": "#2ca02c", "blue": "#1f77b4", "yellow": "#e7c000"}
_BLOCK_SIZE = 0.055
CHANCE = 0.25


def summarise(trials: Sequence[Trial]) -> dict[str, Any]:
    """The content of `summary.json`; times in milliseconds."""
    by_way = {way: [trial for trial in trials if trial.way is way] for way in Way}
    times: dict[str, list[float]] = {}
    for trial in trials:
        for name, values in trial.round_trips_ms.items():
            times.setdefault(name, []).extend(values)
    return {
        "episodes": len({trial.seed for trial in trials}),
        "success": {
            way.value: sum(t.success for t in group) / len(group)
            for way, group in by_way.items()
            if group
        },
        "counts": {
            way.value: {
                "trials": len(group),
                "successes": sum(t.success for t in group),
                "touched_errand_colour": sum(
                    t.touched == t.errand_cue and t.touched != t.cue for t in group
                ),
                "touched_nothing": sum(not t.touched for t in group),
            }
            for way, group in by_way.items()
        },
        "chance": CHANCE,
        "round_trip_ms": {
            name: {
                "n": len(values),
                "median": statistics.median(values),
                "max": max(values),
            }
            for name, values in sorted(times.items())
        },
        "trials": [_trial(trial) for trial in trials],
    }


def table(summary: dict[str, Any]) -> str:
    """The summary as text."""
    lines = [
        f"{'came back':<20}{'success':>10}{'trials':>8}{'other job':>11}{'nothing':>9}",
        "-" * 58,
    ]
    for way in Way:
        counts = summary["counts"][way.value]
        if not counts["trials"]:
            continue
        lines.append(
            f"{LABELS[way]:<20}{summary['success'][way.value]:>9.0%} {counts['trials']:>8}"
            f"{counts['touched_errand_colour']:>11}{counts['touched_nothing']:>9}"
        )
    lines += [
        "",
        f"chance is {CHANCE:.0%}; 'other job': touched the block of the errand's cue instead",
        "",
        f"{'service':<20}{'calls':>8}{'median ms':>12}{'max ms':>10}",
        "-" * 50,
    ]
    lines += [
        f"{name:<20}{row['n']:>8}{row['median']:>12.2f}{row['max']:>10.2f}"
        for name, row in summary["round_trip_ms"].items()
    ]
    return "\n".join(lines)


def draw(trials: Sequence[Trial], summary: dict[str, Any], path: Path) -> None:
    """Draw one episode from above and over time, and the success of every way."""
    episode = _most_telling(trials)
    figure = plt.figure(figsize=(13, 7.5), layout="constrained")
    grid = figure.add_gridspec(2, 3, width_ratios=(1.1, 1.3, 0.9))
    _draw_table_top(figure.add_subplot(grid[:, 0]), episode)
    _draw_joints(figure.add_subplot(grid[0, 1]), episode, 0)
    _draw_joints(figure.add_subplot(grid[1, 1]), episode, 1)
    _draw_success(figure.add_subplot(grid[:, 2]), summary)
    figure.suptitle("An arm that remembers: the cue lives in the policy's state, not in the scene")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _most_telling(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of one episode, where the errand's cue differs and the restore succeeded."""
    seeds = sorted({trial.seed for trial in trials})

    def telling(seed: int) -> int:
        group = {trial.way: trial for trial in trials if trial.seed == seed}
        restored, kv_only = group.get(Way.RESTORED), group.get(Way.KV_ONLY)
        if restored is None or not restored.success or restored.cue == restored.errand_cue:
            return 0
        return 1 if kv_only is None or kv_only.success else 2

    best = max(seeds, key=telling)
    return [trial for trial in trials if trial.seed == best]


def _draw_table_top(axes: Axes, episode: Sequence[Trial]) -> None:
    first = episode[0].path[0]
    for colour, top in zip(first.block_colours, first.block_positions, strict=True):
        corner = (top.y - _BLOCK_SIZE / 2, top.x - _BLOCK_SIZE / 2)
        axes.add_patch(
            Rectangle(corner, _BLOCK_SIZE, _BLOCK_SIZE, color=_BLOCK_COLOURS[colour], alpha=0.85)
        )
    for trial in episode:
        axes.plot(
            [state.tip.y for state in trial.path],
            [state.tip.x for state in trial.path],
            color=_WAY_COLOURS[trial.way],
            label=LABELS[trial.way],
            linewidth=1.6,
        )
        end = trial.path[-1].tip
        axes.plot(end.y, end.x, "o" if trial.success else "X", color=_WAY_COLOURS[trial.way], ms=9)
    axes.plot(0, 0, "ks", ms=12)
    axes.annotate("arm", (0, 0), xytext=(8, 4), textcoords="offset points")
    axes.set_aspect("equal")
    axes.invert_xaxis()
    axes.set_xlabel("y, m")
    axes.set_ylabel("x, m")
    cue, other = episode[0].cue, episode[0].errand_cue
    axes.set_title(f"fingertip from above, seed {episode[0].seed}\ncue {cue}, errand's cue {other}")
    axes.legend(loc="lower left", fontsize=8)


def _draw_joints(axes: Axes, episode: Sequence[Trial], joint: int) -> None:
    for trial in episode:
        ticks = [state.tick * 0.1 for state in trial.path]
        positions = [state.joint_positions[joint] for state in trial.path]
        axes.plot(ticks, positions, color=_WAY_COLOURS[trial.way], linewidth=1.6)
    marks = next((trial.marks for trial in episode if "interrupt" in trial.marks), {})
    if {"interrupt", "back"} <= marks.keys():
        begin, end = marks["interrupt"] * 0.1, marks["back"] * 0.1
        axes.axvspan(begin, end, color="#dddddd", zorder=0)
        for time, text, side in (
            (begin, "interrupted,\ncapsule taken", "right"),
            (end, "back", "left"),
        ):
            axes.axvline(time, color="black", linestyle="--", linewidth=1)
            axes.annotate(
                text,
                (time, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-3 if side == "right" else 3, -3),
                textcoords="offset points",
                ha=side,
                va="top",
                fontsize=8,
            )
        axes.text(
            (begin + end) / 2, 0.04, "errand", transform=axes.get_xaxis_transform(), ha="center"
        )
    axes.set_ylabel(f"{episode[0].path[0].joint_names[joint]}, rad")
    axes.set_xlabel("s")


def _draw_success(axes: Axes, summary: dict[str, Any]) -> None:
    ways = [way for way in Way if summary["counts"][way.value]["trials"]]
    shares = [summary["success"][way.value] for way in ways]
    axes.barh(range(len(ways)), shares, color=[_WAY_COLOURS[way] for way in ways])
    for row, (way, share) in enumerate(zip(ways, shares, strict=True)):
        counts = summary["counts"][way.value]
        text = f"{share:.0%}  ({counts['successes']}/{counts['trials']})"
        inside = share > 0.5
        axes.text(
            share - 0.02 if inside else max(share, CHANCE) + 0.02,
            row,
            text,
            va="center",
            ha="right" if inside else "left",
            color="white" if inside else "black",
        )
    axes.axvline(CHANCE, color="black", linestyle=":", label="chance")
    axes.set_yticks(range(len(ways)), [LABELS[way] for way in ways])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of episodes that touch the cued block")
    axes.set_title(f"success over {summary['episodes']} episodes")
    axes.legend(loc="lower right", fontsize=8)


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "seed": trial.seed,
        "way": trial.way.value,
        "cue": trial.cue,
        "errand_cue": trial.errand_cue,
        "success": trial.success,
        "touched": trial.touched,
        "boundaries": trial.boundaries,
        "round_trips_ms": {
            name: [round(value, 3) for value in values]
            for name, values in trial.round_trips_ms.items()
        },
        "restore": trial.restore,
        "marks": trial.marks,
    }
