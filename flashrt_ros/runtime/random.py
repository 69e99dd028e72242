# SPDX-License-Identifier: Apache-2.0
"""Noise that is a function of (seed, step, stream) and of nothing else.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011: a keyed bijection of a 128-bit counter, ten rounds. There is no generator to save, so a
restored state samples what it would have sampled.

Words of the counter: index of the block of four, stream, step (low, high); the key is the seed.
Integers are exact in torch's int64. The normals use only float64 operations that IEEE 754 rounds
correctly (+, -, *, /, square root), so they too are the same bits on every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)  # the paper's constants for 4x32
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def stream_id(name: str) -> int:
    """32-bit number of a stream: the first four bytes (little endian) of SHA-256 of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")


def philox4x32(counter: Sequence[Tensor], key: Sequence[Tensor]) -> list[Tensor]:
    """Four words for a counter of four words and a key of two.

    Every word is an int64 tensor with a value in 0 .. 2**32 - 1; shapes broadcast.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for turn in range(_ROUNDS):
        if turn:
            k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
        # int64 products wrap modulo 2**64: the low 64 bits are those of the unsigned product
        p0, p1 = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
    return [c0, c1, c2, c3]


def random_words(
    count: int,
    *,
    seed: int | Tensor,
    step: int | Tensor,
    stream: str | int,
    device: str | torch.device | None = None,
) -> Tensor:
    """`count` words, int64 [count], each in 0 .. 2**32 - 1.

    `seed` and `step` are 64-bit: numbers, or int64 scalar tensors on the device, which is what a
    captured plan must pass so that a replay reads them from their buffers.
    """
    if device is None:
        device = step.device if isinstance(step, Tensor) else "cpu"
    blocks = -(-count // 4)
    index = torch.arange(blocks, dtype=torch.int64, device=device)
    number = stream_id(stream) if isinstance(stream, str) else int(stream) & _MASK
    words = philox4x32(
        [index & _MASK, torch.full_like(index, number), *_halves(step, index)],
        [*_halves(seed, index)],
    )
    return torch.stack(words, dim=1).flatten()[:count]


def uniform(
    shape: Sequence[int],
    *,
    seed: int | Tensor,
    step: int | Tensor,
    stream: str | int,
    device: str | torch.device | None = None,
) -> Tensor:
    """Float32 of `shape` in the open interval (0, 1): (k + 1/2) / 2**23 with k from 23 bits."""
    words = random_words(math.prod(shape), seed=seed, step=step, stream=stream, device=device)
    return (((words >> 9).double() + 0.5) * 2.0**-23).float().view(tuple(shape))


def normal(
    shape: Sequence[int],
    *,
    seed: int | Tensor,
    step: int | Tensor,
    stream: str | int,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Standard normal values of `shape` by Box and Muller's transform, computed in float64."""
    count = math.prod(shape)
    words = random_words(count + count % 2, seed=seed, step=step, stream=stream, device=device)
    unit = (words.double() + 0.5) * 2.0**-32
    radius = torch.sqrt(_log(unit[0::2]) * -2.0)
    cosine, sine = _circle(unit[1::2])
    pairs = torch.stack((radius * cosine, radius * sine), dim=1)
    return pairs.flatten()[:count].to(dtype).view(tuple(shape))


def _halves(value: int | Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Low and high 32 bits of a 64-bit number, shaped like `like`."""
    if not isinstance(value, Tensor):
        unsigned = int(value) & 0xFFFFFFFFFFFFFFFF
        return (
            torch.full_like(like, unsigned & _MASK),
            torch.full_like(like, unsigned >> 32),
        )
    whole = value.to(device=like.device, dtype=torch.int64).reshape(()).expand_as(like)
    return whole & _MASK, (whole >> 32) & _MASK


def _log(x: Tensor) -> Tensor:
    """Natural logarithm of normal float64 > 0 by x = m * 2**e and the series of artanh."""
    bits = x.view(torch.int64)
    exponent = ((bits >> 52) - 1023).double()
    mantissa = ((bits & 0xFFFFFFFFFFFFF) | (1023 << 52)).view(torch.float64)
    large = mantissa > math.sqrt(2.0)
    mantissa = torch.where(large, mantissa * 0.5, mantissa)
    exponent = torch.where(large, exponent + 1.0, exponent)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)  # |ratio| < 0.172
    square = ratio * ratio
    series = torch.full_like(square, 1.0 / 23.0)
    for odd in range(21, 0, -2):
        series = series * square + 1.0 / odd
    return exponent * math.log(2.0) + ratio * series * 2.0


def _circle(turns: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of 2 * pi * turns for float64 in [0, 1), by Taylor on an eighth turn."""
    quarter = torch.floor(turns * 4.0 + 0.5)
    angle = (turns - quarter * 0.25) * (2.0 * math.pi)  # within pi/4 of zero
    square = angle * angle
    cosine = torch.full_like(square, 1.0 / math.factorial(18))
    sine = torch.full_like(square, 1.0 / math.factorial(17))
    for order in range(16, -1, -2):
        cosine = cosine * -square + 1.0 / math.factorial(order)
    for order in range(15, 0, -2):
        sine = sine * -square + 1.0 / math.factorial(order)
    sine = sine * angle
    turn = quarter.long() & 3
    swap = (turn & 1).bool()
    c, s = torch.where(swap, sine, cosine), torch.where(swap, cosine, sine)
    c = torch.where((turn == 1) | (turn == 2), -c, c)
    s = torch.where((turn == 2) | (turn == 3), -s, s)
    return c, s
