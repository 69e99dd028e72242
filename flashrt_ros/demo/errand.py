# SPDX-License-Identifier: Apache-2.0
"""The experiment: a planner interrupts a policy between cue and reach, and comes back.

An episode begins with a lamp that shows the colour of the block to touch, then goes dark. Before
the arm is told to reach, the planner sends it on an errand: "go home", while the lamp shows the
cue of another job. That overwrites what the policy remembered. Then the planner comes back in one
of four ways and says "reach"; success is touching the block of the first cue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from flashrt_ros.client import CapsuleClient
from flashrt_ros.demo.simulator import SimClient
from flashrt_ros.msg import SimState
from flashrt_ros.policies.motion import Motion

T = TypeVar("T")

COLOURS = ("red", "green", "blue", "yellow")
CAPSULE = "before_errand"
TOUCH_SECONDS = 0.5
KV_ROLES = ("kv", "random")
"""What a KV cache keeps: keys, values, and the counters that say where and what comes next."""


class Way(Enum):
    """How the planner comes back."""

    UNINTERRUPTED = "uninterrupted"
    """There is no errand."""
    RESTORED = "restored"
    """The capsule from before the errand is restored."""
    KV_ONLY = "kv_only"
    """An ablation: only the capsule's attention KV and counters are."""
    COLD = "cold"
    """The policy is reset."""


@dataclass(frozen=True)
class Schedule:
    """Length of each part of an episode, in ticks of 0.1 s."""

    before: int = 22
    """The lamp is lit for the first 10 of them, then dark; the instruction is "wait"."""
    errand: int = 25
    errand_lamp: int = 8
    reach: int = 50


@dataclass
class Trial:
    """One episode, one way."""

    seed: int
    way: Way
    cue: str
    errand_cue: str
    success: bool = False
    touched: str = ""
    boundaries: dict[str, int] = field(default_factory=dict)
    """Live boundary when the episode began, at the capsule, after coming back, at the end."""
    round_trips_ms: dict[str, list[float]] = field(default_factory=dict)
    restore: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    """The ticks at which the planner interrupted and came back."""
    path: list[SimState] = field(default_factory=list)


class Planner:
    """Runs trials against a policy node and a simulator in lockstep."""

    def __init__(self, policy: CapsuleClient, sim: SimClient, schedule: Schedule) -> None:
        self._policy = policy
        self._sim = sim
        self._schedule = schedule

    def run(self, seed: int, way: Way) -> Trial:
        """Run one episode."""
        policy, sim, schedule = self._policy, self._sim, self._schedule
        cue = sim.reset(seed)
        errand_cue = COLOURS[int(np.random.default_rng([seed, 4]).integers(len(COLOURS)))]
        trial = Trial(seed, way, cue, errand_cue)
        started = self._timed(trial, "reset", policy.reset)
        trial.boundaries["start"] = started.result.boundary
        policy.set_instruction("wait")
        sim.run(schedule.before)
        if way is not Way.UNINTERRUPTED:
            self._go_on_errand(trial)
            self._come_back(trial)
        policy.set_instruction("reach")
        trial.marks["reach"] = sim.path()[-1].tick
        end = sim.run(schedule.reach)
        trial.touched = end.touching
        trial.success = end.touching == cue and end.touching_for >= TOUCH_SECONDS
        trial.path = sim.path()
        status = policy.wait_for_status(lambda status: True)
        trial.boundaries["end"] = status.boundary
        return trial

    def _go_on_errand(self, trial: Trial) -> None:
        policy, sim = self._policy, self._sim
        trial.marks["interrupt"] = sim.path()[-1].tick
        self._timed(trial, "interrupt", policy.interrupt)
        taken = self._timed(trial, "snapshot", lambda: policy.snapshot(CAPSULE, overwrite=True))
        trial.boundaries["capsule"] = taken.capsule.boundary
        sim.light_lamp(trial.errand_cue, self._schedule.errand_lamp)
        policy.set_instruction("go home")
        self._timed(trial, "resume", lambda: policy.resume(Motion.REPLAN))
        sim.run(self._schedule.errand)
        trial.marks["back"] = sim.path()[-1].tick

    def _come_back(self, trial: Trial) -> None:
        policy = self._policy
        if trial.way is Way.COLD:
            answer = self._timed(trial, "reset", policy.reset)
        else:
            roles = KV_ROLES if trial.way is Way.KV_ONLY else ()
            answer = self._timed(
                trial, "restore", lambda: policy.restore(CAPSULE, ablate_only_roles=roles)
            )
            trial.restore = {
                "bytes_copied": answer.bytes_copied,
                "bytes_shared": answer.bytes_shared,
                "steps_not_recomputed": answer.steps_not_recomputed,
            }
        trial.boundaries["back"] = answer.result.boundary

    @staticmethod
    def _timed(trial: Trial, name: str, verb: Callable[[], T]) -> T:
        started = time.perf_counter()
        result: Any = verb()
        elapsed_ms = (time.perf_counter() - started) * 1e3
        trial.round_trips_ms.setdefault(name, []).append(elapsed_ms)
        return result
