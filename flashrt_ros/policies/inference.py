# SPDX-License-Identifier: Apache-2.0
"""What one replay of a policy has come to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flashrt_ros.policies.observation import Observation
from flashrt_ros.policies.output import ChunkOutput, CommandOutput
from flashrt_ros.policies.trajectory import Trajectory


@dataclass(frozen=True)
class Inferred:
    """A tick's result, before anything was committed or sent.

    Attributes:
        actions: the policy's chunk as it gave it, float32 `[points, joints]`.
        chunk: the same as a trajectory from its observation on: absolute, rad or m.
        conditioning: what the tick has read beside observation and instruction.
        inference_s, replay_s: wall time of the tick, and of the plan's replay in it.
        execution: how the chunk is executed.
    """

    actions: np.ndarray
    chunk: Trajectory
    conditioning: Mapping[str, int]
    inference_s: float
    replay_s: float
    execution: str

    @cached_property
    def detail(self) -> Mapping[str, Any]:
        """What a replay needs beside observation and instruction, and what it must come to."""
        data = np.ascontiguousarray(self.actions).data
        detail = {"chunk_digest": hashlib.blake2b(data, digest_size=16).hexdigest()}
        return {**detail, "conditioning": dict(self.conditioning)} if self.conditioning else detail

    def told(
        self, command: CommandOutput, instruction: str, observation: Observation
    ) -> ChunkOutput:
        """The chunk as it is told, with the command that it became."""
        return ChunkOutput(
            command,
            instruction,
            observation.stamps,
            self.inference_s,
            self.replay_s,
            self.execution,
            self.conditioning.get("frozen", 0),
        )
