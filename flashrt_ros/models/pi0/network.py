# SPDX-License-Identifier: Apache-2.0
"""π0's two passes as functions over given key and value rows.

The modules are those of transformers' `PI0ForConditionalGeneration`; what is different from its
`sample_actions` is where keys and values live. There a cache grows by the suffix in each step and
is cut again; here the rows are at fixed addresses:

    rows 0 .. n          image features of every camera
    rows n .. n + bucket prompt, right-padded
    then                 1 + chunk rows of the suffix (state, noisy actions), written in each step

Attention is bidirectional within a block and towards earlier blocks (prefix, state, actions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PI0Config, PI0ForConditionalGeneration
from transformers.models.gemma.modeling_gemma import apply_rotary_pos_emb

_KERNELS = ("sdpa", "eager")


@dataclass(frozen=True)
class KeyValues:
    """Keys and values of every layer, each [1, heads, rows, head size]."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]

    def rows(self, start: int, stop: int) -> Rows:
        """A cache whose next rows are `start` .. `stop`."""
        return Rows(self, start, stop)


@dataclass(frozen=True)
class Rows:
    """The cache that Gemma's attention calls: writes `start` .. `stop`, returns 0 .. `stop`."""

    memory: KeyValues
    start: int
    stop: int

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.memory.keys[layer_idx], self.memory.values[layer_idx]
        keys[:, :, self.start : self.stop].copy_(key)
        values[:, :, self.start : self.stop].copy_(value)
        return keys[:, :, : self.stop], values[:, :, : self.stop]


@dataclass(frozen=True)
class LooseRows:
    """The same for a pass that gradients run through: new rows are joined, and nothing is written.

    memory: its rows up to `start` are read.
    """

    memory: KeyValues
    start: int

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.memory.keys[layer_idx], self.memory.values[layer_idx]
        old_keys, old_values = keys[:, :, : self.start], values[:, :, : self.start]
        return torch.cat([old_keys, key], dim=2), torch.cat([old_values, value], dim=2)


