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
    hidden: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """One forward pass.

    Args:
        ids: int64 [1, length].
        positions: int64 [1, length].
        keep: how many of the last positions get logits; 0: all.
        hidden: also return the last hidden states (after the final norm).

    Returns:
        Logits [1, kept, vocabulary] and hidden states [1, length, size] or None.
    """
    options: dict[str, Any] = {cache_argument(model): cache}
    if hidden:
        options["output_hidden_states"] = True
    result = model(
        input_ids=ids,
        position_ids=positions,
        use_cache=True,
        logits_to_keep=keep,
        **options,
    )
    return result.logits, result.hidden_states[-1] if hidden else None
