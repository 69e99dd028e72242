# SPDX-License-Identifier: Apache-2.0
"""Replays many bags at once: in processes of this machine, or on a Ray cluster that is there."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_ros.replay.offline import replay
from flashrt_ros.replay.outcome import ReplayReport
from flashrt_ros.replay.parsing import open_run
from flashrt_ros.replay.run import CannotReplay

_SUFFIXES = frozenset({".mcap", ".db3"})


@dataclass(frozen=True)
class PoolOptions:
    """The same for every bag; see `replay`."""

    model: str | None = None
    node: str | None = None
    tolerance: float = 0.0


@dataclass(frozen=True, eq=False)
class BagOutcome:
    """What one bag came to: a report, or the reason why there is none."""

    path: Path
    report: ReplayReport | None
    reason: str = ""

    @property
    def name(self) -> str:
        """The bag's file or folder name."""
        return self.path.name

    @property
    def verdict(self) -> str:
        """identical, differs or cannot be replayed."""
        if self.report is None:
            return "cannot be replayed"
        return "identical" if self.report.identical else "differs"


def find_bags(folder: Path) -> list[Path]:
    """Every bag below a folder, sorted: rosbag2 folders, and bag files that lie in no such folder.

    Raises:
        CannotReplay: there is none.
    """
    bags = {path.parent for path in folder.rglob("metadata.yaml")}
    for path in folder.rglob("*"):
        if path.suffix in _SUFFIXES and path.is_file() and not bags & set(path.parents):
            bags.add(path)
    if not bags:
        raise CannotReplay(
            f"no bag in {folder}: expected folders with metadata.yaml, .mcap or .db3"
        )
    return sorted(bags)


def replay_bag(path: Path, options: PoolOptions) -> BagOutcome:
    """Replay one bag; never raises, a bag that is broken must not stop the others."""
    try:
        run = open_run(path, node=options.node)
        return BagOutcome(path, replay(run, model=options.model, tolerance=options.tolerance))
    except CannotReplay as error:
        return BagOutcome(path, None, str(error))
    except Exception as error:
        return BagOutcome(path, None, f"{type(error).__name__}: {error}")


def replay_bags(
    bags: Sequence[Path],
    options: PoolOptions,
    *,
    workers: int = 0,
    ray: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[BagOutcome]:
    """Replay bags in parallel, one process each at a time; outcomes in the order of `bags`.

    Args:
        workers: processes; 0: as many as cores, at most as many as bags. With Ray its scheduler
            decides.
        ray: use the Ray cluster whose address is in RAY_ADDRESS, or that of this machine.
        progress: called with (bags done, bags in all).

    Raises:
        CannotReplay: Ray was asked for and is not installed, or no cluster answers.
    """
    done: dict[Path, BagOutcome] = {}
    finished = _on_ray(bags, options) if ray else _in_processes(bags, options, workers)
    for outcome in finished:
        done[outcome.path] = outcome
        if progress is not None:
            progress(len(done), len(bags))
    return [done[path] for path in bags]


def _in_processes(bags: Sequence[Path], options: PoolOptions, workers: int) -> Iterator[BagOutcome]:
    count = min(workers or os.cpu_count() or 1, len(bags))
    if count <= 1:
        yield from (replay_bag(path, options) for path in bags)
        return
    # Not forked: torch's threads don't survive that.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_single_threaded) as pool:
        waiting = {pool.submit(replay_bag, path, options): path for path in bags}
        for future in as_completed(waiting):
            error = future.exception()
            # A worker that was killed, for memory say, takes the pool along.
            yield (
                future.result()
                if error is None
                else BagOutcome(waiting[future], None, f"its process ended: {error}")
            )


def _single_threaded() -> None:
    import torch

    torch.set_num_threads(1)


def _on_ray(bags: Sequence[Path], options: PoolOptions) -> Iterator[BagOutcome]:
    try:
        import ray
    except ModuleNotFoundError:
        raise CannotReplay(
            "--ray needs the Python module 'ray', which is not installed here: pip install ray, or "
            "leave --ray out for processes of this machine"
        ) from None
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), ignore_reinit_error=True)
    except ConnectionError as error:
        raise CannotReplay(
            f"no Ray cluster answers: {error}. Start one with 'ray start --head', or name it in "
            "RAY_ADDRESS"
        ) from error
    remote: Any = ray.remote(replay_bag)
    waiting = {remote.remote(path, options): path for path in bags}
    while waiting:
        (ready, *_), _ = ray.wait(list(waiting))
        path = waiting.pop(ready)
        try:
            yield ray.get(ready)
        except Exception as error:
            yield BagOutcome(path, None, f"its Ray task failed: {error}")
