# SPDX-License-Identifier: Apache-2.0
"""Replays a run without DDS, as fast as it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.replay.machine import Machine, recorded_threads
from flashrt_ros.replay.outcome import ReplayReport
from flashrt_ros.replay.plan import make_plan
from flashrt_ros.replay.replayer import Replayer
from flashrt_ros.replay.run import CannotReplay, Run
from flashrt_ros.replay.shelf import Shelf, shelf_beside


def replay(
    run: Run,
    model: str | Path | PolicyModel | None = None,
    from_boundary: int | None = None,
    until: int | None = None,
    tolerance: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
    *,
    drifting: bool = False,
    capsules: Path | None = None,
    cache: Path | None = None,
    cache_every: int = 100,
    backend: str | None = None,
    device: str | None = None,
) -> ReplayReport:
    """Replay a run and compare it boundary by boundary, up to the first difference.

    Args:
        run: what `open_run` gave.
        model: a checkpoint directory, the name of a shipped one, or a policy that is not bound
            yet; None: the one that the run names.
        from_boundary: restore the nearest capsule at or before it and start there.
        until: the last boundary to replay.
        tolerance: largest difference of actions that is none, rad or m; 0: bit for bit. With more
            than 0 neither states nor the policy's fingerprint are compared.
        progress: called with (ticks done, ticks in all).
        drifting: go on after differences of actions and states; the report has the first.
        capsules: directory of capsules of the run; None: `capsules` beside the bag.
        cache: directory in which replays of this run leave a state every `cache_every` ticks,
            and find those of earlier ones.
        backend, device: of the plans and buffers; None: as recorded.

    Raises:
        CannotReplay: what is missing.
    """
    shelf = _shelf(run, capsules, cache, from_boundary)
    plan = make_plan(run, shelf, from_boundary, until)
    with recorded_threads(run.info):
        machine = Machine(run, model, shelf=shelf, backend=backend, device=device)
        try:
            replayer = Replayer(run, machine, plan, tolerance=tolerance, drifting=drifting)
            if cache is not None and shelf is not None and shelf.path == cache:
                replayer.cache_every = cache_every
            return replayer.replayed(progress, shelf.notes if shelf is not None else ())
        finally:
            machine.close()


def bring_to(
    run: Run,
    machine: Machine,
    shelf: Shelf | None,
    boundary: int,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Put a machine into the state in which the run was when a boundary was new.

    Returns the position of the next event.

    Raises:
        CannotReplay: the boundary is not in the bag, or what leads to it cannot be had.
    """
    if boundary == 0 and run.events[0].index == 1:
        return 0  # a machine begins there
    plan = make_plan(run, shelf, boundary)
    numbers = [event.boundary for event in run.events]
    position = numbers.index(boundary) + 1
    replayer = Replayer(run, machine, replace(plan, end=position), tolerance=0.0, drifting=True)
    report = replayer.replayed(progress, ())
    if report.difference is not None and report.ticks < replayer.ticks_planned:
        raise CannotReplay(report.difference.message)
    return position


def _shelf(
    run: Run, capsules: Path | None, cache: Path | None, from_boundary: int | None
) -> Shelf | None:
    """The directory whose capsules bring a replay nearest to where it begins."""
    beside = shelf_beside(run, capsules)
    if cache is None:
        return beside
    kept = Shelf(run, cache, create=True)
    if beside is None:
        return kept
    starts = []
    for shelf in (kept, beside):
        try:
            starts.append(make_plan(run, shelf, from_boundary).start)
        except CannotReplay:
            starts.append(-1)
    further = starts[1] > starts[0] if from_boundary is not None else starts[0] < 0
    return beside if further else kept
