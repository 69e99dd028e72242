# SPDX-License-Identifier: Apache-2.0
"""Language models of a measurable size, and what transformers makes of the same weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, Qwen3_5TextConfig

from ..models.language import Generator, LanguageModel, Limits, PrefixRegistry, Reuse, adopt
from ..models.language.forward import call
from ..runtime import Session


def hybrid_config(quick: bool) -> Qwen3_5TextConfig:
    """A hybrid of three recurrent layers to one of attention: 60 M parameters, or 1 M."""
    size = 64 if quick else 512
    period = ["linear_attention"] * 3 + ["full_attention"]
    return Qwen3_5TextConfig(
        vocab_size=1000 if quick else 32000,
        hidden_size=size,
        intermediate_size=3 * size,
        num_hidden_layers=4 if quick else 12,
        layer_types=period * (1 if quick else 3),
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=size // 8,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=size // 8,
        linear_value_head_dim=size // 8,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )


def random_module(config: Any, dtype: torch.dtype) -> Any:
    """A model of random weights, the same ones each time."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


class Pair:
    """One set of weights, adopted and not."""

    def __init__(self, module: Any, *, max_context: int, device: str, **options: Any) -> None:
        module = module.to(device)
        plain: Any = AutoModelForCausalLM.from_config(
            copy.deepcopy(module.config), dtype=module.dtype, attn_implementation="sdpa"
        )
        plain.load_state_dict(module.state_dict(), assign=True)  # the same tensors, not copies
        plain.tie_weights()
        self.plain: Any = plain.to(device).eval()
        self.model: LanguageModel = adopt(module, max_context=max_context, device=device, **options)
        self.device = device
        self.parameters = sum(p.numel() for p in module.parameters())

    def generator(self) -> Generator:
        """A live state of the adopted model that remembers prefixes."""
        arena = self.model.arena()
        decoder = self.model.bind(arena)
        session = Session(arena, fingerprint=self.model.fingerprint)
        return Generator(decoder, session, prefixes=PrefixRegistry(session))

    def cache(self) -> DynamicCache:
        """A fresh cache for the model that is not adopted."""
        return DynamicCache(config=self.plain.config)

    @torch.no_grad()
    def plain_first_token(
        self, tokens: Sequence[int], cache: DynamicCache | None = None, seen: int = 0
    ) -> int:
        """The first token after `tokens`; the cache (None: a fresh one) has seen `seen` of them."""
        cache = self.cache() if cache is None else cache
        ids = torch.tensor([list(tokens[seen:])], device=self.device)
        positions = torch.arange(seen, len(tokens), device=self.device)[None]
        return int(call(self.plain, ids, positions, cache)[0, -1].argmax())


def first_token(generator: Generator, tokens: Sequence[int], reuse: Reuse) -> int:
    """The first token after a prompt, from `start` to the token on the host."""
    generator.start(tokens, limits=Limits(1, stop_tokens=()), reuse=reuse)
    said = [token for step in generator.steps() for token in step.tokens]
    return said[0]


def random_tokens(count: int, size: int, seed: int) -> list[int]:
    """Token ids of a prompt."""
    made = torch.randint(0, size, (count,), generator=torch.Generator().manual_seed(seed))
    found: list[int] = made.tolist()
    return found


def reset_peak() -> None:
    """Start to count this process's peak memory anew, where Linux can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def peak_mib() -> int:
    """Peak resident memory of this process, MiB; 0 where it is not known."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) // 1024
    except OSError:
        pass
    return 0
