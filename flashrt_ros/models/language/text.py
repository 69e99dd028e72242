# SPDX-License-Identifier: Apache-2.0
"""From tokens to text as they come, and stop strings that cross the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# What a tokenizer writes for bytes that are no character yet.
_INCOMPLETE = "\ufffd"


class TextStream:
    """Text of a growing list of tokens.

    A token may end inside a character, and how a token reads may depend on the one before it. So
    text is taken from a short window of tokens that is decoded with and without the newest ones,
    and only once it ends in whole characters. Text that could be the beginning of a stop string is
    held back until it is known not to be.

    Args:
        tokenizer: of the checkpoint; decodes lists of token ids.
        stop: strings that end the text; they are not part of it.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._tokens: list[int] = []
        self._window = 0  # the window starts here
        self._read = 0  # tokens up to here are text already
        self._held = ""  # text that may turn out to begin a stop string
        self.stopped: str | None = None
        """The stop string that came, or None."""

    def push(self, token: int) -> str:
        """The text that is certain now and was not before."""
        if self.stopped is not None:
            return ""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._window : self._read])
        now = self._decode(self._tokens[self._window :])
        if len(now) <= len(before) or now.endswith(_INCOMPLETE):
            return ""
        self._window, self._read = self._read, len(self._tokens)
        return self._release(now[len(before) :])

    def flush(self) -> str:
        """The text that was held back, when no more tokens come."""
        if self.stopped is not None:
            return ""
        before = self._decode(self._tokens[self._window : self._read])
        rest = self._decode(self._tokens[self._window :])[len(before) :]
        self._window = self._read = len(self._tokens)
        text = self._release(rest) + ("" if self.stopped is not None else self._held)
        self._held = ""
        return text

    def _decode(self, tokens: list[int]) -> str:
        if not tokens:
            return ""
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _release(self, text: str) -> str:
        text = self._held + text
        found = [(text.find(stop), stop) for stop in self._stop if stop in text]
        if found:
            # the first to begin; of two that begin together the longer one
            where, self.stopped = min(found, key=lambda pair: (pair[0], -len(pair[1])))
            self._held = ""
            return text[:where]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
