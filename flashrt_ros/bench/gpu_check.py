# SPDX-License-Identifier: Apache-2.0
"""Everything that a GPU must show, in one go and within a time limit: `scripts/gpu_check.sh`.

Each step is a process of its own with what is left of the time, so that one that fails or hangs
leaves the others. `summary.json` says what came of each; the benchmarks' files lie beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from .report import machine, versions

_ROOT = Path(__file__).parents[2]
_CONTRACTS = ("test_contract_runtime.py", "test_contract_policy.py", "test_contract_language.py")


@dataclass(frozen=True)
class Step:
    """A command, and how many seconds of the whole it may take."""

    name: str
    command: tuple[str, ...]
    limit: float


@dataclass(frozen=True)
class Outcome:
    """What came of a step. status: passed, failed, timeout, or no time (left to begin)."""

    name: str
    status: str
    seconds: float
    log: str


def steps(out: Path, device: str, quick: bool) -> list[Step]:
    """What is run, in this order: what must be right before what must be fast."""
    python = sys.executable
    tests = [str(_ROOT / "test" / name) for name in _CONTRACTS]
    flags = ("--quick",) if quick else ()

    def audit(program: str) -> tuple[str, ...]:
        audited = f"flashrt_ros.bench.gpu_programs:{program}"
        return (python, "-m", "flashrt_ros.cli", "capsule", "audit", audited, "--json")

    def bench(name: str) -> tuple[str, ...]:
        file = str(out / f"{name}.json")
        return (
            python, "-m", "flashrt_ros.bench.gpu_check", "--bench", name, "--device", device,
            "--out", file, *flags,
        )  # fmt: skip

    found = [
        Step("contracts", (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests), 150),
        Step("audit_toy", audit("toy"), 60),
        Step("audit_policy", audit("policy"), 60),
        Step("capsule", bench("capsule"), 90),
        Step("policy", bench("policy"), 60),
        Step("hybrid", bench("hybrid"), 240),
    ]
    return found[1:] if quick else found  # the quick run is itself started by tests


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every step passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu_check"), help="folder of the results")
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--seconds", type=float, default=470.0, help="limit for all (default 470)")
    parser.add_argument("--bench", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.bench:
        _bench(options.bench, options.device, options.quick, options.out)
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("gpu_check: torch sees no CUDA device; FLASHRT_GPU_CHECK_SMALL=1 runs it "
                         "on the CPU with small sizes\n")  # fmt: skip
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes = _run(steps(options.out, options.device, options.quick), options)
    summary = {
        "machine": machine(),
        "versions": versions(),
        "device": options.device,
        "quick": options.quick,
        "steps": [asdict(outcome) for outcome in outcomes],
        "passed": all(outcome.status == "passed" for outcome in outcomes),
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    sys.stdout.write(f"{options.out / 'summary.json'}\n")
    return 0 if summary["passed"] else 1


def _run(todo: Sequence[Step], options: argparse.Namespace) -> list[Outcome]:
    end = time.monotonic() + options.seconds
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "FLASHRT_CHECK_DEVICE": options.device}
    outcomes = []
    for step in todo:
        log = options.out / f"{step.name}.log"
        start = time.monotonic()
        # A quick run is about whether it runs, on a machine that may do much else.
        limit = min(end - start, options.seconds if options.quick else step.limit)
        if limit < 5.0:
            outcomes.append(Outcome(step.name, "no time", 0.0, ""))
            continue
        with log.open("w") as file:
            try:
                done = subprocess.run(
                    step.command, stdout=file, stderr=subprocess.STDOUT, timeout=limit,
                    env=environment, check=False, cwd=_ROOT,
                )  # fmt: skip
                status = "passed" if done.returncode == 0 else "failed"
            except subprocess.TimeoutExpired:
                status = "timeout"
        seconds = round(time.monotonic() - start, 1)
        outcomes.append(Outcome(step.name, status, seconds, log.name))
        sys.stdout.write(f"{step.name:<13} {status:<8} {seconds:6.1f} s\n")
        sys.stdout.flush()
    return outcomes


def _bench(name: str, device: str, quick: bool, out: Path) -> None:
    from . import capsule, hybrid, policy
    from .report import Report

    report = Report(name)
    if name == "policy":
        # Compiling takes a minute on a CPU; this is about whether the script runs.
        policy.run(report, quick=quick, device=device, captured=None if not quick else "eager")
    else:
        {"capsule": capsule, "hybrid": hybrid}[name].run(report, quick=quick, device=device)
    report.write(out)
    sys.stdout.write(report.table() + "\n")


if __name__ == "__main__":
    sys.exit(main())
