# SPDX-License-Identifier: Apache-2.0
"""An engine whose clock a test moves, whose ticks cost time, and everything that came out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from toy_policy import ToyPolicy

from flashrt_ros.policies import (
    ChunkOutput,
    CommandOutput,
    EngineEvent,
    EngineOptions,
    Motion,
    Observation,
    PolicyEngine,
)
from flashrt_ros.policies.action_space import ActionSpaces
from flashrt_ros.policies.execution import ExecutionOptions
from flashrt_ros.runtime import Arena, AutoSnapshots, Session

TICK_NS = 100_000_000
MS = 1_000_000


class Bench:
    """An engine over a policy, in lockstep or with a clock of the test's own.

    latency_ns: what a tick costs on that clock; not in lockstep.
    """

    def __init__(
        self,
        execution: ExecutionOptions | None = None,
        *,
        policy: Any = None,
        lockstep: bool = False,
        latency_ns: int = 0,
        spaces: ActionSpaces | None = None,
        seed: int = 3,
    ) -> None:
        self.now_ns = 1_000_000_000
        self.latency_ns = latency_ns
        self.policy = policy if policy is not None else ToyPolicy()
        self.arena = Arena(self.policy.buffer_specs())
        self.policy.bind(self.arena, seed=seed)
        self.session = Session(
            self.arena, fingerprint=self.policy.fingerprint, seed=seed, auto=AutoSnapshots()
        )
        self.chunks: list[ChunkOutput] = []
        self.commands: list[CommandOutput] = []
        self.events: list[EngineEvent] = []
        self.follower: Callable[[CommandOutput], None] = lambda command: None
        self._lockstep = lockstep
        tick = self.policy.tick

        def slow_tick() -> None:
            tick()
            self.now_ns += self.latency_ns

        self.policy.tick = slow_tick
        self.engine = PolicyEngine(
            self.policy,
            self.session,
            self,
            clock=lambda: self.now_ns,
            options=EngineOptions(
                lockstep=lockstep,
                observation_timeout=0.0,
                execution=execution or ExecutionOptions(),
            ),
            spaces=spaces,
        )
        self.engine.start()
        self.engine.activate()

    def close(self) -> None:
        self.engine.close()

    def on_chunk(self, chunk: ChunkOutput) -> None:
        self.chunks.append(chunk)

    def on_command(self, command: CommandOutput) -> None:
        self.follower(command)
        self.commands.append(command)

    def on_event(self, event: EngineEvent) -> None:
        self.events.append(event)

    def on_status(self) -> None:
        pass

    def observation(self, value: int, positions: tuple[float, ...] = (0.1, 0.2)) -> Observation:
        shape = next(iter(self.policy.spec.cameras.values()))
        generator = np.random.default_rng(value)
        image = generator.integers(0, 256, shape, dtype=np.uint8)
        name = next(iter(self.policy.spec.cameras))
        where = np.resize(np.array(positions), len(self.policy.spec.joint_names))
        return Observation(self.now_ns, {name: image}, where, {name: self.now_ns})

    def tick(
        self, value: int, positions: tuple[float, ...] = (0.1, 0.2), after_ns: int = TICK_NS
    ) -> CommandOutput:
        """An observation `after_ns` after the last moment, and the command that answers it."""
        self.now_ns += after_ns
        before = len(self.commands)
        self.engine.offer(self.observation(value, positions))
        wait_for(lambda: len(self.commands) > before)
        self.engine.call(lambda session: None, timeout=30.0)
        return self.commands[-1]

    def call(self, verb: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run one of the engine's or session's verbs on the replay thread."""
        return self.engine.call(lambda session: verb(*arguments, **named), timeout=30.0)

    def snapshot(self, name: str) -> None:
        self.call(self.session.snapshot, name)

    def restore(self, name: str, motion: Motion) -> Motion:
        return self.call(self.engine.restore, name, motion)[1]

    def commits(self) -> list[EngineEvent]:
        return [event for event in self.events if event.kind == "COMMIT"]


def wait_for(condition: Callable[[], bool], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.001)
