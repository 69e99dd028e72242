# SPDX-License-Identifier: Apache-2.0
"""Other futures from a recorded boundary: another instruction, other seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from flashrt_ros.models.policy import PolicyModel, TwinPolicy
from flashrt_ros.policies.observation import Observation
from flashrt_ros.replay.inputs import InputFault, RunInputs
from flashrt_ros.replay.machine import Machine, recorded_threads
from flashrt_ros.replay.offline import bring_to
from flashrt_ros.replay.outcome import WhatIfBranch, WhatIfReport
from flashrt_ros.replay.run import CannotReplay, Run, RunEvent
from flashrt_ros.replay.shelf import StateKey, shelf_beside
from flashrt_ros.runtime import Role


def what_if(
    run: Run,
    at: int,
    instruction: str | None = None,
    seeds: Sequence[int] = (),
    ticks: int = 1,
    model: str | Path | PolicyModel | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    capsules: Path | None = None,
    backend: str | None = None,
    device: str | None = None,
) -> WhatIfReport:
    """Branch from boundary `at` on the recorded observations that follow it.

    The observations are those of the next ticks in the bag, whatever the run did in between.

    Args:
        instruction: of every branch; None: what it was at that boundary.
        seeds: a branch each; none: one branch with the recorded seed.
        ticks: of each branch.

    Raises:
        CannotReplay: what is missing.
    """
    began = time.perf_counter()
    shelf = shelf_beside(run, capsules)
    with recorded_threads(run.info):
        machine = Machine(run, model, shelf=shelf, backend=backend, device=device)
        try:
            position = bring_to(run, machine, shelf, at, progress)
            following = [event for event in run.events[position:] if event.kind == "COMMIT"][:ticks]
            if len(following) < ticks:
                raise CannotReplay(
                    f"after boundary {at} the bag has {len(following)} ticks, asked for {ticks}"
                )
            observations = _observations(run, machine, following)
            start = StateKey(at, machine.instruction)
            machine.keep(start)
            branches = []
            for seed in seeds or (run.events[max(position - 1, 0)].seed,):
                machine.go_to(start)
                _write_seed(machine, seed)
                branches.append(_branch(machine, seed, instruction, observations))
            return WhatIfReport(
                run=run,
                model=machine.model.name,
                boundary=at,
                ticks=ticks,
                recorded=_recorded(run, following),
                branches=tuple(branches),
                seconds=time.perf_counter() - began,
            )
        finally:
            machine.close()


def _branch(
    machine: Machine, seed: int, instruction: str | None, observations: Sequence[Observation]
) -> WhatIfBranch:
    if instruction is not None:
        try:
            machine.say(instruction)
        except ValueError as error:
            raise CannotReplay(f"instruction '{instruction}': {error}") from error
    chunks = [machine.tick(observation, {}) for observation in observations]
    return WhatIfBranch(seed, machine.instruction, np.stack(chunks).astype(np.float64))


def _observations(run: Run, machine: Machine, events: Sequence[RunEvent]) -> list[Observation]:
    inputs = RunInputs(run, machine.model.spec, events)
    found = []
    for event in events:
        observation = inputs.observation(event)
        if isinstance(observation, InputFault):
            raise CannotReplay(observation.message)
        found.append(observation)
    return found


def _recorded(run: Run, events: Sequence[RunEvent]) -> np.ndarray:
    info = run.info
    found = np.full((len(events), info.chunk_length, len(info.joint_names)), np.nan)
    for row, event in zip(found, events, strict=True):
        chunk = run.chunks.get(event.boundary)
        if chunk is not None and chunk.positions.shape == row.shape:
            row[:] = chunk.positions
    return found


def _write_seed(machine: Machine, seed: int) -> None:
    if isinstance(machine.model, TwinPolicy):
        machine.model.write_seed(seed)
        return
    arena = machine.session.arena
    names = [
        spec.name
        for spec in arena.table
        if spec.role is Role.RANDOM and spec.name.rpartition(".")[2] == "seed"
    ]
    if len(names) != 1:
        raise CannotReplay(
            f"policy '{machine.model.name}' has no write_seed and {len(names)} seed buffers: "
            "its noise cannot be chosen"
        )
    arena[names[0]].fill_(seed)
