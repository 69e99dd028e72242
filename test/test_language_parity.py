# SPDX-License-Identifier: Apache-2.0
"""An adopted model says what the same checkpoint says in transformers, family by family."""

from __future__ import annotations

import pytest
import torch
from language_families import FAMILIES, Reference, adopted, checkpoint, feed, tokens_of

from flashrt_ros.models.language import adopt

# Logits of the checkpoints lie within +-100; float32 has 24 bits, and a dozen sums of 64 to 160.
_TOLERANCE = 2e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_256_greedy_tokens_equal_transformers(family: str) -> None:
    """From 200 tokens on: the KV bucket changes from 256 to 512 on the way."""
    model = adopted(family)
    decoder = model.bind(model.arena())
    reference = Reference(checkpoint(family))
    prompt = tokens_of(200)
    feed(decoder, prompt)
    expected = reference.see(prompt)
    torch.testing.assert_close(decoder.logits(), expected, rtol=0, atol=_TOLERANCE)
    said, wanted = [decoder.choose()], [int(expected.argmax())]
    for _ in range(255):
        said.append(decoder.step())
        expected = reference.see(wanted[-1:])
        torch.testing.assert_close(decoder.logits(), expected, rtol=0, atol=_TOLERANCE)
        wanted.append(int(expected.argmax()))
    assert said == wanted
    assert len(set(said)) > 10, "the checkpoint says too little to tell models apart"


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_shorter_than_a_convolution_and_around_a_chunk(family: str) -> None:
    model = adopted(family)
    for length in (1, 2, 63, 64, 65, 129):
        decoder = model.bind(model.arena())
        reference = Reference(checkpoint(family))
        prompt = tokens_of(length, seed=length)
        feed(decoder, prompt)
        torch.testing.assert_close(decoder.logits(), reference.see(prompt), rtol=0, atol=_TOLERANCE)
        token = decoder.choose()
        for _ in range(4):
            expected = reference.see([token])
            token = decoder.step()
            torch.testing.assert_close(decoder.logits(), expected, rtol=0, atol=_TOLERANCE)


@pytest.mark.parametrize("length", [255, 256, 257, 511, 512, 513])
def test_lengths_around_a_bucket_border(length: int) -> None:
    model = adopted("qwen3")
    decoder = model.bind(model.arena())
    reference = Reference(checkpoint("qwen3"))
    prompt = tokens_of(length)
    feed(decoder, prompt)
    expected = reference.see(prompt)
    for _ in range(3):
        torch.testing.assert_close(decoder.logits(), expected, rtol=0, atol=_TOLERANCE)
        token = decoder.choose() if decoder.pending is None else decoder.pending
        expected = reference.see([token])
        decoder.step()


def test_the_last_token_of_the_context_is_the_same() -> None:
    model = adopt(checkpoint("qwen3_5_text"), max_context=100, chunk=64)
    decoder = model.bind(model.arena())
    reference = Reference(checkpoint("qwen3_5_text"))
    prompt = tokens_of(98)
    feed(decoder, prompt)
    expected = reference.see(prompt)
    for _ in range(2):
        token = decoder.pending if decoder.pending is not None else decoder.choose()
        assert token == int(expected.argmax())
        expected = reference.see([token])
        decoder.step()
    assert decoder.room == 0
    torch.testing.assert_close(decoder.logits(), expected, rtol=0, atol=_TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "qwen3_5_text"])
def test_half_precision_differs_by_its_rounding(family: str, dtype: torch.dtype) -> None:
    """As far from float32 as transformers' own attention in the same dtype, or nearer."""
    model = adopt(checkpoint(family), max_context=300, chunk=64, dtype=dtype)
    decoder = model.bind(model.arena())
    prompt = tokens_of(150)
    feed(decoder, prompt)
    exact = Reference(checkpoint(family)).see(prompt)
    theirs = Reference(checkpoint(family), dtype=dtype).see(prompt)
    error = (decoder.logits() - exact).abs().mean()
    assert error < 2 * (theirs - exact).abs().mean()
    assert torch.nn.functional.cosine_similarity(decoder.logits(), theirs, dim=0) > 0.99


def test_two_states_of_one_model_do_not_see_each_other() -> None:
    model = adopted("qwen3_5_text")
    prompts = [tokens_of(90, seed=1), tokens_of(70, seed=2)]
    alone = []
    for prompt in prompts:
        decoder = model.bind(model.arena())
        feed(decoder, prompt)
        alone.append([decoder.choose(), *(decoder.step() for _ in range(20))])
    both = [model.bind(model.arena()) for _ in prompts]
    for decoder, prompt in zip(both, prompts, strict=True):
        feed(decoder, prompt)
    said: list[list[int]] = [[decoder.choose()] for decoder in both]
    for _ in range(20):
        for decoder, tokens in zip(both, said, strict=True):
            tokens.append(decoder.step())
    assert said == alone
