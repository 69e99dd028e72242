# SPDX-License-Identifier: Apache-2.0
"""Commands at a rate: what is sampled, when, and that nothing older leaves after an answer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from execution_rig import MS, Bench, wait_for

from flashrt_ros.policies import CommandOutput, Motion, Trajectory
from flashrt_ros.policies.stream import CommandStream, Sample


def command(sequence: int, epoch: int = 0, start_ns: int = 0) -> CommandOutput:
    """A ramp of one joint from 0 to 1 in a tenth of a second."""
    ramp = Trajectory(start_ns, np.array([0.1]), np.array([[1.0]]), np.zeros(1))
    return CommandOutput(epoch, 0, 0, sequence, ramp, False, running=ramp)


class Outbox:
    """Keeps samples; a send may take a while, so that others meet it under way."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.dawdle = False
        self._random = random.Random(7)

    def send(self, sample: Sample) -> None:
        if self.dawdle:
            time.sleep(self._random.random() * 0.001)
        self.samples.append(sample)


@pytest.fixture
def streaming() -> Iterator[tuple[CommandStream, Outbox]]:
    outbox = Outbox()
    stream = CommandStream(1000.0, lambda: 50 * MS, outbox.send)
    stream.start()
    yield stream, outbox
    stream.close()


def test_nothing_is_sent_before_the_first_command(
    streaming: tuple[CommandStream, Outbox],
) -> None:
    stream, outbox = streaming
    time.sleep(0.02)
    assert outbox.samples == []
    stream.follow(command(1))
    wait_for(lambda: len(outbox.samples) > 3)
    assert {float(sample.positions[0]) for sample in outbox.samples} == {0.5}
    assert {sample.time_ns for sample in outbox.samples} == {50 * MS}


def test_nothing_older_leaves_once_a_newer_command_was_given(
    streaming: tuple[CommandStream, Outbox],
) -> None:
    stream, outbox = streaming
    outbox.dawdle = True
    marks = []
    for sequence in range(1, 400):
        stream.follow(command(sequence, epoch=sequence))
        marks.append(len(outbox.samples))
        if sequence % 3 == 0:
            time.sleep(0.001)
    wait_for(lambda: len(outbox.samples) > marks[-1])
    assert len(outbox.samples) > 100  # so that many were met under way
    for sequence, mark in enumerate(marks, start=1):
        late = [s for s in outbox.samples[mark:] if s.command.epoch < sequence]
        assert late == [], f"{len(late)} samples of an older epoch after command {sequence}"


def test_a_void_epoch_is_silent_until_a_command_of_its_own(
    streaming: tuple[CommandStream, Outbox],
) -> None:
    stream, outbox = streaming
    stream.follow(command(1, epoch=3))
    wait_for(lambda: len(outbox.samples) > 0)
    stream.void(3)  # its own epoch: nothing changes
    count = len(outbox.samples)
    wait_for(lambda: len(outbox.samples) > count + 2)
    stream.void(4)
    count = len(outbox.samples)
    time.sleep(0.02)
    assert len(outbox.samples) == count
    stream.follow(command(2, epoch=4))
    wait_for(lambda: len(outbox.samples) > count)


def test_nothing_is_sent_after_it_was_closed() -> None:
    outbox = Outbox()
    stream = CommandStream(1000.0, lambda: 0, outbox.send)
    stream.start()
    stream.follow(command(1))
    wait_for(lambda: len(outbox.samples) > 0)
    stream.close()
    count = len(outbox.samples)
    time.sleep(0.01)
    assert len(outbox.samples) == count
    stream.close()


def test_a_send_that_fails_is_counted_and_does_not_end_the_stream() -> None:
    sent: list[Sample] = []

    def send(sample: Sample) -> None:
        sent.append(sample)
        if len(sent) == 2:
            raise RuntimeError("the middleware is gone")

    stream = CommandStream(1000.0, lambda: 0, send)
    stream.start()
    stream.follow(command(1))
    wait_for(lambda: stream.counts.sent >= 4)
    stream.close()
    assert stream.counts.failed == 1


class Steady:
    """A clock that only sleeping moves: each sleep lasts a little too long, one of them much."""

    def __init__(self, ends: int) -> None:
        self.now = 100.0
        self.sleeps = 0
        self.ended = threading.Event()
        self._ends = ends

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.now += seconds + (0.033 if self.sleeps == 10 else 0.0005)
        if self.sleeps >= self._ends:
            self.ended.set()
            time.sleep(0.001)


def test_deadlines_are_absolute_so_the_rate_does_not_drift_and_a_pause_brings_no_burst() -> None:
    steady, moments = Steady(ends=60), []

    def send(sample: Sample) -> None:
        if not steady.ended.is_set():
            moments.append(steady.now)

    stream = CommandStream(100.0, lambda: 0, send, steady=lambda: steady.now, sleep=steady.sleep)
    stream.follow(command(1))
    stream.start()
    assert steady.ended.wait(60.0)
    stream.close()
    # 0.5 ms late each time, never more with every period: an offset, not a drift.
    offsets = np.mod(np.array(moments) - 100.0, 0.01)
    np.testing.assert_allclose(np.delete(offsets, 9), 0.0005, atol=1e-9)
    assert stream.counts.skipped == 3
    assert stream.counts.worst_s == pytest.approx(0.033)
    assert stream.counts.late == 1


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="command rate is"):
        CommandStream(rate, lambda: 0, lambda sample: None)


def test_an_engines_answer_to_an_interrupt_ends_the_older_epoch_in_the_stream_too() -> None:
    made = Bench()
    outbox = Outbox()
    outbox.dawdle = True
    stream = CommandStream(1000.0, lambda: made.now_ns, outbox.send)
    made.follower = stream.follow
    stream.start()
    try:
        for turn in range(60):
            made.tick(turn)
            count = len(outbox.samples)
            wait_for(lambda count=count: len(outbox.samples) > count)
            made.call(made.engine.interrupt)
            mark, epoch = len(outbox.samples), made.engine.status.epoch
            wait_for(lambda mark=mark: len(outbox.samples) > mark + 1)
            held = outbox.samples[mark:]
            assert {sample.command.epoch for sample in held} == {epoch}
            assert len({sample.positions.tobytes() for sample in held}) == 1
            made.call(made.engine.resume, Motion.REPLAN)
    finally:
        stream.close()
        made.close()
