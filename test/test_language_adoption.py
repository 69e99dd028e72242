# SPDX-License-Identifier: Apache-2.0
"""What is adopted, what is refused and why, and how checkpoints may be kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from language_families import adopted, checkpoint, config_of, feed, save_checkpoint, tokens_of
from transformers import AutoModelForCausalLM, T5Config

from flashrt_ros.models.language import adopt
from flashrt_ros.runtime import Kind, Role
from flashrt_ros.runtime.errors import InvalidArgument, NotReady, Unsupported


def refused(folder: Path, config: Any, reason: str) -> None:
    """There are no weights in the folder: the refusal must come before they are looked for."""
    config.save_pretrained(folder)
    with pytest.raises(Unsupported, match=reason):
        adopt(folder, max_context=100)


def test_a_rope_that_remembers_the_longest_sequence_is_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    refused(tmp_path, config_of("llama", rope_parameters=rope), "llama.*'dynamic'.*no buffer")


def test_chunked_attention_is_refused_with_its_layer(tmp_path: Path) -> None:
    config = config_of("qwen3", layer_types=["full_attention"] * 3 + ["chunked_attention"])
    config.attention_chunk_size = 64
    refused(tmp_path, config, "layer 3 .*chunked attention")


def test_encoder_and_decoder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, T5Config(d_model=32, num_layers=1), "t5: encoder and decoder")


def test_a_place_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        adopt(tmp_path / "missing", max_context=100)
    with pytest.raises(FileNotFoundError, match=r"no config\.json and 0 GGUF"):
        adopt(tmp_path, max_context=100)


@pytest.mark.parametrize("wrong", [{"max_context": 0}, {"chunk": 0}, {"dtype": "float8"}])
def test_arguments_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        adopt(checkpoint("llama"), **{"max_context": 100, **wrong})


def test_cuda_graphs_need_a_cuda_device() -> None:
    with pytest.raises(Unsupported, match="CUDA"):
        adopt(checkpoint("llama"), max_context=100, backend="cuda_graph")


def first_logits(model: Any) -> torch.Tensor:
    decoder = model.bind(model.arena())
    feed(decoder, tokens_of(40))
    return decoder.logits().clone()


def test_sharded_single_and_in_memory_checkpoints_are_the_same(tmp_path: Path) -> None:
    expected = first_logits(adopted("qwen3"))
    module = AutoModelForCausalLM.from_pretrained(checkpoint("qwen3"))
    module.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(first_logits(adopt(tmp_path, max_context=600, chunk=64)), expected)
    assert torch.equal(first_logits(adopt(module, max_context=600, chunk=64)), expected)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    folder = save_checkpoint("llama", tmp_path, tie_word_embeddings=True)
    module: Any = adopt(folder, max_context=100).module
    assert module.lm_head.weight.data_ptr() == module.model.embed_tokens.weight.data_ptr()


def test_the_dtype_is_the_checkpoints_unless_asked_for(tmp_path: Path) -> None:
    folder = save_checkpoint("qwen3_5_text", tmp_path, dtype=torch.bfloat16)
    model = adopt(folder, max_context=100)
    kinds = {spec.role: spec.dtype for spec in model.buffer_specs()}
    assert kinds[Role.KV] is torch.bfloat16
    assert kinds[Role.RECURRENT] is torch.float32  # as the model keeps it
    assert model.fingerprint.dtype == "bfloat16"
    assert adopt(folder, max_context=100, dtype="float32").fingerprint.dtype == "float32"


def test_the_closed_set_holds_every_kind_of_state() -> None:
    specs = {spec.name: spec for spec in adopted("qwen3_5_text").buffer_specs()}
    assert specs["layer3.attention.key"].shape == (2, 600, 16)
    assert specs["layer3.attention.key"].kind is Kind.APPEND
    assert specs["layer0.recurrent"].role is Role.RECURRENT
    assert specs["layer0.conv"].role is Role.CONV
    assert {spec.role for spec in specs.values()} == {
        Role.KV,
        Role.RECURRENT,
        Role.CONV,
        Role.RANDOM,
        Role.META,
        Role.IO,
    }


def test_no_buffer_moves_while_plans_run() -> None:
    model = adopted("falcon_h1")
    arena = model.arena()
    decoder = model.bind(arena)
    feed(decoder, tokens_of(70))
    decoder.choose()
    decoder.step()
    assert arena.moved() == []


def test_a_piece_that_does_not_fit_changes_nothing() -> None:
    model = adopt(checkpoint("llama"), max_context=70, chunk=64)
    decoder = model.bind(model.arena())
    with pytest.raises(NotReady):
        decoder.choose()
    feed(decoder, tokens_of(64))
    before = decoder.arena.fixed.clone()
    for tokens in (tokens_of(7), [160], []):
        with pytest.raises(InvalidArgument):
            decoder.prefill(tokens)
        assert torch.equal(decoder.arena.fixed, before)


def test_pieces_begin_at_whole_chunks_wherever_one_starts() -> None:
    model = adopted("llama")
    assert list(model.pieces(0, 200)) == [64, 64, 64, 8]
    assert list(model.pieces(10, 200)) == [54, 64, 64, 8]
    assert list(model.pieces(128, 128)) == []
    assert model.aligned_length(191) == 128
