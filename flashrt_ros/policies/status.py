# SPDX-License-Identifier: Apache-2.0
"""What an engine is told at the start, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flashrt_ros.policies.execution.modes import ExecutionOptions


class EngineState(Enum):
    """The same meanings as the constants of `msg/RuntimeStatus.msg`."""

    INACTIVE = 1
    WAITING = 2
    RUNNING = 3
    HOLDING = 4
    NEEDS_RESET = 5


@dataclass(frozen=True)
class EngineOptions:
    """How the engine behaves.

    Attributes:
        instruction: the instruction before anyone gave one.
        lockstep: the world waits for an answer to each observation: every observation is
            answered (by a chunk, a hold or, when it comes again, the same answer), and nothing
            is sent in between.
        continue_tolerance: largest difference of any joint between where the capsule saw it and
            where it is, for `CONTINUE`, rad or m.
        observation_timeout: hold when no observation came for this long, s; 0: never.
        hold_duration: time from now to the one point of a hold, s.
        execution: what is done with a new chunk while another is under way.
        tick_period: s between the stamps of two observations that are ticked on; those in between
            are only looked at. A policy with a memory counts in ticks: on a camera that is faster
            than the one it was trained with its past would pass faster. 0: every one.
    """

    instruction: str = "wait"
    lockstep: bool = False
    continue_tolerance: float = 0.05
    observation_timeout: float = 0.5
    hold_duration: float = 0.1
    execution: ExecutionOptions = ExecutionOptions()
    tick_period: float = 0.0


class Ends(Enum):
    """What ends a halt by itself; a restore, rollback, reset or resume ends any."""

    OBSERVATION = "the next good observation"
    TICK = "a tick in time"
    CLOCK = "a clock that goes on"
    INSTRUCTION = "a known instruction"
    VERB = "a verb"


@dataclass(frozen=True)
class Halt:
    """Why the arm is held."""

    reason: str
    since_ns: int
    ends: Ends


@dataclass(frozen=True)
class EngineStatus:
    """A picture of the engine between two replays."""

    state: EngineState
    reason: str
    boundary: int
    step: int
    epoch: int
    sequence: int
    instruction: str
    last_error: str
    ticks: int
    faults: int
    execution: str = ""
    run: str = ""
    emergency_stop: bool = False
    deadline_misses: int = 0
    limit_breaches: int = 0
    """Commands that were changed or refused because of a limit."""
    last_breach: str = ""
    """What the last one asked for."""

    def looks_like(self, other: EngineStatus) -> bool:
        """Whether a latched status need not be sent again at once; counters wait for its period."""
        return (
            self.state is other.state
            and self.reason == other.reason
            and self.epoch == other.epoch
            and self.instruction == other.instruction
            and self.last_error == other.last_error
            and self.emergency_stop == other.emergency_stop
            and self.run == other.run
        )
