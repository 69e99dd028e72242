# SPDX-License-Identifier: Apache-2.0
"""Measurements, and the one JSON format that every benchmark of this package writes.

The format, "flashrt-bench/1" (`validate` checks it):

    schema     "flashrt-bench/1"
    benchmark  the benchmark's name, "capsule" say
    created    ISO 8601 time, UTC
    machine    system, architecture, processor, cores, threads, memory_gib; gpu where there is one
    versions   flashrt_ros, python, torch, numpy, and what the benchmark compared with
    notes      sentences that belong to the figures
    rows       name, params, unit, median, p99, n, baseline, ratio, spread

Of a row `median` and `p99` are in `unit` over `n` repetitions. `baseline` is the median of what it
is compared with, measured in turns in the same process; `ratio` says how many times better it is
unless the benchmark's text says otherwise; `spread` are the quartiles of the ratio over the single
turns. Rows of different files are never compared with each other.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
import torch

from .. import __version__

SCHEMA = "flashrt-bench/1"
Params = Mapping[str, int | float | str]
_SECONDS = {"s": 1.0, "ms": 1e3, "us": 1e6}


@dataclass(frozen=True)
class Row:
    """One measurement; see the format above."""

    name: str
    params: Params
    unit: str
    median: float
    p99: float
    n: int
    baseline: float | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None


@dataclass
class Report:
    """What a benchmark found, on which machine."""

    benchmark: str = "unnamed"
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    peers: dict[str, str] = field(default_factory=dict)  # versions of what was compared with

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def to_json(self) -> str:
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        content = {
            "schema": SCHEMA,
            "benchmark": self.benchmark,
            "created": created,
            "machine": machine(),
            "versions": {**versions(), **self.peers},
            "notes": self.notes,
            "rows": [asdict(row) for row in self.rows],
        }
        return json.dumps(content, indent=2)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json() + "\n")

    def table(self) -> str:
        """The rows as Markdown."""
        return table(self.rows)


@dataclass(frozen=True)
class Measured:
    """A file of the format, read back."""

    benchmark: str
    created: str
    machine: Mapping[str, str | int]
    versions: Mapping[str, str]
    notes: Sequence[str]
    rows: Sequence[Row]


def read(path: Path) -> Measured:
    """Read a file. Raises ValueError naming the file and what is wrong with it."""
    try:
        content = json.loads(path.read_text())
        validate(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    rows = [
        Row(**{**row, "spread": None if row["spread"] is None else tuple(row["spread"])})
        for row in content["rows"]
    ]
    return Measured(
        content["benchmark"], content["created"], content["machine"], content["versions"],
        content["notes"], rows,
    )  # fmt: skip


def validate(content: Any) -> None:
    """Raise ValueError naming the first field that is not of the format."""
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"schema is {found!r}, expected {SCHEMA!r}")
    for name, kind in (
        ("benchmark", str), ("created", str), ("machine", dict), ("versions", dict),
        ("notes", list), ("rows", list),
    ):  # fmt: skip
        if not isinstance(content.get(name), kind):
            raise ValueError(f"{name} is {content.get(name)!r}, expected a {kind.__name__}")
    for name in ("system", "architecture", "processor", "cores", "threads", "memory_gib"):
        if name not in content["machine"]:
            raise ValueError(f"machine has no {name!r}")
    for name in ("flashrt_ros", "python", "torch", "numpy"):
        if name not in content["versions"]:
            raise ValueError(f"versions has no {name!r}")
    if not content["rows"]:
        raise ValueError("rows is empty")
    for index, row in enumerate(content["rows"]):
        _validate_row(f"rows[{index}]", row)


def _validate_row(where: str, row: Any) -> None:
    expected = {one.name for one in fields(Row)}
    if not isinstance(row, dict) or set(row) != expected:
        found = sorted(row) if isinstance(row, dict) else row
        raise ValueError(f"{where} has {found}, expected {sorted(expected)}")
    if not row["name"] or not row["unit"] or not isinstance(row["params"], dict):
        raise ValueError(f"{where} needs a name, a unit and params")
    for name in ("median", "p99", "baseline", "ratio"):
        value = row[name]
        if value is None and name in ("baseline", "ratio"):
            continue
        if not isinstance(value, int | float) or value != value or value < 0:
            raise ValueError(f"{where}.{name} is {value!r}, expected a number >= 0")
    if not isinstance(row["n"], int) or row["n"] < 1:
        raise ValueError(f"{where}.n is {row['n']!r}, expected an integer >= 1")
    spread = row["spread"]
    if spread is not None and (len(spread) != 2 or spread[0] > spread[1]):
        raise ValueError(f"{where}.spread is {spread!r}, expected [low, high]")


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table."""
    lines = [
        "| measurement | unit | median | p99 | n | baseline | ratio (quartiles) |",
        "|---|---|" + "--:|" * 5,
    ]
    for row in rows:
        params = ", ".join(f"{key} {value}" for key, value in row.params.items())
        name = f"`{row.name}`" + (f" ({params})" if params else "")
        cells = [name, row.unit, number(row.median), number(row.p99), str(row.n)]
        ratio = number(row.ratio)
        if row.spread is not None:
            ratio += f" ({number(row.spread[0])} to {number(row.spread[1])})"
        lines.append("| " + " | ".join([*cells, number(row.baseline), ratio]) + " |")
    return "\n".join(lines)


# -- measuring


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call, and of the work that it queued on a CUDA device."""
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def interleaved(
    runs: Mapping[str, Callable[[], object]], turns: int, *, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of `turns` calls of each, taken A B A B: all meet the same other load.

    Sample i of one and sample i of another are a pair, which `row_of(..., against=…)` uses.
    """
    for _ in range(warmup):
        for run in runs.values():
            timed(run)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            samples[name].append(timed(run))
    return samples


def row_of(
    name: str,
    samples: Sequence[float],
    *,
    unit: str = "us",
    params: Params | None = None,
    baseline: float | None = None,
    ratio: float | None = None,
    against: Sequence[float] | None = None,
) -> Row:
    """A row of samples in seconds (or, for other units than s, ms, us, in that unit).

    against: samples of what it is compared with, taken in turns with `samples`; `baseline`,
    `ratio` and `spread` follow from the pairs. The ratio of times is against / sample, of rates
    sample / against.
    """
    scale = _SECONDS.get(unit, 1.0)
    spread = None
    if against is not None:
        pairs = zip(samples, against, strict=True)
        ratios = sorted(b / a if unit in _SECONDS else a / b for a, b in pairs)
        baseline, ratio = statistics.median(against), statistics.median(ratios)
        spread = (quantile(ratios, 0.25), quantile(ratios, 0.75))
    return Row(
        name,
        params or {},
        unit,
        statistics.median(samples) * scale,
        quantile(samples, 0.99) * scale,
        len(samples),
        None if baseline is None else baseline * scale,
        ratio,
        spread,
    )


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least this share of them does not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# -- where


def machine() -> dict[str, str | int]:
    """The machine in neutral words."""
    found: dict[str, str | int] = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def versions() -> dict[str, str]:
    """Versions of the package and what it computes with."""
    found = {
        "flashrt_ros": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    try:
        found["transformers"] = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        pass
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def number(value: float | None) -> str:
    """Three digits, or all before the point; empty for None."""
    if value is None:
        return ""
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
