# SPDX-License-Identifier: Apache-2.0
"""The pilot knows what the joints were last told, and numbers what they are told next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flashrt_ros.policies.action_space import ActionSpaces
from flashrt_ros.policies.execution.splice import joined, without_near
from flashrt_ros.policies.guard import CommandContext, CommandGuard, OpenGate
from flashrt_ros.policies.observation import Observation
from flashrt_ros.policies.output import CommandOutput, EngineListener
from flashrt_ros.policies.trajectory import Trajectory, hold
from flashrt_ros.runtime import Session


class Pilot:
    """Sends trajectories and holds, each with a commit id, and keeps the ledger of them.

    Commands come from the replay thread, but for the hold of an emergency stop, which does not
    wait for it: one command is sent whole before another.

    The ledger is not part of what a rollback undoes: sequence numbers only grow, and nothing
    that was sent is sent again unless someone asks for it.

    Args:
        listener: gets every command.
        hold_duration: time from its start to the one point of a hold, s.
        clock: the engine's, ns.
        guard: every command passes it; None: all may.
        spaces: what the actions mean; None: absolute positions.
        lead_s: a point that is due sooner than this is left out, s.
        lockstep: commands answer observations: they begin when the observation was made.
        ledger_length: how many of the last commands are remembered.
    """

    def __init__(
        self,
        listener: EngineListener,
        hold_duration: float,
        *,
        clock: Callable[[], int],
        guard: CommandGuard | None = None,
        spaces: ActionSpaces | None = None,
        lead_s: float = 0.0,
        lockstep: bool = False,
        ledger_length: int = 1024,
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._lockstep = lockstep
        self._lead_s = lead_s
        self._guard = guard if guard is not None else OpenGate()
        self._spaces = spaces if spaces is not None else ActionSpaces()
        self.hold_duration = hold_duration
        self.running: Trajectory | None = None
        """What the joints were told last, as a controller executes it: without a jump."""
        self._held: np.ndarray | None = None
        self._lock = threading.RLock()
        self.ledger: deque[CommandOutput] = deque(maxlen=ledger_length)
        self.measured: np.ndarray | None = None
        self.sequence = 0
        self.refused = ""
        """Why the guard turned the last trajectory into a hold; empty: it did not."""

    @property
    def holding(self) -> bool:
        """Whether the joints were told to stay, or nothing yet."""
        return self.running is None or self._held is not None

    def commanded_at(self, time_ns: int, otherwise: np.ndarray) -> np.ndarray:
        """Where the joints are commanded to be at a time, `[joints]`; else `otherwise`."""
        if self.running is None:
            return self._spaces.at_rest(otherwise)
        return self.running.at(time_ns)

    def chunk(self, observation: Observation, actions: np.ndarray, dt: float) -> Trajectory:
        """A policy's chunk `[points, joints]`, begun at its observation, as a trajectory.

        Raises ValueError for a value that is not finite.
        """
        return Trajectory(
            observation.stamp_ns,
            (np.arange(actions.shape[0]) + 1) * dt,
            self._spaces.absolute(actions, observation.positions),
            self.commanded_at(observation.stamp_ns, observation.positions),
            self._spaces.velocity,
        )

    def executed(self, trajectory: Trajectory, now_ns: int) -> Trajectory:
        """A trajectory as it is executed when it is sent now."""
        due = without_near(trajectory, now_ns, self._lead_s) or trajectory
        return joined(due, now_ns, self.commanded_at(now_ns, trajectory.origin))

    def move(self, session: Session, trajectory: Trajectory, now_ns: int) -> CommandOutput | None:
        """Command a trajectory. A guard that refuses it makes it a hold, see `refused`.

        None where the guard lets nothing pass at all.
        """
        with self._lock:
            if self._held is not None:
                self._guard.resumed()
                self._held = None
            self.refused = ""
            return self._send(session, trajectory, now_ns, is_hold=False)

    def begin(self) -> None:
        """The next trajectory begins a motion, although no hold was before it: it is ramped."""
        with self._lock:
            self._guard.resumed()

    def hold(self, session: Session, start_ns: int, *, immediate: bool) -> CommandOutput | None:
        """Command the joints to stay. Nothing is sent while no position is known.

        The position is where they were commanded to be (else measured) when the hold began, and
        stays the same however often a hold is repeated: measured positions sag under gravity, and
        following them would let the arm sink. Velocities (a twist's) are 0.
        """
        with self._lock:
            if self._held is None:
                if self.running is not None:
                    self._held = self._spaces.at_rest(self.running.at(start_ns))
                elif self.measured is not None:
                    self._held = self._spaces.at_rest(self.measured)
                else:
                    return None
            staying = hold(self._held, start_ns, self.hold_duration)
            return self._send(session, staying, start_ns, is_hold=True, immediate=immediate)

    def repeat(self) -> None:
        """Send the last command once more, unchanged: its receiver missed it."""
        with self._lock:
            if self.ledger:
                self._listener.on_command(self.ledger[-1])

    def forget(self) -> None:
        """Time went back: what was commanded has no meaning any more."""
        with self._lock:
            self.running = None
            self._held = None
            self.measured = None
            self.ledger.clear()
            self._guard.forget()

    def _send(
        self,
        session: Session,
        trajectory: Trajectory,
        now_ns: int,
        is_hold: bool,
        immediate: bool = False,
    ) -> CommandOutput | None:
        """The one way out: every command passes the guard here, and nothing is sent elsewhere."""
        context = CommandContext(now_ns, self.running, self.measured, is_hold)
        guarded = self._guard.check(trajectory, context)
        if guarded.refused:
            self.refused = guarded.refused
            is_hold, immediate = True, immediate or not self._lockstep
        if guarded.trajectory is None:
            return None
        sent = replace(guarded.trajectory, velocity=self._spaces.velocity)
        if is_hold:  # the guard may have to brake, and the joints then stay where that ends
            self._held = self._spaces.at_rest(sent.positions[-1])
        running = self._held_from(sent, now_ns) if is_hold else self.executed(sent, now_ns)
        self.sequence += 1
        live = session.live
        command = CommandOutput(
            session.epoch,
            live.number,
            live.step,
            self.sequence,
            sent,
            is_hold,
            immediate,
            guarded.limited_points,
            running,
            None if is_hold else without_near(sent, now_ns, self._lead_s),
        )
        self.running = running
        self.ledger.append(command)
        self._listener.on_command(command)
        return command

    def _held_from(self, sent: Trajectory, now_ns: int) -> Trajectory:
        """A hold as it is executed: it begins where the joints are to stay.

        Its velocities are 0 at once, unless the guard has them brake.
        """
        brakes = bool(np.any(sent.positions[:, list(self._spaces.velocity)]))
        origin = sent.origin if brakes else self._spaces.at_rest(sent.origin)
        return joined(sent, now_ns, origin)
