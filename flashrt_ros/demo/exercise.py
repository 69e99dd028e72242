# SPDX-License-Identifier: Apache-2.0
"""`python -m flashrt_ros.demo.exercise`: a planner's hardest day, judged from outside.

The simulated arm in real time, the policy node with its default parameters, and a planner in this
process that knows them by the client library alone: interrupts, rollbacks, evaluations and every
other verb at random while the arm moves. It ends with the first answer that is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from flashrt_ros.client import ServiceCaller, spinning
from flashrt_ros.demo.dialogue import Tally, Unanswered
from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.demo.processes import Processes
from flashrt_ros.demo.program import Program
from flashrt_ros.demo.witness import CommandWitness, LineageWitness, Lost, Wrong

POLICY = "policy_node"
SIM = "sim_arm_node"
_FAULTS = {Wrong: "wrong", Lost: "lost", Unanswered: "unanswered"}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="exercise", description=__doc__)
    parser.add_argument(
        "--calls",
        type=int,
        default=200,
        help="interrupts, rollbacks and evaluations; other verbs come on top (default 200)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the program (default 0)")
    parser.add_argument("--model", default="cued_reach", help="checkpoint name or directory")
    parser.add_argument(
        "--execution", default="synchronous", help="how the policy node executes chunks"
    )
    parser.add_argument("--patience", type=float, default=60.0, help="for an answer, s")
    parser.add_argument("--json", type=Path, help="write the table there, too")
    parsed = parser.parse_args(argv)
    if parsed.calls < 1:
        parser.error(f"--calls is {parsed.calls}, expected at least 1")
    return parsed


def rows(tally: Tally) -> list[dict[str, Any]]:
    """One for each verb: calls, median and longest time to the answer in ms, refusals."""
    return [
        {
            "verb": verb,
            "calls": len(seconds),
            "median_ms": round(statistics.median(seconds) * 1e3, 2),
            "max_ms": round(max(seconds) * 1e3, 2),
            "refused_as_expected": tally.refused[verb],
        }
        for verb, seconds in sorted(tally.seconds.items())
    ]


def table(tally: Tally) -> str:
    """The rows as text."""
    head = f"{'verb':20} {'calls':>6} {'median ms':>10} {'max ms':>9} {'refused as expected':>20}"
    lines = (
        f"{row['verb']:20} {row['calls']:6} {row['median_ms']:10.1f} {row['max_ms']:9.1f} "
        f"{row['refused_as_expected']:20}"
        for row in rows(tally)
    )
    return "\n".join([head, *lines])


def exercise(options: argparse.Namespace, folder: Path, summary: dict[str, Any]) -> None:
    """Start the processes, run the program, fill in the summary.

    Raises:
        Wrong, Lost, Unanswered: what was first.
        RuntimeError: a process has ended, or not in order.
    """
    # A namespace of its own, on this machine only: no arm but the simulated one may listen.
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    namespace = f"/exercise_{secrets.token_hex(4)}"
    given = ["--ros-args", "-r", f"__ns:={namespace}", "-r", f"/clock:={namespace}/clock"]
    lineage, commands = LineageWitness(), CommandWitness()
    with Processes(folder) as processes, spinning("planner", namespace=namespace) as node:
        chosen = (
            f"model:={options.model}",
            f"execution:={options.execution}",
            "use_sim_time:=true",
        )
        parameters = [part for parameter in chosen for part in ("-p", parameter)]
        processes.start(POLICY, "flashrt_ros.ros.policy_node", [*given, *parameters])
        lineage.listen(node, POLICY)
        commands.listen(node, POLICY)
        bring_up(ServiceCaller(node, timeout=options.patience), POLICY)
        program = Program(
            node, POLICY, (lineage, commands), seed=options.seed, patience=options.patience
        )
        try:
            # The arm only now: the lineage is then known from its first boundary on.
            program.begin()
            processes.start(SIM, "flashrt_ros.sim.node", [*given, "-p", "mode:=realtime"])
            started = time.perf_counter()
            _run(program, options, processes)
            summary["seconds"] = round(time.perf_counter() - started, 1)
        except Exception:
            for name in (POLICY, SIM):
                if (folder / f"{name}.log").exists():
                    print(f"--- end of {name}.log\n{processes.log_tail(name)}", file=sys.stderr)
            raise
        finally:
            summary |= {"calls": program.tally.calls, "verbs": rows(program.tally)}
            summary |= {"boundaries": len(lineage.commits), "epochs": lineage.view.epoch}
            summary |= {"commands": commands.commands, "moves": commands.moves.total()}
            print("\n" + table(program.tally))
            program.close()
        summary["exit_statuses"] = processes.stop()
    if any(summary["exit_statuses"].values()):
        raise RuntimeError(f"processes have ended with {summary['exit_statuses']}")


def _run(program: Program, options: argparse.Namespace, processes: Processes) -> None:
    with tqdm(total=options.calls, unit="call", file=sys.stdout, disable=None) as bar:

        def told(done: int) -> None:
            processes.check()
            bar.update(min(done, options.calls) - bar.n)

        program.run(options.calls, told)


def main(argv: list[str] | None = None) -> int:
    """Run the exercise; the exit status is 0 when nothing was wrong, lost or unanswered."""
    options = arguments(argv)
    faults = dict.fromkeys(_FAULTS.values(), 0)
    summary: dict[str, Any] = {"seed": options.seed, "execution": options.execution}
    first = ""
    with tempfile.TemporaryDirectory(prefix="flashrt-exercise-") as folder:
        try:
            exercise(options, Path(folder), summary)
        except tuple(_FAULTS) as fault:
            faults[_FAULTS[type(fault)]] += 1
            first = str(fault)
    counted = ", ".join(f"{count} {name}" for name, count in faults.items())
    summary |= {"faults": faults, "first": first}
    if options.json is not None:
        options.json.write_text(json.dumps(summary, indent=2) + "\n")
    print(
        f"\n{summary['calls']} calls, {summary['boundaries']} boundaries, {summary['epochs']} "
        f"epochs, {summary['moves']} of {summary['commands']} commands moved the arm: {counted}"
    )
    if first:
        print(f"first: {first}")
    return 1 if first else 0


if __name__ == "__main__":
    sys.exit(main())
