# SPDX-License-Identifier: Apache-2.0
"""The flow-matching action head.

Source: π0 (Black et al. 2024, arXiv 2410.24164). Noise at t = 0, actions at t = 1, a straight
path x_t = t a + (1 - t) e between them, and a network that learns the velocity a - e. Sampling
integrates it with a few Euler steps. Times are drawn for training with more weight on noise.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TIME_FREQUENCIES = 32


class _Block(nn.Module):
    """A residual MLP whose norm is scaled, shifted and gated by the condition (adaLN-zero)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulate = nn.Linear(width, 3 * width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        nn.init.zeros_(self.modulate.weight)
        nn.init.zeros_(self.modulate.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift, gate = self.modulate(condition).chunk(3, dim=-1)
        inner = self.norm(x) * (1 + scale) + shift
        return x + (1 + gate) * self.down(F.silu(self.up(inner)))


class FlowHead(nn.Module):
    """Velocity of a chunk [batch, length * joints] at time t [batch], given a condition."""

    frequencies: Tensor

    def __init__(self, chunk_size: int, condition_size: int, width: int, blocks: int) -> None:
        super().__init__()
        self.chunk_size = chunk_size
        self.embed = nn.Linear(chunk_size, width)
        self.condition = nn.Sequential(
            nn.Linear(condition_size, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.time = nn.Linear(2 * _TIME_FREQUENCIES, width)
        self.blocks = nn.ModuleList([_Block(width) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, chunk_size)
        frequencies = torch.exp(torch.linspace(math.log(0.5), math.log(100.0), _TIME_FREQUENCIES))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def velocity(self, x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        """condition: the output of `self.condition`, [batch, width]."""
        angles = t[:, None] * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        mixed = F.silu(condition + time)
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, mixed)
        return self.out(self.norm(x))

    def loss(self, chunk: Tensor, condition: Tensor) -> Tensor:
        """Flow-matching loss per sample, [batch], of normalised chunks [batch, chunk_size]."""
        noise = torch.randn_like(chunk)
        # π0 draws s ~ Beta(1.5, 1) of the noise level, so that noisy inputs are seen more often.
        t = 1 - 0.999 * torch.rand(len(chunk), device=chunk.device) ** (1 / 1.5)
        x = t[:, None] * chunk + (1 - t[:, None]) * noise
        error = self.velocity(x, t, self.condition(condition)) - (chunk - noise)
        return error.square().mean(dim=1)

    def sample(self, noise: Tensor, condition: Tensor, steps: int) -> Tensor:
        """Normalised chunks [batch, chunk_size] from standard normal noise of that shape."""
        inner = self.condition(condition)
        x = noise
        for step in range(steps):
            t = torch.full((len(x),), step / steps, dtype=x.dtype, device=x.device)
            x = x + self.velocity(x, t, inner) / steps
        return x
