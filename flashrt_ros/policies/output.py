# SPDX-License-Identifier: Apache-2.0
"""What the engine tells the layer above: chunks, commands and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flashrt_ros.policies.motion import Motion
from flashrt_ros.policies.trajectory import Trajectory
from flashrt_ros.runtime import Event


@dataclass(frozen=True)
class CommandOutput:
    """One command for the joints, with its commit id (epoch, boundary, sequence).

    A consumer may refuse by epoch and sequence alone.
    """

    epoch: int
    boundary: int
    step: int
    sequence: int
    trajectory: Trajectory
    is_hold: bool
    immediate: bool = False
    """Starts when it arrives, whatever the trajectory's start says. A hold on a robot: on a busy
    machine one with a start time could arrive when it is over, and a controller refuses that."""
    limited_points: int = 0
    """Points that the guard changed."""
    running: Trajectory | None = None
    """The trajectory as it is executed: from where the joints are commanded to be when it is sent,
    over the points that are still to come."""
    due: Trajectory | None = None
    """What a controller is given of the trajectory: all but a point that is due so soon that going
    there would be a jump; None: all."""


@dataclass(frozen=True)
class ChunkOutput:
    """A policy's chunk: a command, and what it was computed from."""

    command: CommandOutput
    instruction: str
    stamps: Mapping[str, int]
    inference_s: float
    replay_s: float = 0.0
    """The part of `inference_s` that the plan's replay took."""
    execution: str = "synchronous"
    frozen_points: int = 0
    """Leading points that real-time chunking took over from the chunk under way."""


@dataclass(frozen=True)
class EngineEvent:
    """A session event, or one that only the engine knows (interrupt, resume, instruction)."""

    kind: str
    """COMMIT, SNAPSHOT, RESTORE, ROLLBACK, RESET, INTERRUPT, RESUME, INSTRUCTION, DROP, ..."""
    index: int
    """Grows by one with every event of this engine: a gap is a loss."""
    boundary: int
    parent: int
    """-1 for a root."""
    step: int
    epoch: int
    instruction: str
    motion: Motion
    inputs_digest: str = ""
    stamps: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of each input that a COMMIT has read, see `Observation.digests`."""
    source: Event | None = None
    request_id: str = ""
    """Of the request behind it, where no verb is being applied: the end of a run, say."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Of a COMMIT: `chunk_digest`, a BLAKE2b-128 (hex) of the policy's chunk, and `conditioning`,
    the whole numbers that the tick read beside observation and instruction (none: left out)."""


class EngineListener(Protocol):
    """Called on the replay thread; must be quick and must not call the engine's verbs."""

    def on_chunk(self, chunk: ChunkOutput) -> None:
        """A new chunk was committed and is to be executed."""

    def on_command(self, command: CommandOutput) -> None:
        """The joints get a new command: a chunk, what is left of one, or a hold."""

    def on_event(self, event: EngineEvent) -> None:
        """A boundary was committed or a verb applied."""

    def on_status(self) -> None:
        """The status changed; read it from the engine."""
