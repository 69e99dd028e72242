# SPDX-License-Identifier: Apache-2.0
"""What lets the world's time pass: the wall clock, or the policy's answers."""

from __future__ import annotations

import time
from typing import Protocol

from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from flashrt_ros.sim.messages import ArmCommand
from flashrt_ros.sim.scene import CONTROL_NS
from flashrt_ros.sim.world import ArmWorld

# A simulation that fell behind further than this lets the time go instead of racing after it.
MAX_BACKLOG = 0.5  # s, of wall time


class Outputs(Protocol):
    """What a pacing asks its node to publish."""

    def publish_clock(self) -> None: ...
    def publish_joints(self) -> None: ...
    def publish_observation(self) -> None: ...
    def publish_state(self) -> None: ...
    def warn(self, text: str) -> None: ...


class Pacing(Protocol):
    """Decides when the world advances. Every call comes from the node's one thread."""

    granted: int
    """Ticks still granted; -1: without limit."""

    pending_ns: int | None
    """Stamp of the observation that waits for its command, if one does."""

    def command(self, command: ArmCommand) -> None:
        """Take a command. Raises ValueError, and changes nothing, if it is not for now."""

    def grant(self, ticks: int) -> None:
        """Let so many ticks pass. Raises ValueError where that has no meaning."""

    def after_jump(self) -> None:
        """The world was reset or put back: go on from what it is now."""


class RealTimePacing:
    """Sim time follows the wall clock: joints at 50 Hz, the camera once a policy tick."""

    granted: int = -1
    pending_ns: int | None = None

    def __init__(self, node: Node, outputs: Outputs, world: ArmWorld, factor: float) -> None:
        self._outputs = outputs
        self._world = world
        self._factor = factor
        self._set_origin()
        self._timer = node.create_timer(
            CONTROL_NS * 1e-9 / factor,
            self._catch_up,
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )

    def command(self, command: ArmCommand) -> None:
        """Replace the running trajectory."""
        self._world.command(command.start_ns, command.times, command.positions)

    def grant(self, ticks: int) -> None:
        """Refused: the wall clock grants."""
        raise ValueError("mode is realtime, where time is not granted: start with mode:=lockstep")

    def after_jump(self) -> None:
        """Go on from the world's time as it is now."""
        self._set_origin()
        self._outputs.publish_observation()

    def _set_origin(self) -> None:
        self._origin_ns, self._origin_wall = self._world.time_ns, time.monotonic()

    def _catch_up(self) -> None:
        elapsed = time.monotonic() - self._origin_wall
        due_ns = self._origin_ns + int(elapsed * self._factor * 1e9)
        behind = (due_ns - self._world.time_ns) * 1e-9 / self._factor
        if behind > MAX_BACKLOG:
            self._outputs.warn(
                f"sim time is {behind:.2f} s of wall time behind and lets that go: this machine "
                f"is too slow or too busy for real_time_factor {self._factor}"
            )
            self._set_origin()
            due_ns = self._world.time_ns + CONTROL_NS
        while self._world.time_ns + CONTROL_NS <= due_ns:
            self._step()

    def _step(self) -> None:
        tick = self._world.tick
        self._world.advance(CONTROL_NS * 1e-9)
        self._outputs.publish_clock()
        if self._world.tick != tick:
            self._outputs.publish_observation()
            self._outputs.publish_state()
        else:
            self._outputs.publish_joints()


class LockstepPacing:
    """A tick passes when the command for its observation has arrived, and one is granted.

    Wall time decides nothing: the same commands give the same world bit for bit. The clock on the
    wall is used to warn, and to publish a pending observation again for whoever has missed it.
    """

    def __init__(
        self,
        node: Node,
        outputs: Outputs,
        world: ArmWorld,
        granted: int,
        republish_period: float,
        command_timeout: float,
    ) -> None:
        self.granted = granted
        self._outputs = outputs
        self._world = world
        self._republish_period = republish_period
        self._command_timeout = command_timeout
        self.pending_ns: int | None = None
        self._offered_wall = time.monotonic()
        self._timer = node.create_timer(
            republish_period, self._republish, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )
        self._offer()

    def command(self, command: ArmCommand) -> None:
        """Apply the answer to the pending observation, and let its tick pass."""
        if self.pending_ns is None:
            raise ValueError(
                f"it answers {command.stamp_ns} ns but no observation is pending: "
                f"{'no tick is granted' if self.granted == 0 else 'it was answered already'}"
            )
        if command.stamp_ns != self.pending_ns:
            raise ValueError(
                f"its stamp is {command.stamp_ns} ns, expected the pending observation's "
                f"{self.pending_ns} ns"
            )
        self._world.command(command.start_ns, command.times, command.positions)
        self.pending_ns = None
        self._world.advance_tick()
        if self.granted > 0:
            self.granted -= 1
        self._outputs.publish_state()
        self._offer()

    def grant(self, ticks: int) -> None:
        """Replace what is granted; an observation that is pending is the first tick of it."""
        if ticks < -1:
            raise ValueError(f"ticks is {ticks}, expected -1 (without limit), 0 (pause) or more")
        self.granted = ticks
        self._outputs.publish_state()
        if self.pending_ns is None:
            self._offer()

    def after_jump(self) -> None:
        """Drop the pending observation; offer the new one if a tick is granted."""
        self.pending_ns = None
        self._offer()

    def _offer(self) -> None:
        if self.granted == 0:
            self._outputs.publish_clock()
            return
        self.pending_ns = self._world.time_ns
        self._offered_wall = time.monotonic()
        self._outputs.publish_clock()
        self._outputs.publish_observation()

    def _republish(self) -> None:
        self._outputs.publish_clock()
        waited = time.monotonic() - self._offered_wall
        if self.pending_ns is None or waited < self._republish_period:
            return
        self._outputs.publish_observation()
        if waited >= self._command_timeout:
            self._outputs.warn(
                f"no command for the observation at {self.pending_ns * 1e-9:.3f} s for "
                f"{waited:.0f} s of wall time: is the policy active, and does its command "
                "carry the observation's stamp?"
            )
