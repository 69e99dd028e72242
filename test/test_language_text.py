# SPDX-License-Identifier: Apache-2.0
"""Text as it comes: whole characters only, and stop strings wherever tokens end."""

from __future__ import annotations

import pytest
from language_families import speaking

from flashrt_ros.models.language.text import TextStream


def pieces(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    """What a stream releases, one byte a token: the finest cut that there is."""
    tokenizer = speaking().tokenizer
    stream = TextStream(tokenizer, stop)
    released = [stream.push(token) for token in byte_tokens(text)]
    return [*released, stream.flush()], stream


def byte_tokens(text: str) -> list[int]:
    tokenizer = speaking().tokenizer
    tokens = []
    for char in text:
        # one letter never merges with itself, so each byte of it is a token
        tokens += tokenizer(char, add_special_tokens=False)["input_ids"]
    return tokens


@pytest.mark.parametrize(
    "text", ["plain words", "Grüße, 世界! 👩‍🚀 done", "ends in é", "\n\ttabs  two"]
)
def test_the_pieces_are_the_text_and_never_half_a_character(text: str) -> None:
    released, _ = pieces(text)
    assert "".join(released) == text
    assert not any("\ufffd" in piece for piece in released)


def test_bytes_that_never_become_a_character_come_out_at_the_end() -> None:
    tokenizer = speaking().tokenizer
    stream = TextStream(tokenizer)
    first_byte = tokenizer("世", add_special_tokens=False)["input_ids"][0]
    assert stream.push(first_byte) == ""
    assert stream.flush() == "\ufffd"


@pytest.mark.parametrize("stop", ["世界", "界! ", "o 世", "!"])
def test_a_stop_string_across_tokens_ends_the_text_before_it(stop: str) -> None:
    text = "hello 世界! and more"
    released, stream = pieces(text, (stop,))
    assert "".join(released) == text[: text.index(stop)]
    assert stream.stopped == stop


def test_a_stop_string_that_only_begins_is_released_after_all() -> None:
    released, stream = pieces("a STO b STOR STOP c", ("STOP",))
    assert "".join(released) == "a STO b STOR "
    assert stream.stopped == "STOP"
    released, stream = pieces("ends with ST", ("STOP",))
    assert "".join(released) == "ends with ST"
    assert stream.stopped is None


def test_the_earliest_of_several_stop_strings_wins() -> None:
    released, stream = pieces("one two three", ("three", "two", "two t"))
    assert "".join(released) == "one "
    assert stream.stopped == "two"


def test_after_a_stop_nothing_more_comes() -> None:
    stream = TextStream(speaking().tokenizer, ("x",))
    for token in byte_tokens("abxcd"):
        stream.push(token)
    assert stream.push(byte_tokens("e")[0]) == ""
    assert stream.flush() == ""
