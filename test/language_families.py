# SPDX-License-Identifier: Apache-2.0
"""Small random checkpoints of every tested family, and what transformers itself makes of them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from flashrt_ros.models.language import Decoder, LanguageModel, adopt
from flashrt_ros.models.language.forward import call

_SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_DELTA_NET: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
_MAMBA: dict[str, Any] = {
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 32,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "qwen3_5_text": _DELTA_NET,
    "qwen3_next": {
        **_DELTA_NET,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "lfm2": {
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "tie_word_embeddings": False,
    },
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64, "mamba_n_heads": 4},
    "bamba": {**_MAMBA, "mamba_n_heads": 8, "attn_layer_indices": [1, 3]},
    "gemma3_text": {
        "sliding_window": 48,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "num_hidden_layers": 3,
        "tie_word_embeddings": False,  # tied and random, it would say the last token again
    },
    "olmo_hybrid": _DELTA_NET,
}


def config_of(family: str, **changes: Any) -> Any:
    return CONFIG_MAPPING[family](**{**_SIZES, **FAMILIES[family], **changes})


def save_checkpoint(
    family: str, folder: Path, *, dtype: Any = torch.float32, **changes: Any
) -> Path:
    """A random checkpoint whose logits are spread, so that greedy decoding is not a tie."""
    torch.manual_seed(len(family) * 7 + 1)
    model = AutoModelForCausalLM.from_config(config_of(family, **changes), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "conv" not in name:
                parameter.normal_(0.0, 0.25 if "embed" not in name else 1.0)
    model.to(dtype).save_pretrained(folder)
    return folder


_folders: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def checkpoint(family: str) -> Path:
    """A checkpoint that all tests of this run share; they only read it."""
    _folders.append(tempfile.TemporaryDirectory())
    return save_checkpoint(family, Path(_folders[-1].name))


@functools.cache
def adopted(family: str, max_context: int = 600, chunk: int = 64) -> LanguageModel:
    """The same, adopted."""
    return adopt(checkpoint(family), max_context=max_context, chunk=chunk)


def feed(decoder: Decoder, tokens: Sequence[int]) -> None:
    """Prefill without a session, in the pieces that a session would take."""
    start = position = decoder.position
    for length in decoder.model.pieces(start, start + len(tokens)):
        decoder.prefill(tokens[position - start : position - start + length])
        position += length


def tokens_of(count: int, seed: int = 0, size: int = 160) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, size, (count,), generator=generator).tolist()


@functools.cache
def speaking_checkpoint() -> Path:
    """A checkpoint with a tokenizer: bytes, a few merges, a chat template."""
    _folders.append(tempfile.TemporaryDirectory())
    folder = Path(_folders[-1].name)
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the robot saw the cup and the robot took the cup"], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = (
        "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant: {% endif %}"
    )
    save_checkpoint("llama", folder, vocab_size=len(fast))
    fast.save_pretrained(folder)
    return folder


@functools.cache
def speaking(max_context: int = 400) -> LanguageModel:
    """The same, adopted."""
    return adopt(speaking_checkpoint(), max_context=max_context, chunk=32)


class Reference:
    """The checkpoint in transformers, unadopted: its own cache, its own attention."""

    def __init__(self, folder: Path, dtype: Any = torch.float32, attention: str = "sdpa") -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=attention
        ).eval()
        self.cache = DynamicCache(config=self.model.config)
        self.position = 0

    @torch.no_grad()
    def see(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after the last token, float32 [vocabulary]."""
        positions = torch.arange(len(tokens))[None] + self.position
        logits = call(self.model, torch.tensor([list(tokens)]), positions, self.cache)
        self.position += len(tokens)
        return logits[0, -1].float()
