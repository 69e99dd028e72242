# SPDX-License-Identifier: Apache-2.0
"""How chunks are executed: the modes and their settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from flashrt_ros.models.policy import PolicyModel, PolicySpec, TakesConditioning


class Execution(str, Enum):
    """What is done with a new chunk while an older one is under way. See docs/execution.md."""

    SYNCHRONOUS = "synchronous"
    """The chunk as it is, from the point that is due on."""
    ASYNCHRONOUS = "asynchronous"
    """From the point that is due on, faded over from the chunk under way."""
    ENSEMBLE = "ensemble"
    """The average of all chunks that reach a point (ACT, arXiv 2304.13705), then as above."""
    RTC = "rtc"
    """Real-time chunking (arXiv 2506.07339): the policy goes on with the chunk under way."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class ExecutionOptions:
    """Settings of chunk execution.

    Attributes:
        mode: see `Execution`.
        ensemble_decay: m of the ensemble's weights exp(-m i), i = 0 for the oldest chunk; the
            smaller, the sooner a new chunk counts.
        blend_duration: time in which a new chunk takes over from the one under way, s.
        simulated_delay: lockstep only: inference is taken to cost this much of the world's time, s.
        guidance: real-time chunking: the largest guidance weight (beta in the paper's eq. 2).
        delays_remembered: real-time chunking: the delay expected is the longest of so many.
    """

    mode: Execution = Execution.SYNCHRONOUS
    ensemble_decay: float = 0.01
    blend_duration: float = 0.1
    simulated_delay: float = 0.0
    guidance: float = 5.0
    delays_remembered: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", Execution(self.mode))
        for name in ("ensemble_decay", "blend_duration", "simulated_delay", "guidance"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} is {value}, expected a finite number, 0 or more")

    def check(self, model: PolicyModel, *, lockstep: bool, relative: bool = False) -> None:
        """Raise ValueError where a model, or the way that it is run, can't be executed so.

        relative: the policy's actions are differences to the measured position.
        """
        spec: PolicySpec = model.spec
        # A chunk's last point must be worth sending, see `without_near`.
        horizon = (spec.chunk_length - 0.5) * spec.chunk_dt
        if self.simulated_delay and not lockstep:
            raise ValueError(
                f"simulated_delay is {self.simulated_delay} s, but without lockstep the delay is "
                "what inference really costs: set simulated_delay to 0"
            )
        if self.simulated_delay > horizon:
            raise ValueError(
                f"simulated_delay is {self.simulated_delay} s: a chunk of "
                f"{spec.chunk_length * spec.chunk_dt:g} s is over before it is there"
            )
        if self.mode is Execution.RTC:
            self._check_rtc(model, relative)

    def _check_rtc(self, model: PolicyModel, relative: bool) -> None:
        if not isinstance(model, TakesConditioning) or not model.guided:
            raise ValueError(
                f"execution 'rtc' needs a policy that denoises its chunk by flow matching and can "
                f"be guided in it; {model.name} cannot. Choose asynchronous or ensemble"
            )
        if model.spec.chunk_length < 2:
            raise ValueError(
                f"execution 'rtc' needs chunks of two points or more, {model.name} has "
                f"{model.spec.chunk_length}"
            )
        if relative:
            raise ValueError(
                "execution 'rtc' needs absolute actions: points relative to an older observation "
                "mean other positions now. Choose asynchronous or ensemble"
            )
