# SPDX-License-Identifier: Apache-2.0
"""The pilot knows what the joints were last told, and numbers what they are told next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from flashrt_ros.policies.guard import CommandContext, CommandGuard, OpenGate
from flashrt_ros.policies.output import CommandOutput, EngineListener
from flashrt_ros.policies.trajectory import Trajectory, hold
from flashrt_ros.runtime import Session


class Pilot:
    """Sends trajectories and holds, each with a commit id, and keeps the ledger of them.

    The ledger is not part of what a rollback undoes: sequence numbers only grow, and nothing
    that was sent is sent again unless someone asks for it.

    Args:
        listener: gets every command.
        hold_duration: time from its start to the one point of a hold, s.
        clock: the engine's, ns.
        guard: every command passes it; None: all may.
        lockstep: a refused trajectory's hold answers its observation, so it keeps the stamp.
        ledger_length: how many of the last commands are remembered.
    """

    def __init__(
        self,
        listener: EngineListener,
        hold_duration: float,
        *,
        clock: Callable[[], int],
        guard: CommandGuard | None = None,
        lockstep: bool = False,
        ledger_length: int = 1024,
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._lockstep = lockstep
        self._guard = guard if guard is not None else OpenGate()
        self.hold_duration = hold_duration
        self._trajectory: Trajectory | None = None
        self._held: np.ndarray | None = None
        self.ledger: deque[CommandOutput] = deque(maxlen=ledger_length)
        self.measured: np.ndarray | None = None
        self.sequence = 0
        self.refused = ""
        """Why the guard turned the last trajectory into a hold; empty: it did not."""

    def commanded_at(self, time_ns: int, otherwise: np.ndarray) -> np.ndarray:
        """Where the joints are commanded to be at a time, `[joints]`; else `otherwise`."""
        if self._trajectory is None:
            return otherwise.copy()
        return self._trajectory.at(time_ns)

    def move(self, session: Session, trajectory: Trajectory) -> CommandOutput:
        """Command a trajectory. A guard that refuses it makes it a hold, see `refused`."""
        if self._held is not None:
            self._guard.resumed()
            self._held = None
        self.refused = ""
        return self._send(session, trajectory, is_hold=False)

    def hold(self, session: Session, start_ns: int, *, immediate: bool) -> CommandOutput | None:
        """Command the joints to stay. Nothing is sent while no position is known.

        The position is where they were commanded to be (else measured) when the hold began, and
        stays the same however often a hold is repeated: measured positions sag under gravity, and
        following them would let the arm sink.
        """
        if self._held is None:
            if self._trajectory is not None:
                self._held = self._trajectory.at(start_ns)
            elif self.measured is not None:
                self._held = self.measured.copy()
            else:
                return None
        staying = hold(self._held, start_ns, self.hold_duration)
        return self._send(session, staying, is_hold=True, immediate=immediate)

    def repeat(self) -> None:
        """Send the last command once more, unchanged: its receiver missed it."""
        if self.ledger:
            self._listener.on_command(self.ledger[-1])

    def forget(self) -> None:
        """Time went back: what was commanded has no meaning any more."""
        self._trajectory = None
        self._held = None
        self.measured = None
        self._guard.forget()

    def _send(
        self, session: Session, trajectory: Trajectory, is_hold: bool, immediate: bool = False
    ) -> CommandOutput:
        """The one way out: every command passes the guard here, and nothing is sent elsewhere."""
        context = CommandContext(self._clock(), self._trajectory, self.measured, is_hold)
        guarded = self._guard.check(trajectory, context)
        if guarded.refused:
            self.refused = guarded.refused
            self._held = guarded.trajectory.positions[-1].copy()
            is_hold, immediate = True, immediate or not self._lockstep
        self.sequence += 1
        live = session.live
        command = CommandOutput(
            session.epoch,
            live.number,
            live.step,
            self.sequence,
            guarded.trajectory,
            is_hold,
            immediate,
            guarded.limited_points,
        )
        self._trajectory = guarded.trajectory
        self.ledger.append(command)
        self._listener.on_command(command)
        return command
