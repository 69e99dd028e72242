# SPDX-License-Identifier: Apache-2.0
"""What the backbone carries from tick to tick, as a cache that transformers' blocks can use.

The tensors are given from outside and only ever written in place: the blocks' whole state is
wherever the caller put them, an arena's buffers for instance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb

from flashrt_ros.models.streaming_vla.configuration import TOKENS_PER_TICK, StreamingVLAConfig


def state_shapes(config: StreamingVLAConfig, batch: int = 1) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the float32 state tensors, in the layers' order.

    Keys and values: a ring of the last `window_ticks` ticks, slot = step mod window.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    rows = config.window_ticks * TOKENS_PER_TICK
    heads, size = config.linear_num_heads, config.linear_head_dim
    for index, kind in enumerate(config.layer_types):
        if kind == "full_attention":
            ring = (batch, config.num_key_value_heads, rows, config.head_dim)
            shapes[f"layer{index}.attention.key"] = ring
            shapes[f"layer{index}.attention.value"] = ring
        else:
            shapes[f"layer{index}.delta.recurrent"] = (batch, heads, size, size)
            shapes[f"layer{index}.delta.conv"] = (
                batch, 3 * heads * size, config.linear_conv_kernel,
            )  # fmt: skip
    return shapes


@dataclass(frozen=True)
class _DeltaView:
    """A delta-net's tensors as the blocks of transformers before 5.20 or so look for them."""

    conv_states: tuple[Tensor]
    recurrent_states: tuple[Tensor]
    record_past: bool = False


class TickCache:
    """The cache protocol of transformers' Qwen3.5 blocks over tensors at fixed addresses.

    tensors: what `state_shapes` names; step: int64 scalar tensor, ticks done so far. Only the
    tokens of one tick may be fed between two steps.

    Keys in the ring are stored as if their tick were the present one, and are turned by their age
    when read (rotary embeddings compose). So positions never grow, however long an arm works.
    """

    def __init__(
        self, config: StreamingVLAConfig, tensors: dict[str, Tensor], step: Tensor,
        rotary: Callable[..., tuple[Tensor, Tensor]],
    ) -> None:  # fmt: skip
        self._tensors = tensors
        self._step = step
        window = config.window_ticks
        self._slots = torch.arange(window, device=step.device)
        self._tokens = torch.arange(TOKENS_PER_TICK, device=step.device)
        like = torch.zeros((), device=step.device)
        # Three axes, [3, 1, n]: before transformers 5.24 or so it does not widen them by itself.
        self._turns = rotary(like, (-TOKENS_PER_TICK * self._slots).expand(3, 1, -1))
        self.here = rotary(like, self._tokens.expand(3, 1, -1))
        self.layers = [
            _DeltaView((tensors[f"layer{i}.delta.conv"],), (tensors[f"layer{i}.delta.recurrent"],))
            if kind == "linear_attention"
            else None
            for i, kind in enumerate(config.layer_types)
        ]
        causal = torch.ones(TOKENS_PER_TICK, TOKENS_PER_TICK, device=step.device).tril().bool()
        self._causal = causal

    def ages(self) -> Tensor:
        """Age in ticks of each ring slot, int64 [window]; 0 is the present tick's."""
        return torch.remainder(self._step - self._slots, len(self._slots))

    def mask(self) -> Tensor:
        """Additive attention mask, float32 [1, 1, tokens, window * tokens]."""
        ages = self.ages()
        past = (ages > 0) & (ages <= self._step)
        now = (ages == 0)[:, None] & self._causal[:, None, :]
        seen = (past[:, None] | now).flatten(1)
        return torch.where(seen, 0.0, float("-inf"))[None, None]

    # What transformers' attention calls.
    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the tick's keys and values into its slot; return the whole ring, keys turned."""
        keys = self._tensors[f"layer{layer_idx}.attention.key"]
        values = self._tensors[f"layer{layer_idx}.attention.value"]
        slot = torch.remainder(self._step, len(self._slots))
        rows = slot * TOKENS_PER_TICK + self._tokens
        keys.index_copy_(2, rows, key)
        values.index_copy_(2, rows, value)
        ages = self.ages().repeat_interleave(TOKENS_PER_TICK)
        cos, sin = (table[:, ages] for table in self._turns)
        return apply_rotary_pos_emb(keys, keys, cos, sin)[1], values

    # What transformers' gated delta-net calls.
    def has_previous_state(self, layer_idx: int | None = None, state_idx: int = 0) -> bool:
        """Always: a zero state is the state before the first token."""
        return True

    def is_recording_past(self, layer_idx: int) -> bool:
        """Never: nothing here is rolled back token by token."""
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        return self._tensors[f"layer{layer_idx}.delta.conv"]

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        return self._tensors[f"layer{layer_idx}.delta.recurrent"]

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Append tokens' inputs of the convolution; return state and new ones together."""
        state = self.get_conv_state(layer_idx)
        full = torch.cat([state, conv_states], dim=-1)
        state.copy_(full[..., -state.shape[-1] :])
        return full

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Tensor:
        state = self.get_recurrent_state(layer_idx)
        state.copy_(recurrent_states)
        return state
