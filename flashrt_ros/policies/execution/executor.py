# SPDX-License-Identifier: Apache-2.0
"""What is executed: the chunk under way, the older ones that still count, and how far it has come.

All of it is part of a capsule: one that was taken in mid-chunk holds what was left of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashrt_ros.models.policy import PolicyModel, TakesConditioning
from flashrt_ros.policies.execution.delay import frozen_points
from flashrt_ros.policies.execution.ensemble import averaged
from flashrt_ros.policies.execution.modes import Execution, ExecutionOptions
from flashrt_ros.policies.execution.record import from_record, to_record
from flashrt_ros.policies.execution.splice import rest_of, spliced, without_near
from flashrt_ros.policies.trajectory import Trajectory
from flashrt_ros.runtime import StateItem

LEAD_SHARE = 0.5
"""A point that is due sooner than this share of the time between points is left out."""


@dataclass(frozen=True)
class Progress:
    """A trajectory and how far it has come.

    Attributes:
        trajectory: what the joints were told; None: nothing that could be gone on with.
        at_ns: the time of this picture, ns.
        measured: where the joints were then, float64 `[joints]`; None: not known.
    """

    trajectory: Trajectory | None
    at_ns: int
    measured: np.ndarray | None


def nothing_under_way(at_ns: int) -> dict[str, Any]:
    """The value of the state item where nothing is executed: of a state that no robot was in."""
    return {"at_ns": at_ns, "trajectory": None, "measured": None, "chunks": [], "delays_ns": []}


class ChunkExecutor:
    """Turns a policy's chunks into what the joints are told, by the mode of its options.

    Args:
        model: asked for nothing but its spec, and told the conditioning of each tick.
        options: see `ExecutionOptions`.
        lockstep: observations, not the clock, say how late it is.
        progress: how far the trajectory that is executed has come; asked when a capsule is made.
    """

    def __init__(
        self,
        model: PolicyModel,
        options: ExecutionOptions,
        *,
        lockstep: bool,
        progress: Callable[[], Progress],
    ) -> None:
        self.options = options
        self._model = model
        self._lockstep = lockstep
        self._progress = progress
        self._chunks: list[Trajectory] = []
        self._delays_ns: deque[int] = deque(maxlen=max(1, options.delays_remembered))
        self._left: Progress | None = None
        self._taken_up = False

    # -- around a tick ---------------------------------------------------------------------

    def begin(self, stamp_ns: int) -> Trajectory | None:
        """A tick on an observation of `stamp_ns` is about to run.

        Returns the trajectory that a lockstep world goes on with since `CONTINUE`, else None.
        """
        if self._left is None:
            return None
        left, taken_up = self._left, self._taken_up
        self._left, self._taken_up = None, False
        if not taken_up:
            self._chunks = []
            return None
        # The world paused one tick after the observation at which the picture was made.
        shift_ns = stamp_ns - left.at_ns - round(self._model.spec.tick_period * 1e9)
        self._shift(shift_ns)
        return None if left.trajectory is None else _shifted(left.trajectory, shift_ns)

    def condition(self, stamp_ns: int) -> Mapping[str, int]:
        """Write what the tick reads beside observation and instruction; returns the same."""
        if self.options.mode is not Execution.RTC:
            return {}
        spec, frozen, elapsed_ns = self._model.spec, 0, 0
        if self._chunks:
            elapsed_ns = stamp_ns - self._chunks[-1].start_ns
            frozen = frozen_points(
                elapsed_ns=elapsed_ns,
                delays_ns=[self.simulated_delay_ns] if self._lockstep else self._delays_ns,
                chunk_dt=spec.chunk_dt,
                chunk_length=spec.chunk_length,
            )
        conditioning = {
            "frozen": frozen,
            "elapsed_ns": elapsed_ns if frozen else 0,
            "guidance_milli": round(self.options.guidance * 1e3),
        }
        assert isinstance(self._model, TakesConditioning)
        self._model.write_conditioning(**conditioning)
        return conditioning

    def execute(
        self, chunk: Trajectory, now_ns: int, running: Trajectory | None
    ) -> Trajectory | None:
        """What the joints are told of a new chunk, which begins at its observation's stamp.

        running: what they were told last, as it is executed. None is returned when the chunk is
        over, or nearly: inference took longer than it lasts.
        """
        options = self.options
        older = self._chunks if options.mode is Execution.ENSEMBLE else []
        self._chunks = [*(each for each in older if each.end_ns > chunk.start_ns), chunk]
        self._delays_ns.append(max(0, now_ns - chunk.start_ns))
        planned = chunk
        if options.mode is Execution.ENSEMBLE:
            planned = averaged(self._chunks, options.ensemble_decay)
        if options.mode is not Execution.SYNCHRONOUS and running is not None:
            planned = spliced(running, planned, now_ns, options.blend_duration)
        return None if without_near(planned, now_ns, self._lead_s) is None else planned

    @property
    def simulated_delay_ns(self) -> int:
        """What a lockstep world is told that inference has cost, ns."""
        return round(self.options.simulated_delay * 1e9)

    @property
    def _lead_s(self) -> float:
        return self._model.spec.chunk_dt * LEAD_SHARE

    # -- holds and restores ----------------------------------------------------------------

    def suspend(self) -> None:
        """The joints are about to be held: remember what is left."""
        if self._left is None:
            self._left = self._progress()
            self._taken_up = False

    def drop(self) -> None:
        """Nothing is left: the next chunk begins anew."""
        self._chunks = []
        self._left = None
        self._taken_up = False

    @property
    def left(self) -> Progress | None:
        """What was left when the joints were held, or in the capsule that was restored."""
        return self._left

    def take_up(self, now_ns: int) -> Trajectory | None:
        """Go on with what is left: its trajectory from now on, or None when there is none.

        In lockstep nothing is sent between observations: the trajectory is for the record, and
        the next tick goes on from it.
        """
        left = self._left
        if left is None or left.trajectory is None:
            return None
        cursor_ns = max(0, left.at_ns - left.trajectory.start_ns)
        rest = rest_of(left.trajectory, cursor_ns, now_ns)
        if rest is not None and not self._lockstep:
            rest = without_near(rest, now_ns, self._lead_s)
        if rest is None:
            return None
        if self._lockstep:
            self._taken_up = True
        else:
            self._shift(now_ns - left.at_ns)
            self._left = None
        return rest

    # -- as a part of every capsule --------------------------------------------------------

    def state_item(self) -> StateItem:
        """Chunks under way, how far they have come, and delays."""
        return StateItem("execution", self._get, self._check, self._set)

    def _get(self) -> Any:
        left = self._left if self._left is not None else self._progress()
        measured = left.measured
        return {
            "at_ns": left.at_ns,
            "trajectory": None if left.trajectory is None else to_record(left.trajectory),
            "measured": None if measured is None else [float(x) for x in measured],
            "chunks": [to_record(chunk) for chunk in self._chunks],
            "delays_ns": list(self._delays_ns),
        }

    def _check(self, value: Any) -> None:
        self._parse(value)

    def _set(self, value: Any) -> None:
        left, chunks, delays_ns = self._parse(value)
        self._left, self._chunks, self._taken_up = left, chunks, False
        self._delays_ns.clear()
        self._delays_ns.extend(delays_ns)

    def _parse(self, value: Any) -> tuple[Progress, list[Trajectory], list[int]]:
        joints = len(self._model.spec.joint_names)
        try:
            record, measured = value["trajectory"], value["measured"]
            trajectory = None if record is None else from_record(record, joints)
            chunks = [from_record(chunk, joints) for chunk in value["chunks"]]
            delays_ns = [int(delay) for delay in value["delays_ns"]]
            at_ns = int(value["at_ns"])
        except (TypeError, KeyError) as error:
            raise ValueError(f"not the state of an execution: {error!r}") from error
        if measured is not None and len(measured) != joints:
            raise ValueError(f"{len(measured)} joint positions in the capsule, expected {joints}")
        where = None if measured is None else np.array(measured, dtype=np.float64)
        return Progress(trajectory, at_ns, where), chunks, delays_ns

    def _shift(self, by_ns: int) -> None:
        self._chunks = [_shifted(chunk, by_ns) for chunk in self._chunks]


def _shifted(trajectory: Trajectory, by_ns: int) -> Trajectory:
    return replace(trajectory, start_ns=trajectory.start_ns + by_ns)