class Pi0Network:
    """Prefix and velocity of a π0 model.

    Raises ValueError as `check_config`, and for a model in training mode or with other attention
    than transformers' "sdpa" or "eager".
    """

    def __init__(self, model: PI0ForConditionalGeneration) -> None:
        check_config(model.config)
        _check_model(model)
        self.config = model.config
        self._model = model
        self._vlm = model.model.vlm
        self._expert = model.model.dit
        text = self.config.vlm_config.text_config
        self.layers = int(text.num_hidden_layers)
        self.heads = int(text.num_key_value_heads)
        self.head_size = int(text.head_dim)
        vision = self.config.vlm_config.vision_config
        self.image_size = int(vision.image_size)
        self.tokens_per_image = (self.image_size // int(vision.patch_size)) ** 2
        self.suffix = 1 + int(self.config.chunk_size)
        parameter = next(model.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device
        self._least = torch.finfo(self.dtype).min

    def prefix(self, pixels: Tensor, prompt: Tensor, length: Tensor, memory: KeyValues) -> None:
        """Fill the rows of the prefix.

        pixels: [cameras, 3, size, size] of the model's dtype; prompt: int64 [1, bucket], right-
        padded; length: int64 scalar, its valid ids.
        """
        images = self._vlm.get_image_features(pixels).pooler_output.flatten(0, 1)[None]
        text = self._vlm.get_input_embeddings()(prompt)
        hidden = torch.cat([images.to(text.dtype), text], dim=1)
        count = hidden.shape[1]
        index = torch.arange(count, device=hidden.device)
        mask = self._additive(index < images.shape[1] + length)[None, None, None]
        language = self._vlm.language_model
        rotary = language.rotary_emb(hidden, position_ids=index[None])
        rows = memory.rows(0, count)
        *layers, last = language.layers
        for layer in layers:
            hidden = layer(hidden, attention_mask=mask, cache=rows, position_embeddings=rotary)
        # Nobody reads the last layer's output, only its keys and values.
        rows.update(*_keys_values(last, hidden, rotary), self.layers - 1)

    def velocity(
        self,
        state: Tensor,
        noisy: Tensor,
        time: float,
        valid: Tensor,
        prefix: int,
        memory: KeyValues,
        loose: bool = False,
    ) -> Tensor:
        """The flow's velocity at noisy actions and time, 1 (noise) .. 0 (actions).

        state: [1, max_state_dim], noisy: [1, chunk, max_action_dim], both of the model's dtype;
        valid: int64 scalar, rows of the prefix that are not padding; prefix: rows of the prefix;
        loose: write no rows into memory, so that gradients can run through.
        Returns the shape of `noisy`.
        """
        clock = torch.full((1,), time, dtype=torch.float32, device=noisy.device)
        hidden = self._model.embed_action_time(state, noisy, clock)
        index = torch.arange(self.suffix, device=hidden.device)
        seen = (torch.arange(prefix, device=hidden.device) < valid).expand(self.suffix, prefix)
        own = (index[:, None] > 0) | (index[None] == 0)  # the state does not see the actions
        mask = self._additive(torch.cat([seen, own], dim=1))[None, None]
        rotary = self._expert.rotary_emb(hidden, position_ids=(valid + index)[None])
        rows: Rows | LooseRows = memory.rows(prefix, prefix + self.suffix)
        if loose:
            rows = LooseRows(memory, prefix)
        for layer in self._expert.layers:
            hidden = layer(hidden, attention_mask=mask, cache=rows, position_embeddings=rotary)
        hidden = self._expert.norm(hidden)
        return self._model.action_out_proj(hidden[:, 1:])

    def _additive(self, seen: Tensor) -> Tensor:
        """0 where seen, the least number elsewhere: both of transformers' kernels take it."""
        zero = torch.zeros((), dtype=self.dtype, device=seen.device)
        return zero.masked_fill(~seen, self._least)


def _keys_values(
    layer: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """What a Gemma layer's attention would hand to its cache, [1, heads, rows, head size] each."""
    attention = layer.self_attn
    normed = layer.input_layernorm(hidden)
    shape = (*hidden.shape[:-1], -1, attention.head_dim)
    key = attention.k_proj(normed).view(shape).transpose(1, 2)
    value = attention.v_proj(normed).view(shape).transpose(1, 2)
    return apply_rotary_pos_emb(key, key, *rotary)[1], value


def check_config(config: PI0Config) -> None:
    """Raise ValueError for parts that this scheme is not made for, naming what differs."""
    vlm, expert = config.vlm_config, config.dit_config
    text = vlm.text_config
    for part, kind, known in (
        ("vlm_config", vlm.model_type, "paligemma"),
        ("vlm_config.text_config", text.model_type, "gemma"),
        ("vlm_config.vision_config", vlm.vision_config.model_type, "siglip_vision_model"),
        ("dit_config", expert.model_type, "gemma"),
    ):
        if kind != known:
            raise ValueError(f"pi0: {part} is of type {kind!r}, only {known!r} is supported")
    for field in ("num_hidden_layers", "num_key_value_heads", "head_dim"):
        if getattr(text, field) != getattr(expert, field):
            raise ValueError(
                f"pi0: {field} is {getattr(text, field)} in the language model and "
                f"{getattr(expert, field)} in the action expert, which read the same rows"
            )
    rope = {str(c.rope_parameters.get("rope_type", "default")) for c in (text, expert)}
    if rope != {"default"}:
        raise ValueError(f"pi0: rope types {sorted(rope)}, only 'default' is supported")


def _check_model(model: PI0ForConditionalGeneration) -> None:
    if model.training:
        raise ValueError("pi0: the model is in training mode; call eval() before adopting it")
    text, expert = model.config.vlm_config.text_config, model.config.dit_config
    kernels = {str(part._attn_implementation) for part in (text, expert)}
    if not kernels <= set(_KERNELS):
        raise ValueError(
            f"pi0: attention is {' and '.join(sorted(kernels))}, which takes other masks; load the "
            f"model with attn_implementation {' or '.join(map(repr, _KERNELS))}"
        )
