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

from flashrt_ros.models.guidance import Lead, guided, taken_out_of_inference

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
        return self.modulated(x, *self.modulate(condition).chunk(3, dim=-1))

    def modulated(self, x: Tensor, scale: Tensor, shift: Tensor, gate: Tensor) -> Tensor:
        """With the condition's part computed."""
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
        mixed = F.silu(condition + self.time_embedding(t))
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, mixed)
        return self.out(self.norm(x))

    def time_embedding(self, t: Tensor) -> Tensor:
        """Times [n] to [n, width]."""
        angles = t[:, None] * self.frequencies
        embedded: Tensor = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        return embedded

    def velocity_of(self, x: Tensor, modulations: Tensor) -> Tensor:
        """`velocity` with time and condition as scale, shift and gate of each block,
        [blocks, 3, batch, width]."""
        x = self.embed(x)
        for block, (scale, shift, gate) in zip(self.blocks, modulations, strict=True):
            x = block.modulated(x, scale, shift, gate)  # type: ignore[operator]
        velocity: Tensor = self.out(self.norm(x))
        return velocity

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

    def sample_led(
        self, noise: Tensor, condition: Tensor, steps: int, target: Tensor, lead: Lead
    ) -> Tensor:
        """`sample` of one chunk, led by real-time chunking towards target [1, length, joints].

        target: normalised, the chunk under way from the new one's begin on; returns its shape.
        """
        noise, condition, target = taken_out_of_inference([noise, condition, target])
        with torch.inference_mode(False), torch.no_grad():
            inner = self.condition(condition)
            x = noise.view_as(target)
            for step in range(steps):
                tau = step / steps
                t = torch.full((1,), tau, dtype=x.dtype, device=x.device)

                def velocity(x: Tensor, t: Tensor = t) -> Tensor:
                    return self.velocity(x.flatten(1), t, inner).view_as(x)

                x = x + guided(velocity, x, tau, target, lead) / steps
        return x
