# SPDX-License-Identifier: Apache-2.0
"""From an observation to a committed boundary and a command: what the replay thread does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from flashrt_ros.models.policy import PolicyModel, write_inputs
from flashrt_ros.policies.inference import Inferred
from flashrt_ros.policies.observation import Observation
from flashrt_ros.policies.output import EngineListener
from flashrt_ros.policies.safety import Safety
from flashrt_ros.policies.settlement import Settlement
from flashrt_ros.policies.status import Ends
from flashrt_ros.policies.telling import EventTeller
from flashrt_ros.runtime import Session

logger = logging.getLogger(__name__)

_EARLY = 0.1
"""An observation may come by this share of the tick period early: cameras are not exact."""


class Ticker:
    """Ticks on observations that are due, commits, and has the result executed.

    Args:
        model: bound to the session's arena.
        session: committed to.
        listener: told of chunks that are executed.
        settlement: moves and holds; says whether an observation may be ticked on.
        teller: told what a boundary has read.
        safety: judges deadlines.
        instruction: the one in force.
        void: whether the joints were told to stay while a tick was under way.
    """

    def __init__(
        self,
        model: PolicyModel,
        session: Session,
        listener: EngineListener,
        *,
        settlement: Settlement,
        teller: EventTeller,
        safety: Safety,
        instruction: Callable[[], str],
        void: Callable[[], bool],
    ) -> None:
        self.ticks = 0
        self.idle = threading.Event()
        """Set while no tick is under way: what need not run at once gives way to ticks by it."""
        self.idle.set()
        self._model = model
        self._session = session
        self._listener = listener
        self._settlement = settlement
        self._pilot, self._executor = settlement.pilot, settlement.executor
        self._teller = teller
        self._safety = safety
        self._instruction = instruction
        self._void = void
        self._ticked_ns = 0

    def observe(self, observation: Observation) -> None:
        """An observation came: tick on it, answer it, or leave it."""
        settlement, lockstep = self._settlement, self._settlement.options.lockstep
        if not settlement.active:
            return
        self._pilot.measured = observation.positions
        last = settlement.seen
        if last is not None and observation.stamp_ns <= last.stamp_ns:
            if lockstep and observation.stamp_ns == last.stamp_ns:
                if self._safety.emergency.pressed:
                    settlement.answer(observation.stamp_ns)
                else:
                    self._pilot.repeat()
            return
        if not lockstep and observation.stamp_ns < settlement.not_before_ns:
            return
        settlement.see(observation)
        # A hold that this observation may end does so when its tick has commanded a motion.
        halt = settlement.halt
        if halt is not None and halt.ends not in (Ends.OBSERVATION, Ends.TICK):
            if lockstep:
                settlement.answer(observation.stamp_ns)
            return
        if not self._is_due(observation.stamp_ns):
            return
        self._ticked_ns = observation.stamp_ns
        self.idle.clear()
        try:
            self._tick(observation)
        finally:
            self.idle.set()

    def _is_due(self, stamp_ns: int) -> bool:
        """Whether the tick period is over; at once after a verb, a hold or a jump of the clock."""
        settlement = self._settlement
        if settlement.options.lockstep or settlement.halt is not None:
            return True
        period_ns = round(settlement.options.tick_period * 1e9)
        elapsed_ns = stamp_ns - self._ticked_ns
        fresh = self._ticked_ns < settlement.not_before_ns or elapsed_ns < 0
        return fresh or elapsed_ns >= period_ns * (1.0 - _EARLY)

    def _tick(self, observation: Observation) -> None:
        self._safety.deadline.begin()
        try:
            inferred = self._infer(observation)
        except Exception as error:
            # The buffers may be half-way into a step: no boundary describes them any more.
            logger.exception("tick failed")
            self._safety.deadline.failed()
            self._session.invalidate(f"tick failed: {error}")
            self._settlement.fault(f"tick failed: {error}", observation.stamp_ns, Ends.VERB)
            return
        settlement, chunk = self._settlement, inferred.chunk
        missed = self._safety.deadline.judge(inferred.inference_s)
        now_ns = settlement.now(observation.stamp_ns) + self._executor.simulated_delay_ns
        planned = self._executor.execute(chunk, now_ns, self._pilot.running)
        if not missed and planned is not None:
            # Capsules of this boundary hold its chunk, although it is sent after the commit.
            settlement.pending = self._pilot.executed(planned, now_ns)
        try:
            self._commit(observation, inferred)
        finally:
            settlement.pending = None
        if missed:
            self._executor.drop()
            settlement.fault(missed, observation.stamp_ns, Ends.TICK)
        elif planned is None:
            late_s = (now_ns - chunk.start_ns) * 1e-9
            reason = f"the chunk was over when it was there, {late_s:.2f} s after its observation"
            settlement.fault(reason, observation.stamp_ns)
        elif not self._void():
            command = settlement.move(planned, now_ns)
            if command is not None:
                self._listener.on_chunk(inferred.told(command, self._instruction(), observation))

    def _infer(self, observation: Observation) -> Inferred:
        """One replay: the chunk, and what a replay of the run must know of it."""
        model, executor = self._model, self._executor
        started = time.perf_counter()
        taken_up = executor.begin(observation.stamp_ns)
        if taken_up is not None:
            self._pilot.running = taken_up
        write_inputs(model, observation.images, observation.positions, observation.vectors)
        conditioning = executor.condition(observation.stamp_ns)
        replaying = time.perf_counter()
        model.tick()
        replay_s = time.perf_counter() - replaying
        actions = model.chunk()
        chunk = self._pilot.chunk(observation, actions, model.spec.chunk_dt)
        inference_s = time.perf_counter() - started
        mode = str(executor.options.mode)
        return Inferred(actions, chunk, conditioning, inference_s, replay_s, mode)

    def _commit(self, observation: Observation, inferred: Inferred) -> None:
        self._teller.committing(observation, inferred.detail)
        inputs = observation.digest() + self._instruction().encode()
        self._session.commit(stamp_ns=observation.stamp_ns, inputs=inputs)
        self.ticks += 1
