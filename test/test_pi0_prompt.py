# SPDX-License-Identifier: Apache-2.0
"""Instructions as ids: beginning, text, one newline, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_pi0 import IMAGE_TOKEN, WORDS, tiny_tokenizer

from flashrt_ros.models.pi0.prompt import PromptTokenizer


@pytest.fixture
def prompt() -> PromptTokenizer:
    return PromptTokenizer(tiny_tokenizer(), bos="<bos>", max_length=8, image_token_id=IMAGE_TOKEN)


def ids(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


def test_beginning_text_newline(prompt: PromptTokenizer) -> None:
    assert prompt.encode("pick up") == ids("<bos>", "pick", "up", "\n")
    assert prompt.encode("") == ids("<bos>", "\n")


def test_a_newline_at_the_end_is_not_doubled(prompt: PromptTokenizer) -> None:
    assert prompt.encode("pick up\n") == prompt.encode("pick up")
    assert prompt.encode("pick\nup") == ids("<bos>", "pick", "\n", "up", "\n")


def test_the_longest_prompt_fits_and_one_more_is_refused(prompt: PromptTokenizer) -> None:
    assert len(prompt.encode(" ".join(["red"] * 6))) == 8
    with pytest.raises(ValueError, match=r"9 tokens .* at most 8"):
        prompt.encode(" ".join(["red"] * 7))


def test_unknown_words_are_named(prompt: PromptTokenizer) -> None:
    with pytest.raises(ValueError, match="unknown 'fold', 'towel'"):
        prompt.encode("fold the towel")


@pytest.mark.parametrize("reserved", ["<image>", "<eos>", "<pad>", "<bos>"])
def test_reserved_tokens_are_refused(prompt: PromptTokenizer, reserved: str) -> None:
    with pytest.raises(ValueError, match=f"reserved '{reserved}'"):
        prompt.encode(f"pick {reserved} up")


def test_a_saved_tokenizer_that_pads_or_cuts_does_neither_here(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.enable_padding(length=20)
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    prompt = PromptTokenizer.of_checkpoint(tmp_path, max_length=8, image_token_id=IMAGE_TOKEN)
    assert prompt.encode("pick up the red") == ids("<bos>", "pick", "up", "the", "red", "\n")


def test_the_beginning_is_named_by_the_checkpoint(tmp_path: Path) -> None:
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": {"content": "<eos>"}}))
    prompt = PromptTokenizer.of_checkpoint(tmp_path, max_length=8, image_token_id=IMAGE_TOKEN)
    assert prompt.encode("red") == ids("<eos>", "red", "\n")
    config.write_text(json.dumps({"bos_token": "[CLS]"}))
    with pytest.raises(ValueError, match=r"no token '\[CLS\]'"):
        PromptTokenizer.of_checkpoint(tmp_path, max_length=8, image_token_id=IMAGE_TOKEN)


def test_a_checkpoint_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        PromptTokenizer.of_checkpoint(tmp_path, max_length=8, image_token_id=IMAGE_TOKEN)
