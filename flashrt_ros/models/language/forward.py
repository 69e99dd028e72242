# SPDX-License-Identifier: Apache-2.0
"""Calls a transformers causal language model with our cache, whatever its version calls it."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn
from transformers import Cache


def cache_argument(model: nn.Module) -> str:
    """`cache`, or `past_key_values` before transformers renamed it (5.24)."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def call(
    model: nn.Module,
    ids: Tensor,
    positions: Tensor,
    cache: Cache,
    *,
    keep: int = 1,
) -> Tensor:
    """Logits [1, kept, vocabulary] of one forward pass.

    Args:
        ids: int64 [1, length].
        positions: int64 [1, length].
        keep: how many of the last positions get logits; 0: all.
    """
    options: dict[str, Any] = {cache_argument(model): cache}
    result = model(
        input_ids=ids, position_ids=positions, use_cache=True, logits_to_keep=keep, **options
    )
    logits: Tensor = result.logits
    return logits


def call_hidden(model: nn.Module, ids: Tensor, positions: Tensor, cache: Cache) -> Tensor:
    """Hidden states [1, length, size] after the final norm: what the output layer gets."""
    decoder: Any = model.model
    options: dict[str, Any] = {cache_argument(decoder): cache}
    result = decoder(input_ids=ids, position_ids=positions, use_cache=True, **options)
    hidden: Tensor = result.last_hidden_state
    return hidden
