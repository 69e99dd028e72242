# SPDX-License-Identifier: Apache-2.0
"""`flashrt bench NAME [--json FILE]`, `flashrt bench all`, `flashrt bench report FILE...`."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .report import Report

# name -> (module with `run(report, quick=…, device=…)`, what it measures)
BENCHMARKS = {
    "capsule": ("flashrt_ros.bench.capsule", "snapshot, restore, rollback, fork, layouts, disk"),
    "policy": ("flashrt_ros.bench.policy", "the shipped policy: tick, observation, boundary"),
    "ttft": ("flashrt_ros.bench.ttft", "language models: time to the first token"),
    "decode": ("flashrt_ros.bench.decode", "language models: tokens a second"),
    "ros": ("flashrt_ros.bench.ros", "nodes over DDS: observation to command, services"),
}


def main(arguments: Sequence[str], program: str = "flashrt bench") -> int:
    """Run benchmarks, print their tables, write their JSON; or make a document of such files."""
    if arguments and arguments[0] == "report":
        from .document import main as make_document

        return make_document(arguments[1:], f"{program} report")
    options = _parser(program).parse_args(arguments)
    if options.benchmark != "all":
        report = measure(
            options.benchmark, quick=options.quick, device=options.device, full=options.full
        )
        sys.stdout.write(report.table() + "\n")
        if options.json is not None:
            report.write(options.json)
        return 0
    return _all(options.json or Path("bench"), quick=options.quick, device=options.device)


def measure(name: str, *, quick: bool, device: str, full: bool = False) -> Report:
    """One benchmark's report. Raises ModuleNotFoundError where it needs what is not installed."""
    report = Report(name)
    module = importlib.import_module(BENCHMARKS[name][0])
    longer = {"full": True} if full and name in ("ttft", "decode") else {}
    module.run(report, quick=quick, device=device, **longer)
    return report


def _all(folder: Path, *, quick: bool, device: str) -> int:
    """Every benchmark, one after another, each into `folder`/NAME.json. 1 where one failed."""
    failed = []
    for name in BENCHMARKS:
        start = time.monotonic()
        try:
            report = measure(name, quick=quick, device=device)
        except ModuleNotFoundError as error:
            sys.stdout.write(f"\n## {name}: left out, needs the module {error.name!r}\n")
            continue
        except Exception as error:  # the others are worth having all the same
            failed.append(name)
            sys.stdout.write(f"\n## {name}: failed, {type(error).__name__}: {error}\n")
            continue
        report.write(folder / f"{name}.json")
        seconds = time.monotonic() - start
        sys.stdout.write(f"\n## {name} ({seconds:.0f} s)\n\n{report.table()}\n")
        sys.stdout.flush()
    return 1 if failed else 0


def _parser(program: str) -> argparse.ArgumentParser:
    lines = [f"  {name:<7}  {summary}" for name, (_, summary) in BENCHMARKS.items()]
    lines.append("  all      each of them, one after another")
    lines.append("  report   Markdown and plots of JSON files: see `report --help`")
    parser = argparse.ArgumentParser(
        prog=program,
        epilog="benchmarks:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", choices=[*BENCHMARKS, "all", "report"])
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="write the rows here; for `all` a folder (default: bench)",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller: does it run?")
    parser.add_argument("--full", action="store_true", help="ttft, decode: the longest prompts too")
    return parser
