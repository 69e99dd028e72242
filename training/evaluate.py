# SPDX-License-Identifier: Apache-2.0
"""Success in closed loop on held-out seeds: `python -m training.evaluate CHECKPOINT --out FILE`.

The policy runs as it is deployed: one stream, over an arena, a tick at a time.

A reach succeeds if at its end the fingertip touches the right block and has for 0.5 s or longer
without a break. "wait" succeeds if no joint moved by more than 0.1 rad; "go home" if every joint
but the wrist's roll is within 0.1 rad of home.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from flashrt_ros.models import load_policy
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.sim.scene import COLOURS, HOME
from flashrt_ros.sim.world import ArmWorld, SimTruth
from training.scripts import DIRECT

HOLD_SECONDS = 0.5
TOLERANCE = 0.1  # rad, for "wait" and "go home"
CUE_AND_WAIT, HOME_TICKS, REACH_TICKS = 20, 25, 50


@dataclass(frozen=True)
class Trial:
    """One row of the result: what was tried with which seed, and whether it succeeded."""

    way: str
    seed: int
    success: bool
    touched: str


class Runner:
    """A policy in a world, as deployed."""

    def __init__(self, folder: Path, backend: str = "eager") -> None:
        self.policy = load_policy(folder)
        self.arena = Arena(self.policy.buffer_specs())
        self.world = ArmWorld()
        (self.camera,) = self.policy.spec.cameras
        spec = self.policy.spec
        self.times = (np.arange(spec.chunk_length) + 1) * spec.chunk_dt
        self.policy.bind(self.arena, seed=0, backend=backend)
        if self.policy.fingerprint.plan != backend:
            raise SystemExit(f"plan {self.policy.fingerprint.plan!r} runs, not {backend!r}")

    def reset(self, seed: int) -> None:
        """A new episode with a cold policy."""
        self.world.reset(seed)
        self.forget(seed)

    def forget(self, seed: int) -> None:
        """The policy's state as it is before the first tick."""
        for spec in self.policy.buffer_specs():
            self.arena[spec.name].zero_()
        self.arena["random.seed"].fill_(seed)

    def state(self) -> dict[str, torch.Tensor]:
        return {s.name: self.arena[s.name].clone() for s in self.policy.buffer_specs()}

    def put_back(self, state: dict[str, torch.Tensor], roles: tuple[str, ...] = ()) -> None:
        """All buffers, or those of some roles."""
        for spec in self.policy.buffer_specs():
            if not roles or str(spec.role) in roles:
                self.arena[spec.name].copy_(state[spec.name])

    def run(self, instruction: str, ticks: int) -> SimTruth:
        """Let the policy act; the world's truth afterwards."""
        self.policy.write_instruction(instruction)
        for _ in range(ticks):
            seen = self.world.observe()
            self.policy.write_observation({self.camera: seen.image}, seen.positions)
            self.policy.tick()
            self.world.command(seen.stamp_ns, self.times, self.policy.chunk())
            self.world.advance_tick()
        return self.world.truth()


def touched(truth: SimTruth, colour: str) -> bool:
    """Whether a reach for a colour succeeded."""
    return truth.touching == colour and truth.touching_for >= HOLD_SECONDS


def _cued(runner: Runner, seed: int) -> tuple[SimTruth, bool]:
    """Cue, wait, reach."""
    runner.reset(seed)
    runner.run("wait", CUE_AND_WAIT)
    cue = runner.world.truth().last_cue
    truth = runner.run("reach", REACH_TICKS)
    return truth, touched(truth, cue)


def _direct(runner: Runner, seed: int) -> tuple[SimTruth, bool]:
    """A colour by name; the colours take turns, whatever the lamp shows."""
    runner.reset(seed)
    truth = runner.run(DIRECT[seed % 4], REACH_TICKS)
    return truth, touched(truth, COLOURS[seed % 4])


def _switch(runner: Runner, seed: int) -> tuple[SimTruth, bool]:
    """A colour by name after 35 ticks of another."""
    runner.reset(seed)
    runner.run(DIRECT[(seed + 1) % 4], 35)
    truth = runner.run(DIRECT[seed % 4], REACH_TICKS)
    return truth, touched(truth, COLOURS[seed % 4])


