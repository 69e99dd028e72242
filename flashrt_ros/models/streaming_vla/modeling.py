# SPDX-License-Identifier: Apache-2.0
"""The network: encoder, backbone of Qwen3.5 blocks, action head; whole sequences and single ticks.

Each tick is three tokens: instruction, image, state. The backbone's output at the state token
conditions the action head.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from flashrt_ros.models.guidance import Lead
from flashrt_ros.models.streaming_vla.action_head import FlowHead
from flashrt_ros.models.streaming_vla.configuration import TOKENS_PER_TICK, StreamingVLAConfig
from flashrt_ros.models.streaming_vla.state import TickCache
from flashrt_ros.models.streaming_vla.vision import VisionEncoder

# The blocks' argument for the cache was renamed within transformers 5.
_CACHE_ARGUMENT = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(qwen.Qwen3_5DecoderLayer.forward).parameters
)


class StreamingVLA(nn.Module):
    """A policy over normalised values: see `normalisation.py` for radians.

    features: [batch, ticks, feature_size] of the encoder; instruction: int64 [batch, ticks,
    words], 0 pads; state: [batch, ticks, joints], normalised joint positions.
    """

    def __init__(self, config: StreamingVLAConfig) -> None:
        super().__init__()
        self.config = config
        text = config.text_config()
        hidden, joints = config.hidden_size, len(config.joint_names)
        self.vision = VisionEncoder(config)
        self.words = nn.Embedding(config.vocab_size, hidden, padding_idx=0)
        self.places = nn.Parameter(torch.randn(config.instruction_length, hidden) * 0.02)
        self.instruction_in = nn.Sequential(
            nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden)
        )
        self.image_in = nn.Linear(self.vision.feature_size, hidden)
        self.state_in = nn.Linear(joints, hidden)
        self.layers = nn.ModuleList(
            [qwen.Qwen3_5DecoderLayer(text, i) for i in range(len(config.layer_types))]
        )
        self.norm = qwen.Qwen3_5RMSNorm(hidden, eps=text.rms_norm_eps)
        self.rotary = qwen.Qwen3_5TextRotaryEmbedding(text)
        self.goal = nn.Linear(hidden, joints)
        self.head = FlowHead(
            config.chunk_length * joints, hidden + 2 * joints, config.action_width,
            config.action_blocks,
        )  # fmt: skip
        self._begin_with_long_memory()

    def _begin_with_long_memory(self) -> None:
        """Decays of the delta-nets' heads from a few ticks to thousands.

        As transformers initialises them, a state halves within a token or two; the cue must last
        for hundreds.
        """
        for layer in self.layers:
            if hasattr(layer, "linear_attn"):
                delta: Any = layer.linear_attn
                heads = delta.A_log.shape[0]
                rates = torch.logspace(math.log10(0.003), math.log10(0.5), heads)
                delta.A_log.data.copy_(rates.log())
                delta.dt_bias.data.fill_(-2.0)

    def tokens(self, features: Tensor, instruction: Tensor, state: Tensor) -> Tensor:
        """The backbone's inputs, [batch, ticks * 3, hidden]."""
        used = (instruction != 0).unsqueeze(-1)
        words = (self.words(instruction) + self.places) * used
        said = words.sum(dim=-2) / used.sum(dim=-2).clamp(min=1)
        parts = [self.instruction_in(said), self.image_in(features), self.state_in(state)]
        return torch.stack(parts, dim=2).flatten(1, 2)

    def forward(self, features: Tensor, instruction: Tensor, state: Tensor) -> Tensor:
        """Whole sequences from an empty state: what training runs. Returns [batch, ticks, hidden].

        The same as `tick` called `ticks` times, to rounding.
        """
        x = self.tokens(features, instruction, state)
        positions = torch.arange(x.shape[1], device=x.device)
        embeddings = self.rotary(x, positions.expand(3, 1, -1))
        ticks = positions // TOKENS_PER_TICK
        seen = (positions[:, None] >= positions) & (
            ticks[:, None] - ticks < self.config.window_ticks
        )
        mask = torch.where(seen, 0.0, float("-inf"))[None, None]
        for layer, kind in zip(self.layers, self.config.layer_types, strict=True):
            masked = mask if kind == "full_attention" else None
            x = layer(x, position_embeddings=embeddings, attention_mask=masked)
        return self.norm(x)[:, TOKENS_PER_TICK - 1 :: TOKENS_PER_TICK]

    def tick(
        self, features: Tensor, instruction: Tensor, state: Tensor, cache: TickCache
    ) -> Tensor:
        """One tick: [batch, feature_size], [batch, words], [batch, joints] -> [batch, hidden].

        Reads and writes the cache's tensors; the caller raises the step afterwards.
        """
        x = self.tokens(features[:, None], instruction[:, None], state[:, None])
        carried = {_CACHE_ARGUMENT: cache}
        mask = cache.mask()
        for layer, kind in zip(self.layers, self.config.layer_types, strict=True):
            if kind == "full_attention":
                x = layer(x, position_embeddings=cache.here, attention_mask=mask, **carried)
                continue
            # Token by token, the blocks take their recurrent rule, which costs less for three
            # tokens than the chunked one, padded to 64.
            outs = [
                layer(x[:, i : i + 1], position_embeddings=cache.here, **carried)
                for i in range(TOKENS_PER_TICK)
            ]
            x = torch.cat(outs, dim=1)
        return self.norm(x[:, -1])

    def condition(self, hidden: Tensor, state: Tensor) -> Tensor:
        """What the action head is told, [..., hidden + 2 * joints]."""
        return torch.cat([hidden, state, self.goal(hidden) - state], dim=-1)

    def act(self, hidden: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        """Normalised chunk [batch, length, joints], relative to the joints, from normal noise."""
        condition = self.condition(hidden, state)
        begin = noise.flatten(1) * self.config.noise_scale
        chunk = self.head.sample(begin, condition, self.config.flow_steps)
        return chunk.view_as(noise)

    def act_led(
        self, hidden: Tensor, state: Tensor, noise: Tensor, target: Tensor, lead: Lead
    ) -> Tensor:
        """`act` for one robot, led towards target, a normalised chunk [1, length, joints]."""
        condition = self.condition(hidden, state)
        begin = noise.flatten(1) * self.config.noise_scale
        return self.head.sample_led(begin, condition, self.config.flow_steps, target, lead)
