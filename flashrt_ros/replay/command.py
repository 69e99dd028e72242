# SPDX-License-Identifier: Apache-2.0
"""`flashrt replay`: bags in, the same actions out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flashrt_ros.replay import printing
from flashrt_ros.replay.drift import draw_drift, drift
from flashrt_ros.replay.offline import replay
from flashrt_ros.replay.outcome import ReplayReport
from flashrt_ros.replay.parsing import open_run
from flashrt_ros.replay.run import CannotReplay, Run
from flashrt_ros.replay.whatif import what_if

IDENTICAL, DIFFERS, CANNOT = 0, 1, 2
"""Exit statuses."""

Progress = Callable[[int, int], None]

_DESCRIPTION = """Replays a recorded run and compares it boundary by boundary.

Exit status 0: identical, 1: something differs (the first difference is named),
2: it cannot be replayed, and why. See docs/replay.md."""


def main(arguments: Sequence[str], program: str = "flashrt replay") -> int:
    """Run the command; returns its exit status."""
    parser = _parser(program)
    options = parser.parse_args(arguments)
    _check(parser, options)
    try:
        if len(options.bags) > 1 or _is_folder_of_bags(options.bags[0]):
            return _many(options)
        run = open_run(options.bags[0], node=options.node, session=options.session)
        if options.at is not None:
            return _what_if(run, options)
        if options.live:
            return _live(run, options)
        if options.drift:
            return _drift(run, options)
        return _replay(run, options)
    except CannotReplay as error:
        sys.stderr.write(f"{program}: cannot replay: {error}\n")
        return CANNOT


def seeds_of(text: str) -> list[int]:
    """`0..15`, `3` or `1,2,7`. Raises ValueError for anything else."""
    first, dots, last = text.partition("..")
    if dots:
        found = list(range(int(first), int(last) + 1))
    else:
        found = [int(each) for each in text.split(",")]
    if not found or min(found) < 0:
        raise ValueError(f"seeds are '{text}', expected 0..15, 3 or 1,2,7")
    return found


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "bags", nargs="+", type=Path, metavar="BAG", help="bags, or folders of them"
    )
    parser.add_argument("--node", help="name of the policy node, where a bag has several")
    parser.add_argument("--session", help="id (or its beginning), where a node had several")
    parser.add_argument("--model", help="checkpoint (default: the one that was recorded)")
    parser.add_argument("--backend", help="eager, compiled or cuda_graph (default: as recorded)")
    parser.add_argument("--device", help="torch device (default: as recorded)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the outcome as a page")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    part = parser.add_argument_group("which part")
    part.add_argument(
        "--from", dest="start", type=int, metavar="BOUNDARY",
        help="begin at the nearest capsule at or before it",
    )  # fmt: skip
    part.add_argument("--until", type=int, metavar="BOUNDARY", help="the last one")
    part.add_argument(
        "--capsules", type=Path, metavar="DIR", help="of the run (default: 'capsules' in the bag)"
    )
    part.add_argument(
        "--cache", type=Path, metavar="DIR", help="leave states there for later jumps, and use them"
    )
    part.add_argument(
        "--cache-every", type=int, default=100, metavar="N", help="ticks between them (default 100)"
    )
    how = parser.add_argument_group("how it is compared")
    how.add_argument(
        "--tolerance", type=float, default=0.0, help="of actions, rad or m (default 0: every bit)"
    )
    how.add_argument("--drift", action="store_true", help="measure the error, don't stop at it")
    how.add_argument("--plot", type=Path, metavar="FILE", help="of the drift (png, svg or pdf)")
    how.add_argument(
        "--live", action="store_true", help="through a policy_node over DDS, in simulated time"
    )
    other = parser.add_argument_group("what if")
    other.add_argument("--at", type=int, metavar="BOUNDARY", help="branch from there")
    other.add_argument("--instruction", help="of the branches (default: the recorded one)")
    other.add_argument("--seeds", type=seeds_of, default=[], help="one branch each: 0..15 or 1,2,7")
    other.add_argument("--ticks", type=int, default=1, help="of each branch (default 1)")
    many = parser.add_argument_group("many bags")
    many.add_argument("--workers", type=int, default=0, help="processes (default: one a core)")
    many.add_argument("--ray", action="store_true", help="on the Ray cluster that is there")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.tolerance < 0.0:
        parser.error(f"--tolerance is {options.tolerance}, expected 0 or more")
    if options.ticks < 1 or options.cache_every < 1:
        parser.error("--ticks and --cache-every must be 1 or more")
    if options.plot is not None and not options.drift:
        parser.error("--plot needs --drift")
    if options.at is None and (options.seeds or options.instruction is not None):
        parser.error("--seeds and --instruction need --at")
    modes = [
        name
        for name, given in (
            ("--drift", options.drift), ("--live", options.live), ("--at", options.at is not None),
        )
        if given
    ]  # fmt: skip
    if len(modes) > 1:
        parser.error(f"{' and '.join(modes)} exclude one another")
    if modes and options.start is not None:
        parser.error(f"--from cannot be given with {modes[0]}")


def _replay(run: Run, options: argparse.Namespace) -> int:
    with _bar(options, "tick") as progress:
        report = replay(
            run, options.model, options.start, options.until, options.tolerance, progress,
            capsules=options.capsules, cache=options.cache, cache_every=options.cache_every,
            backend=options.backend, device=options.device,
        )  # fmt: skip
    return _told(report, options)


def _live(run: Run, options: argparse.Namespace) -> int:
    from flashrt_ros.replay.live import replay_live

    with _bar(options, "tick") as progress:
        report = replay_live(
            run, options.model, until=options.until, tolerance=options.tolerance, progress=progress
        )
    return _told(report, options)


def _told(report: ReplayReport, options: argparse.Namespace) -> int:
    sys.stdout.write(printing.replay_text(report))
    printing.write_json(options.json, printing.replay_json(report))
    _write_page(report, options)
    return IDENTICAL if report.identical else _status(report)


def _status(report: ReplayReport) -> int:
    """What is lost was not seen to differ: beyond it nothing can be said."""
    assert report.difference is not None
    return CANNOT if report.difference.kind == "lost" else DIFFERS


def _drift(run: Run, options: argparse.Namespace) -> int:
    with _bar(options, "tick") as progress:
        found = drift(
            run, options.model, options.until, progress, capsules=options.capsules,
            backend=options.backend, device=options.device,
        )  # fmt: skip
    sys.stdout.write(printing.drift_text(found))
    printing.write_json(options.json, printing.drift_json(found))
    if options.plot is not None:
        draw_drift(found, options.plot)
        sys.stdout.write(f"wrote {options.plot}\n")
    _write_page(found.report, options)
    within = float(found.errors.max()) <= options.tolerance
    return IDENTICAL if found.report.identical or within else DIFFERS


def _what_if(run: Run, options: argparse.Namespace) -> int:
    with _bar(options, "tick") as progress:
        found = what_if(
            run, options.at, options.instruction, options.seeds, options.ticks, options.model,
            progress, capsules=options.capsules, backend=options.backend, device=options.device,
        )  # fmt: skip
    sys.stdout.write(printing.what_if_text(found))
    printing.write_json(options.json, printing.what_if_json(found))
    return IDENTICAL


def _many(options: argparse.Namespace) -> int:
    from flashrt_ros.replay.pool import PoolOptions, find_bags, replay_bags

    bags = [
        each
        for path in options.bags
        for each in (find_bags(path) if _is_folder_of_bags(path) else [path])
    ]
    shared = PoolOptions(model=options.model, node=options.node, tolerance=options.tolerance)
    with _bar(options, "bag") as progress:
        outcomes = replay_bags(
            bags, shared, workers=options.workers, ray=options.ray, progress=progress
        )
    sys.stdout.write(printing.outcomes_text(outcomes))
    printing.write_json(options.json, [printing.outcome_json(outcome) for outcome in outcomes])
    if options.html is not None:
        from flashrt_ros.replay.page import write_page

        write_page(outcomes, options.html)
        sys.stdout.write(f"wrote {options.html}\n")
    verdicts = {outcome.verdict for outcome in outcomes}
    if "cannot be replayed" in verdicts:
        return CANNOT
    return DIFFERS if "differs" in verdicts else IDENTICAL


def _write_page(report: ReplayReport, options: argparse.Namespace) -> None:
    if options.html is None:
        return
    from flashrt_ros.replay.page import write_page
    from flashrt_ros.replay.pool import BagOutcome

    write_page([BagOutcome(report.run.path, report)], options.html)
    sys.stdout.write(f"wrote {options.html}\n")


def _is_folder_of_bags(path: Path) -> bool:
    """A folder that is no bag itself."""
    from flashrt_ros.replay.bag import is_bag

    return path.is_dir() and not is_bag(path)


@contextmanager
def _bar(options: argparse.Namespace, unit: str) -> Iterator[Progress | None]:
    """A progress bar on the terminal; none where there is no terminal."""
    if options.quiet:
        yield None
        return
    from tqdm import tqdm

    with tqdm(unit=unit, disable=None, leave=False) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress
