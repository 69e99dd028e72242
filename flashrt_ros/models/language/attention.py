# SPDX-License-Identifier: Apache-2.0
"""Attention over arena rows, plugged into transformers' registry of attention functions.

transformers lets a model's attention be named. Under the name below a model hands us queries of
the new positions and the rows that our cache layer returned, and asks us for its masks. Nothing of
the model's own code is replaced.

Two shapes decide the speed on a CPU. A decode step has one query a head: the queries of the heads
that share a key head become the rows of one small matrix, so keys and values are read once, not
once a head, and never repeated in memory. A prefill chunk keeps its rows and lets the heads of a
group be the batch, with keys and values broadcast along it by a stride of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION = "capsule_arena"
"""The name under which models ask for this attention (`attn_implementation`). It must not contain
"flash": transformers takes such a name for a flash-attention kernel to be downloaded."""

# What some models pass and this attention computes without: the mask holds the window already, and
# a dropout of an evaluated model is zero. Whatever else is not None would change the result.
_HARMLESS = frozenset(
    {"sliding_window", "is_causal", "position_ids", "cache_position", "cu_seq_lens_q", "use_cache"}
)


def arena_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of `query` [1, heads, length, size] over arena rows.

    Args:
        key: [1, key heads, rows, size], any strides.
        value: [1, key heads, rows, value size], any strides.
        attention_mask: additive [1, 1, length, rows]: minus infinity hides a row.

    Returns:
        [1, length, heads, value size] and None.

    Raises:
        NotImplementedError: the model asks for something that changes attention and is not
            computed here (soft-capped scores, attention sinks, a position bias).
    """
    unknown = [k for k, v in options.items() if v is not None and k not in _HARMLESS and _alters(k)]
    if unknown:
        raise NotImplementedError(f"attention options {', '.join(unknown)} are not computed here")
    heads, length = query.shape[1], query.shape[2]
    key_heads = key.shape[1]
    groups = heads // key_heads
    if length == 1:
        rows = query.reshape(1, key_heads, groups, query.shape[-1])
        out = scaled_dot_product_attention(
            rows, key, value, attn_mask=attention_mask, scale=scaling
        )
        return out.reshape(1, 1, heads, -1), None
    batched = query.view(key_heads, groups, length, -1).transpose(0, 1)
    out = scaled_dot_product_attention(
        batched,
        key.expand(groups, -1, -1, -1),
        value.expand(groups, -1, -1, -1),
        attn_mask=attention_mask,
        scale=scaling,
    )
    return out.permute(2, 1, 0, 3).reshape(1, length, heads, -1), None


def _alters(option: str) -> bool:
    return option in {"softcap", "s_aux", "position_bias", "head_mask", "indices"}


def arena_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    q_offset: Tensor | int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **_: Any,
) -> Tensor:
    """Additive mask [1, 1, q_length, kv_length] by the model's own rule.

    `q_offset` is the position buffer, so the mask follows it at every replay. Rows at or above
    the counter are later than every query, so any causal rule hides them.
    """
    visible = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        allow_is_causal_skip=False,
        use_vmap=use_vmap,
        device=device,
    )
    assert visible is not None  # only a skip returns None
    hidden = torch.zeros((), dtype=dtype, device=device)
    return hidden.expand(visible.shape).masked_fill(~visible, float("-inf"))


AttentionInterface.register(ATTENTION, arena_attention)
AttentionMaskInterface.register(ATTENTION, arena_mask)
