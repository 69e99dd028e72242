# SPDX-License-Identifier: Apache-2.0
"""A planner's view of the simulated arm in lockstep."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from flashrt_ros.client import ServiceCaller
from flashrt_ros.msg import SimState
from flashrt_ros.srv import SimGrant, SimLamp, SimReset, SimWorld


class SimRefused(RuntimeError):
    """The simulator answered `success: false`."""


class SimClient:
    """Resets episodes, grants ticks, lights the lamp, saves and loads the world.

    Args:
        node: spun by another thread.
        name: name of the simulator's node.
        timeout: longest wait for an answer, s.
    """

    def __init__(self, node: Node, name: str = "sim_arm_node", timeout: float = 10.0) -> None:
        self._name = name
        self._caller = ServiceCaller(node, timeout)
        self._changed = threading.Condition()
        self._states: deque[SimState] = deque(maxlen=10_000)
        # Deep, so that no tick is missing in a drawn path, and transient local like the sender.
        profile = QoSProfile(
            depth=1000,
            reliability=ReliabilityPolicy.RELIABLE,
            durability=DurabilityPolicy.TRANSIENT_LOCAL,
        )
        self._subscription = node.create_subscription(
            SimState, f"{name}/state", self._on_state, profile
        )

    def reset(self, seed: int, lamp_colour: str = "") -> str:
        """Start an episode; returns the colour that the lamp shows."""
        request = SimReset.Request(seed=seed, lamp_colour=lamp_colour)
        cue: str = self._call(SimReset, "reset", request).cue
        self._wait(lambda state: state.seed == seed and state.tick == 0, 10.0)
        with self._changed:
            last = self._states[-1]
            self._states.clear()
            self._states.append(last)
        return cue

    def run(self, ticks: int, timeout: float = 60.0) -> SimState:
        """Let the world advance by some ticks, and wait until it has.

        Raises:
            TimeoutError: the policy did not answer the observations in time.
        """
        first = self._call(SimGrant, "grant", SimGrant.Request(ticks=ticks)).tick
        return self._wait(lambda state: state.tick >= first + ticks, timeout)

    def light_lamp(self, colour: str, ticks: int) -> None:
        """Show a colour from the next observation on."""
        self._call(SimLamp, "lamp", SimLamp.Request(colour=colour, ticks=ticks))

    def save(self, slot: str) -> None:
        """Save the physical world."""
        self._call(SimWorld, "world", SimWorld.Request(slot=slot, load=False))

    def load(self, slot: str) -> None:
        """Put the physical world back."""
        self._call(SimWorld, "world", SimWorld.Request(slot=slot, load=True))

    def path(self) -> list[SimState]:
        """Every state since the reset, a tick each."""
        with self._changed:
            return list(self._states)

    def _call(self, kind: Any, name: str, request: Any) -> Any:
        response = self._caller.call(kind, f"{self._name}/{name}", request)
        if not response.success:
            raise SimRefused(f"{name}: {response.message}")
        return response

    def _wait(self, condition: Callable[[SimState], bool], timeout: float) -> SimState:
        with self._changed:
            if not self._changed.wait_for(
                lambda: bool(self._states) and condition(self._states[-1]), timeout
            ):
                last = self._states[-1].tick if self._states else "none"
                raise TimeoutError(f"the simulator did not advance within {timeout} s: tick {last}")
            return self._states[-1]

    def _on_state(self, message: SimState) -> None:
        with self._changed:
            self._states.append(message)
            self._changed.notify_all()
