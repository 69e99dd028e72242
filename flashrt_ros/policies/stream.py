# SPDX-License-Identifier: Apache-2.0
"""Commands at a fixed rate: the trajectory under way, sampled on a thread of its own.

The thread keeps to absolute deadlines of a steady clock, so its rate does not drift, and it waits
for no replay. It holds no lock while it sends. That nothing older leaves once a newer command was
given is kept by a grace period instead: whoever gives a command waits, not for a lock, but until a
sample of an older one that is on its way has left.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashrt_ros.policies.output import CommandOutput
from flashrt_ros.policies.trajectory import Trajectory

logger = logging.getLogger(__name__)

# The interpreter hands its lock on after 5 ms of another thread's work: too long for 200 Hz.
_SWITCH_INTERVAL = 0.0005


@dataclass(frozen=True)
class Sample:
    """Where the joints are commanded to be at one moment.

    Attributes:
        command: whose trajectory it is, with its commit id.
        time_ns: the moment, in the engine's clock, ns.
        positions: float64 `[joints]`, rad or m (velocities: rad/s or m/s).
    """

    command: CommandOutput
    time_ns: int
    positions: np.ndarray


@dataclass(frozen=True)
class StreamCounts:
    """How the thread has kept its deadlines so far.

    sent: samples; late: of the wake-ups, those later than a quarter of the period; skipped: periods
    that went by without a sample, because a wake-up was later than that; failed: samples that could
    not be sent; worst_s: the latest wake-up.
    """

    sent: int = 0
    late: int = 0
    skipped: int = 0
    failed: int = 0
    worst_s: float = 0.0


class CommandStream:
    """Sends a sample of the trajectory under way at every deadline.

    Args:
        rate: deadlines a second, Hz.
        clock: the engine's, ns: the time at which the trajectory is sampled.
        send: called on the thread of the stream; must not give commands or call verbs.
        steady: the clock of the deadlines, s.
        sleep: waits for a number of seconds, by that clock.

    Raises:
        ValueError: a rate that is not a number above 0.
    """

    def __init__(
        self,
        rate: float,
        clock: Callable[[], int],
        send: Callable[[Sample], None],
        *,
        steady: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not (math.isfinite(rate) and rate > 0.0):
            raise ValueError(f"command rate is {rate} Hz, expected a number above 0")
        self.period = 1.0 / rate
        self._clock = clock
        self._send = send
        self._steady = steady
        self._sleep = sleep
        self._changed = threading.Condition()
        self._current: tuple[CommandOutput, Trajectory] | None = None
        self._sending: CommandOutput | None = None
        self._last: Sample | None = None
        self._stopping = threading.Event()
        self._counts = StreamCounts()
        self._thread = threading.Thread(target=self._run, name="flashrt-commands", daemon=True)

    # -- any thread ------------------------------------------------------------------------

    @property
    def counts(self) -> StreamCounts:
        """How it goes."""
        return self._counts

    def start(self) -> None:
        """Begin. Nothing is sent before the first command."""
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
        self._thread.start()

    def close(self) -> None:
        """End; nothing is sent after it has returned. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def follow(self, command: CommandOutput) -> None:
        """Sample this command from now on. When it returns, nothing of an older one leaves."""
        trajectory = command.running or command.trajectory
        with self._changed:
            self._current = (command, trajectory)
            self._wait_for_older(command.sequence)

    def void(self, epoch: int) -> None:
        """Send nothing until a command of this epoch or a later one comes."""
        with self._changed:
            if self._current is None or self._current[0].epoch >= epoch:
                return
            self._current = None
            self._wait_for_older(None)

    def finish(self, patience: float) -> None:
        """Send the command under way until it is at rest, then nothing until the next one.

        Without that an output of velocities could end with a last one that is not 0, and a stream
        that is taken up again would begin with where the joints were long ago. `patience`: s.
        """

        def at_rest() -> bool:
            if self._current is None:
                return True
            command, trajectory = self._current
            last, final = self._last, trajectory.at(trajectory.end_ns + 1)
            return (
                last is not None
                and last.command is command
                and np.array_equal(last.positions, final)
            )

        with self._changed:
            self._changed.wait_for(at_rest, timeout=patience)
            self._current = None
            self._wait_for_older(None)

    # -- the thread ------------------------------------------------------------------------

    def _wait_for_older(self, sequence: int | None) -> None:
        """With the condition's lock, which waiting releases."""

        def gone() -> bool:
            sending = self._sending
            return sending is None or (sequence is not None and sending.sequence >= sequence)

        while not self._changed.wait_for(gone, timeout=1.0):
            logger.warning("a command has been on its way for more than a second")

    def _run(self) -> None:
        begin, index = self._steady(), 0
        while not self._stopping.is_set():
            index += 1
            deadline = begin + index * self.period
            self._sleep(max(0.0, deadline - self._steady()))
            late_s = self._steady() - deadline
            skipped = int(late_s / self.period)
            index += skipped  # no burst after a pause
            sent, failed = self._step()
            self._count(sent, failed, late_s, skipped)

    def _step(self) -> tuple[bool, bool]:
        """Send one sample; whether one was sent, and whether sending failed."""
        with self._changed:
            if self._current is None or self._stopping.is_set():
                return False, False
            command, trajectory = self._current
            self._sending = command
        sample = None
        try:
            now_ns = self._clock()
            sample = Sample(command, now_ns, trajectory.at(now_ns))
            self._send(sample)
        except Exception:
            if self._counts.failed == 0:
                logger.exception("a command could not be sent; further ones are only counted")
            return False, True
        finally:
            with self._changed:
                self._sending, self._last = None, sample
                self._changed.notify_all()
        return True, False

    def _count(self, sent: bool, failed: bool, late_s: float, skipped: int) -> None:
        old = self._counts
        self._counts = StreamCounts(
            old.sent + sent,
            old.late + (late_s > self.period / 4),
            old.skipped + skipped,
            old.failed + failed,
            max(old.worst_s, late_s),
        )
