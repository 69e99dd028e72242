# SPDX-License-Identifier: Apache-2.0
"""From logits to a token: a function of buffers, so that a restored state samples the same.

Settings, seed and draw counter are buffers. One draw takes one uniform number, a function of
(seed, draw, stream), and walks the cumulative distribution with it.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from flashrt_ros.runtime import Arena, BufferSpec, Role
from flashrt_ros.runtime.errors import InvalidArgument
from flashrt_ros.runtime.random import random_words, stream_id

STREAM = stream_id("language.sample")

SETTINGS = "sampling.settings"
SEED = "random.seed"
DRAW = "random.draw"


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Applied in this order, as `transformers` does.

    Attributes:
        repetition_penalty: logits of tokens in the context are divided by this where positive and
            multiplied where negative (Keskar et al., "CTRL", 2019); 1 is off.
        temperature: logits are divided by it; 0 is greedy, and what follows is then ignored.
        top_k: only the k likeliest; 0 is off.
        top_p: only the smallest set of likeliest tokens with at least this probability together
            (Holtzman et al., "The curious case of neural text degeneration", 2020); 1 is off.
        seed: of the noise, 64-bit; None goes on with the noise of the state.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, value, good, expected in (
            ("temperature", self.temperature, self.temperature >= 0, "0 (greedy) or more"),
            ("top_k", self.top_k, self.top_k >= 0, "0 (off) or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "more than 0, at most 1 (off)"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0,
                "more than 0, 1 is off",
            ),
        ):
            if not (math.isfinite(value) and good):
                raise InvalidArgument(f"{name} is {value}: expected {expected}")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise InvalidArgument(f"seed is {self.seed}: expected a 64-bit number")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """Greedy and nothing else: the largest logit."""
        return self.greedy and self.repetition_penalty == 1


def sampling_specs() -> list[BufferSpec]:
    """The buffers that a draw reads besides logits and context."""
    return [
        BufferSpec(SETTINGS, Role.META, torch.float64, (4,)),
        BufferSpec(SEED, Role.RANDOM, torch.int64, ()),
        BufferSpec(DRAW, Role.RANDOM, torch.int64, ()),
    ]


def write_settings(arena: Arena, sampling: Sampling) -> None:
    """Put the settings into the buffers. A seed starts the noise anew, at draw 0."""
    arena[SETTINGS].copy_(
        torch.tensor(
            [sampling.temperature, sampling.top_k, sampling.top_p, sampling.repetition_penalty],
            dtype=torch.float64,
        )
    )
    if sampling.seed is not None:
        arena[SEED].fill_(signed(sampling.seed))
        arena[DRAW].zero_()


def read_settings(arena: Arena) -> Sampling:
    """The settings in force. Synchronises a CUDA device."""
    temperature, top_k, top_p, penalty = arena[SETTINGS].tolist()
    return Sampling(temperature, int(top_k), top_p, penalty)


def signed(seed: int) -> int:
    """A 64-bit number as int64 holds it."""
    return int(struct.unpack("<q", struct.pack("<Q", seed & (2**64 - 1)))[0])


def draw(arena: Arena, logits: Tensor, history: Tensor, rows: Tensor) -> Tensor:
    """Choose a token by the settings in the buffers and count the draw.

    Args:
        logits: float32 [vocabulary].
        history: int64 [bucket], the context's tokens; only the first `rows` are valid.
        rows: int64 scalar buffer.

    Returns:
        int64 scalar.
    """
    temperature, top_k, top_p, penalty = arena[SETTINGS].unbind()
    size = logits.shape[0]
    scores = logits.double()
    valid = torch.arange(history.shape[0], device=history.device) < rows
    seen = torch.zeros(size + 1, dtype=torch.bool, device=logits.device)
    seen.index_fill_(0, torch.where(valid, history, size), True)
    penalised = torch.where(scores > 0, scores / penalty, scores * penalty)
    scores = torch.where(seen[:size], penalised, scores)
    best = scores.argmax()

    # a stable order: equal logits keep the order of their tokens on every device
    scaled, order = torch.sort(
        scores / torch.where(temperature > 0, temperature, 1.0), descending=True, stable=True
    )
    rank = torch.arange(size, device=logits.device)
    scaled = torch.where((top_k > 0) & (rank >= top_k), float("-inf"), scaled)
    weights = torch.softmax(scaled, dim=0)
    before = weights.cumsum(0) - weights
    weights = torch.where((before < top_p) | (rank == 0), weights, 0.0)
    upto = weights.cumsum(0)
    high, low = random_words(2, seed=arena[SEED], step=arena[DRAW], stream=STREAM).unbind()
    # 53 bits, the middle of their interval: in the open interval (0, 1)
    unit = ((high << 21) | (low >> 11)).double() * 2.0**-53 + 2.0**-54
    index = (upto <= unit * upto[-1]).sum().clamp(max=size - 1)
    arena[DRAW].add_(1)
    return torch.where(temperature > 0, order[index], best)
