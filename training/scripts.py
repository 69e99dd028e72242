# SPDX-License-Identifier: Apache-2.0
"""What happens in an episode: which instruction when, and what the lamp shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashrt_ros.sim.scene import COLOURS, CUE_TICKS

WAIT, HOME, REACH = "wait", "go home", "reach"
DIRECT = tuple(f"reach the {colour} block" for colour in COLOURS)
PHRASES = (WAIT, HOME, REACH, *DIRECT)
EPISODE_TICKS = 100


@dataclass(frozen=True)
class LampEvent:
    """From `tick` of the script on the lamp shows COLOURS[colour] for `ticks` ticks."""

    tick: int
    colour: int
    ticks: int


@dataclass(frozen=True)
class Script:
    """An episode's course.

    skip: ticks of the world before the policy sees anything (the lamp of the reset is then over);
    phrases: indices into PHRASES, one a tick; lamp: what the lamp does beyond the reset's cue;
    guess: index of the colour that "reach" is labelled with while no cue was ever seen.
    """

    skip: int
    phrases: np.ndarray
    lamp: tuple[LampEvent, ...]
    guess: int


class _Writer:
    """Appends segments up to an episode's length."""

    def __init__(self, draw: np.random.Generator, ticks: int) -> None:
        self.draw = draw
        self.ticks = ticks
        self.phrases: list[int] = []
        self.lamp: list[LampEvent] = []

    def say(self, phrase: int, low: int, high: int) -> None:
        self.phrases += [phrase] * int(self.draw.integers(low, high + 1))

    def light(self, delay: int) -> None:
        self.lamp.append(
            LampEvent(
                len(self.phrases) + int(self.draw.integers(0, delay + 1)),
                int(self.draw.integers(4)),
                int(self.draw.integers(4, 13)),
            )
        )

    def other(self, reach: float) -> int:
        """A phrase for a segment; "reach" with the probability given."""
        kind = self.draw.random()
        if kind < reach:
            return 2
        if kind < reach + 0.12:
            return 0
        if kind < reach + 0.24:
            return 1
        return int(self.draw.integers(3, len(PHRASES)))

    def finish(self, skip: int) -> Script:
        phrases = np.array(self.phrases[: self.ticks], dtype=np.int64)
        lamp = tuple(sorted(self.lamp, key=lambda event: event.tick))
        lamp = tuple(e for e in lamp if 1 <= e.tick < self.ticks)
        return Script(skip, phrases, lamp, int(self.draw.integers(4)))


def draw_script(draw: np.random.Generator, ticks: int = EPISODE_TICKS) -> Script:
    """A course at random, of the kinds that the policy shall master."""
    writer = _Writer(draw, ticks)
    kind, skip = draw.random(), 0
    if kind < 0.50:
        _cued(writer)
    elif kind < 0.85:
        if draw.random() < 0.25:
            skip = CUE_TICKS + int(draw.integers(1, 20))
        while len(writer.phrases) < ticks:
            writer.say(writer.other(0.0 if skip else 0.2), 15, 45)
    elif kind < 0.94:
        writer.say(0, 0, 6)
        writer.say(2, ticks, ticks)
        if draw.random() < 0.4:
            writer.lamp.append(
                LampEvent(int(draw.integers(15, 60)), int(draw.integers(4)),
                          int(draw.integers(4, 13)))
            )  # fmt: skip
    else:
        skip = CUE_TICKS + int(draw.integers(1, 20))
        writer.say(writer.other(0.4), 5, 30)
        if draw.random() < 0.5:
            writer.light(3)
        writer.say(2, ticks, ticks)
    return writer.finish(skip)


def _cued(writer: _Writer) -> None:
    """Cue, wait, perhaps an interruption with another cue, reach, perhaps something after."""
    draw = writer.draw
    writer.say(0, 3, 30)
    if draw.random() < 0.65:
        kind = draw.random()
        if draw.random() < 0.7:
            writer.light(3)
        if kind < 0.7:
            writer.say(1, 10, 32)
        else:
            writer.say(writer.other(0.0), 10, 32)
        if draw.random() < 0.3:
            writer.say(0, 3, 15)
    after = draw.random()
    if after < 0.15:
        writer.say(2, 15, 30)
        writer.light(6)
    elif after < 0.35:
        writer.say(2, 10, 30)
        writer.say(writer.other(0.0), 10, 20)
    writer.say(2, writer.ticks, writer.ticks)
