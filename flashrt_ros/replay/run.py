# SPDX-License-Identifier: Apache-2.0
"""A recorded run as data: what a policy node said of itself, its events and its chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MOTIONS = ("UNCHANGED", "HOLD", "REPLAN", "CONTINUE")
"""Names of the constants of msg/Motion, by number."""


def elapsed(stamps_ns: Sequence[int]) -> np.ndarray:
    """Time of each stamp (ns) from the first one, float64 `[stamps]`, s.

    Where the clock went back (a bag that was played in a loop) it goes on from there.
    """
    stamps = np.array(stamps_ns, dtype=np.int64)
    return np.cumsum(np.maximum(np.diff(stamps, prepend=stamps[:1]), 0)) * 1e-9


class CannotReplay(Exception):
    """The bag, or this machine, lacks what a replay needs. The message names it."""


@dataclass(frozen=True)
class RunInfo:
    """What msg/RunInfo says: the policy, its inputs, and what it was configured with.

    Attributes:
        session: id of the session; every session has one RunInfo.
        seed: of the policy's noise.
        model: as the parameter named it; `model_path`: where it was found.
        fingerprint: field to value, see `runtime.Fingerprint`.
        instruction: at the first boundary.
        cameras: name to (height, width) of the image that the policy reads.
        joint_names: order of the state vector and of the actions.
        chunk_dt: s between points; point i is at (i + 1) * chunk_dt after the observation.
        tick_period: s between ticks.
        input_topics: policy input to the topic it was read from; `input_types`: to its type.
        contract: the observation contract's YAML, or empty.
        parameters: every parameter of the node; `software`: versions.
    """

    session: str
    seed: int
    model: str
    model_path: str
    fingerprint: Mapping[str, str]
    instruction: str
    cameras: Mapping[str, tuple[int, int]]
    joint_names: tuple[str, ...]
    chunk_length: int
    chunk_dt: float
    tick_period: float
    input_topics: Mapping[str, str]
    input_types: Mapping[str, str]
    contract: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadInput:
    """One input that a tick read: its name, its stamp (ns) and the digest of its bytes, hex."""

    name: str
    stamp_ns: int
    digest: str


@dataclass(frozen=True)
class RunEvent:
    """A committed boundary or an applied verb, see msg/Boundary.

    Attributes:
        kind: COMMIT, SNAPSHOT, RESTORE, ...: the constant's name in msg/Boundary.
        index: of the event; grows by one, a gap is a loss.
        stamp_ns: node clock when it was committed or applied; `log_ns`: when it was recorded.
        boundary: now live; `parent`: its parent, -1 for a root; `step`: ticks on the lineage.
        capsule: id of the capsule that the event is about, else empty; `name`: its name.
        motion: what the verb did to motion, a name of `MOTIONS`.
        inputs_digest: of all inputs on the lineage; `inputs`: what a COMMIT read.
        state_digest: SHA-256 of the live state, hex, or empty.
        detail: the rest of the verb's arguments and report.
    """

    kind: str
    index: int
    stamp_ns: int
    log_ns: int
    boundary: int
    parent: int
    step: int
    epoch: int
    seed: int
    instruction: str
    capsule: str = ""
    name: str = ""
    motion: str = "UNCHANGED"
    inputs_digest: str = ""
    inputs: tuple[ReadInput, ...] = ()
    state_digest: str = ""
    request_id: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    sealed: bool | None = None
    """Whether the event equals the digest that it carries; None where it carries none."""


@dataclass(frozen=True, eq=False)
class RunChunk:
    """A published action chunk, see msg/ActionChunk.

    Attributes:
        positions: float64 [points, joints], rad or m, absolute.
        times: float64 [points], s from `stamp_ns`.
        inference_s: wall time of the tick on the robot, s.
        limited_points: points that a limit changed; `frozen_points`: taken over from the chunk
            under way. With either, or in an execution other than "synchronous", the positions are
            not the policy's output alone.
    """

    boundary: int
    step: int
    epoch: int
    sequence: int
    stamp_ns: int
    log_ns: int
    instruction: str
    positions: np.ndarray
    times: np.ndarray
    hold: bool
    inference_s: float
    execution: str = ""
    frozen_points: int = 0
    limited_points: int = 0
    input_stamps: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_policy_output(self) -> bool:
        """The positions are the policy's chunk, unchanged by limits or by mixing of chunks."""
        return (
            self.execution in ("", "synchronous")
            and self.frozen_points == 0
            and self.limited_points == 0
            and not self.hold
        )


@dataclass(frozen=True, eq=False)
class Run:
    """One session of one policy node, as a bag has it.

    Attributes:
        path: of the bag.
        node: full name of the policy node.
        events: in the order of their index.
        chunks: boundary number to the chunk that its tick published.
        duration_s: from the first to the last event, by the node's clock; where that went back,
            the parts are added up.
        notes: what was found about the bag, a sentence each: lost events, cut files, ...
    """

    path: Path
    node: str
    info: RunInfo
    events: tuple[RunEvent, ...]
    chunks: Mapping[int, RunChunk]
    duration_s: float
    notes: tuple[str, ...] = ()

    @property
    def ticks(self) -> int:
        """Boundaries that were committed."""
        return sum(event.kind == "COMMIT" for event in self.events)
