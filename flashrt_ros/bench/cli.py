# SPDX-License-Identifier: Apache-2.0
"""`flashrt bench NAME [--json FILE]`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from .report import Report

# name -> (module with `run(report, quick=…, device=…)`, what it measures)
BENCHMARKS = {
    "capsule": ("flashrt_ros.bench.capsule", "snapshot, restore, rollback, fork, layouts, disk"),
    "ttft": ("flashrt_ros.bench.ttft", "language models: time to the first token"),
    "decode": ("flashrt_ros.bench.decode", "language models: tokens a second"),
}


def main(arguments: Sequence[str], program: str = "flashrt bench") -> int:
    """Run one benchmark, print its table, write its JSON."""
    lines = [f"  {name}  {summary}" for name, (_, summary) in BENCHMARKS.items()]
    parser = argparse.ArgumentParser(
        prog=program,
        epilog="benchmarks:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", choices=list(BENCHMARKS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller: does it run?")
    options = parser.parse_args(arguments)
    report = Report()
    module = importlib.import_module(BENCHMARKS[options.benchmark][0])
    module.run(report, quick=options.quick, device=options.device)
    sys.stdout.write(report.table() + "\n")
    if options.json is not None:
        report.write(options.json)
    return 0
