# SPDX-License-Identifier: Apache-2.0
"""What a replay, a drift measurement and a what-if came to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashrt_ros.replay.run import Run


@dataclass(frozen=True)
class Difference:
    """The first thing in which a replay and its bag differ.

    Attributes:
        boundary: live when it was found.
        kind: "input", "instruction", "verb", "action", "buffer", "state", "lineage", "fingerprint"
            or "lost".
        name: which input, buffer, joint, verb or field.
        expected: as recorded; `actual`: as replayed.
        message: a sentence for people.
    """

    boundary: int
    kind: str
    name: str
    expected: str
    actual: str
    message: str


@dataclass(frozen=True, eq=False)
class ReplayedBoundary:
    """One event of the run, and for a COMMIT what was recorded against what was computed.

    Attributes:
        index, number, parent, step, epoch: of the event, as recorded.
        stamp_ns: node clock of the event, ns.
        event: COMMIT, SNAPSHOT, RESTORE, ...; `name`: of its capsule, or empty.
        motion: what a verb did to motion: UNCHANGED, HOLD, REPLAN or CONTINUE.
        expected: recorded chunk, float64 [points, joints], rad or m; None where the bag has none.
        actual: computed chunk, float64 [points, joints]; None for a verb.
        max_error: largest |actual - expected| of each joint, float64 [joints]; None unless both.
        inference_s: wall time of the tick in this replay, s; `recorded_inference_s`: on the robot.
        note: why `expected` was not compared, or empty.
    """

    index: int
    number: int
    parent: int
    step: int
    epoch: int
    stamp_ns: int
    event: str
    name: str
    instruction: str
    motion: str
    expected: np.ndarray | None = None
    actual: np.ndarray | None = None
    max_error: np.ndarray | None = None
    inference_s: float = 0.0
    recorded_inference_s: float = 0.0
    note: str = ""


@dataclass(frozen=True, eq=False)
class ReplayReport:
    """What a replay came to.

    Attributes:
        run: what was replayed; `model`: name of the policy that it was replayed on.
        identical: nothing that was compared differs by more than the tolerance.
        ticks: that were computed.
        boundaries: one for each event, in order, up to the first difference.
        difference: the first one, or None.
        seconds: wall time of the replay without loading; `realtime_factor`: the run's time over it.
        compared: what was compared, to its count: actions, inputs, states, ...
        notes: sentences for people.
    """

    run: Run
    model: str
    identical: bool
    ticks: int
    boundaries: tuple[ReplayedBoundary, ...]
    difference: Difference | None
    seconds: float
    realtime_factor: float
    compared: dict[str, int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class DriftReport:
    """How far another model, dtype or back end is from what was recorded, tick by tick.

    Attributes:
        report: the replay, which stopped at no difference of actions.
        stamps: float64 [ticks], s from the first compared tick.
        errors: float64 [ticks, joints], largest |actual - expected| in the chunk, rad or m.
    """

    report: ReplayReport
    stamps: np.ndarray
    errors: np.ndarray


@dataclass(frozen=True, eq=False)
class WhatIfBranch:
    """One future: `chunks` is float64 [ticks, points, joints], rad or m."""

    seed: int
    instruction: str
    chunks: np.ndarray


@dataclass(frozen=True, eq=False)
class WhatIfReport:
    """Branches from one boundary on the recorded observations that follow it.

    Attributes:
        boundary: that the branches start from.
        ticks: of each branch.
        recorded: chunks as recorded, float64 [ticks, points, joints]; NaN where there is none.
        branches: one for each seed.
    """

    run: Run
    model: str
    boundary: int
    ticks: int
    recorded: np.ndarray
    branches: tuple[WhatIfBranch, ...]
    seconds: float

    def actions(self) -> np.ndarray:
        """Every branch's chunks, float64 [branches, ticks, points, joints]."""
        return np.stack([branch.chunks for branch in self.branches])
