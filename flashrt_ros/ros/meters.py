# SPDX-License-Identifier: Apache-2.0
"""Measures what an engine tells, on its way to the publishers: durations, ages, rates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flashrt_ros.policies import ChunkOutput, CommandOutput, EngineEvent
from flashrt_ros.policies.output import EngineListener

WINDOW = 512  # samples that a percentile is taken of


class Samples:
    """The last samples of one quantity, in seconds. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._kept: deque[float] = deque(maxlen=WINDOW)

    def add(self, seconds: float) -> None:
        self._kept.append(seconds)

    def percentiles(self) -> tuple[float, float]:
        """Median and 99th percentile (nearest rank), s; NaN before the first sample."""
        ordered = sorted(self._kept.copy())
        if not ordered:
            return float("nan"), float("nan")
        last = len(ordered) - 1
        return ordered[last // 2], ordered[round(0.99 * last)]


@dataclass
class Meters:
    """An `EngineListener` that passes everything on and measures meanwhile.

    The first chunk is left out: it is cold, and says nothing of the latency that a controller sees.

    Attributes:
        listener: what it passes everything on to.
        clock: the time that observations are stamped in, ns.
        inference: from the observation to the chunk, s.
        replay: the part of it that the plan's replay took, s.
        tick_to_publish: from the begin of a tick to its last message being sent, s.
        observation_to_command: from the stamp of the oldest input to the command being sent, s.
        chunks, commands, boundaries: sent so far.
    """

    listener: EngineListener
    clock: Callable[[], int]
    inference: Samples = field(default_factory=Samples)
    replay: Samples = field(default_factory=Samples)
    tick_to_publish: Samples = field(default_factory=Samples)
    observation_to_command: Samples = field(default_factory=Samples)
    chunks: int = 0
    commands: int = 0
    boundaries: int = 0
    _committed: float = 0.0

    def on_chunk(self, chunk: ChunkOutput) -> None:
        """A chunk was committed; its command was sent before."""
        self.listener.on_chunk(chunk)
        self.chunks += 1
        if self.chunks == 1:
            return
        self.inference.add(chunk.inference_s)
        self.replay.add(chunk.replay_s)
        self.tick_to_publish.add(chunk.inference_s + time.perf_counter() - self._committed)
        if chunk.stamps:
            age_ns = self.clock() - min(chunk.stamps.values())
            self.observation_to_command.add(age_ns * 1e-9)

    def on_command(self, command: CommandOutput) -> None:
        """The joints get a command."""
        self.listener.on_command(command)
        self.commands += 1

    def on_event(self, event: EngineEvent) -> None:
        """A boundary was committed or a verb applied."""
        if event.kind == "COMMIT":
            self._committed = time.perf_counter()
            self.boundaries += 1
        self.listener.on_event(event)

    def on_status(self) -> None:
        """The status changed."""
        self.listener.on_status()


class Rates:
    """Rates of counters, between one look at them and the next."""

    def __init__(self) -> None:
        self._then = time.monotonic()
        self._counts: dict[str, int] = {}

    def update(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Hz of each counter since the last call; 0 for one not seen before."""
        now = time.monotonic()
        elapsed = max(now - self._then, 1e-6)
        rates = {
            name: (count - self._counts.get(name, count)) / elapsed
            for name, count in counts.items()
        }
        self._then, self._counts = now, dict(counts)
        return rates