def _home(runner: Runner, seed: int) -> tuple[SimTruth, bool]:
    """Home from the way to a block."""
    runner.reset(seed)
    runner.run(DIRECT[seed % 4], 35)
    truth = runner.run("go home", HOME_TICKS + 15)
    return truth, bool(np.abs(truth.joint_positions - HOME)[:4].max() < TOLERANCE)


def _wait(runner: Runner, seed: int) -> tuple[SimTruth, bool]:
    """Nothing, for 30 ticks."""
    runner.reset(seed)
    before = runner.world.truth().joint_positions
    truth = runner.run("wait", 30)
    return truth, bool(np.abs(truth.joint_positions - before).max() < TOLERANCE)


def _interrupted(runner: Runner, seed: int, way: str) -> tuple[SimTruth, bool]:
    """Cue, wait; another errand with a cue of its own, any of the four; back in some way; reach.

    The errand's colour counts where nothing was put back, the first one else.
    """
    draw = np.random.Generator(np.random.Philox(key=[seed, 0x1A7E]))
    other = COLOURS[int(draw.integers(4))]
    runner.reset(seed)
    runner.run("wait", CUE_AND_WAIT)
    capsule, cue = runner.state(), runner.world.truth().last_cue
    runner.world.light_lamp(other, 8)
    runner.run("go home", HOME_TICKS)
    if way == "restored":
        runner.put_back(capsule)
    elif way == "kv only":
        runner.put_back(capsule, ("kv",))
    elif way == "cold":
        runner.forget(seed)
    truth = runner.run("reach", REACH_TICKS)
    return truth, touched(truth, other if way == "second cue" else cue)


WAYS: dict[str, Callable[[Runner, int], tuple[SimTruth, bool]]] = {
    "cued reach": _cued,
    "direct": _direct,
    "direct, after another": _switch,
    "go home": _home,
    "wait": _wait,
    "second cue": partial(_interrupted, way="second cue"),
    "restored": partial(_interrupted, way="restored"),
    "kv only": partial(_interrupted, way="kv only"),
    "cold": partial(_interrupted, way="cold"),
}


@cache
def _runner(folder: Path, backend: str) -> Runner:
    """One for each process."""
    return Runner(folder, backend)


def _trials(job: tuple[Path, int, tuple[str, ...], str]) -> list[Trial]:
    folder, seed, ways, backend = job
    torch.set_num_threads(1)
    runner, trials = _runner(folder, backend), []
    for way in ways:
        truth, success = WAYS[way](runner, seed)
        trials.append(Trial(way, seed, success, truth.touching))
    return trials


def evaluate(
    folder: Path,
    first: int,
    count: int,
    processes: int = 2,
    ways: Iterable[str] = WAYS,
    backend: str = "eager",
) -> list[Trial]:
    """The trials of `count` seeds."""
    jobs = [(folder, seed, tuple(ways), backend) for seed in range(first, first + count)]
    with get_context("spawn").Pool(processes) as pool:
        parts = list(tqdm(pool.imap(_trials, jobs), total=count, desc="seeds", mininterval=2))
    return [trial for part in parts for trial in part]


def summarise(trials: list[Trial]) -> dict[str, dict[str, float]]:
    """Counts and shares of success by way."""
    ways: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        ways[trial.way].append(trial)
    return {
        way: {
            "trials": len(of),
            "successes": sum(t.success for t in of),
            "share": round(sum(t.success for t in of) / len(of), 4),
        }
        for way, of in ways.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--out", type=Path, help="JSON of the summary and of every failure")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--backend", default="eager", help="eager, or compiled plans")
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    trials = evaluate(
        arguments.checkpoint,
        arguments.first,
        arguments.seeds,
        arguments.processes,
        arguments.ways,
        arguments.backend,
    )
    summary = summarise(trials)
    for way, counts in summary.items():
        print(f"{way:30} {counts['successes']:4}/{counts['trials']:<4} {counts['share']:.1%}")
    if arguments.out:
        failures = [vars(t) for t in trials if not t.success and t.way not in ("cold", "kv only")]
        result = {
            "checkpoint": arguments.checkpoint.name,
            "seeds": [arguments.first, arguments.first + arguments.seeds - 1],
            "summary": summary,
            "failures": failures,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
