# SPDX-License-Identifier: Apache-2.0
"""Measurements, and the one JSON format that every benchmark of this package writes."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy
import torch

from .. import __version__

Params = Mapping[str, int | float | str]


@dataclass(frozen=True)
class Row:
    """One measurement. `ratio` compares with `baseline`; its docstring in docs says which way."""

    name: str
    params: Params
    unit: str
    median: float
    p99: float
    n: int
    baseline: float | None = None
    ratio: float | None = None


@dataclass
class Report:
    """What a benchmark found, on which machine."""

    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def to_json(self) -> str:
        return json.dumps(
            {
                "machine": machine(),
                "versions": versions(),
                "rows": [asdict(row) for row in self.rows],
            },
            indent=2,
        )

    def write(self, path: Path) -> None:
        path.write_text(self.to_json() + "\n")

    def table(self) -> str:
        """The rows as Markdown."""
        lines = [
            "| measurement | unit | median | p99 | n | baseline | ratio |",
            "|---|---|" + "--:|" * 5,
        ]
        for row in self.rows:
            params = ", ".join(f"{key} {value}" for key, value in row.params.items())
            name = f"`{row.name}`" + (f" ({params})" if params else "")
            cells = [name, row.unit, _number(row.median), _number(row.p99), str(row.n)]
            cells += [_number(row.baseline), _number(row.ratio)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call, and of the work that it queued on a CUDA device."""
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def row_of(
    name: str,
    samples: Sequence[float],
    *,
    unit: str = "us",
    params: Params | None = None,
    baseline: float | None = None,
    ratio: float | None = None,
) -> Row:
    """A row of samples in seconds (or, for other units than s, ms, us, in that unit)."""
    scale = {"s": 1.0, "ms": 1e3, "us": 1e6}.get(unit, 1.0)
    ordered = sorted(samples)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return Row(
        name,
        params or {},
        unit,
        statistics.median(ordered) * scale,
        p99 * scale,
        len(ordered),
        None if baseline is None else baseline * scale,
        ratio,
    )


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
    return {
        "flashrt_ros": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
