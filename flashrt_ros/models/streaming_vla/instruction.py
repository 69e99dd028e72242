# SPDX-License-Identifier: Apache-2.0
"""Instructions to token ids. A word that the policy was not taught is refused, never guessed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import WhitespaceSplit

PAD, UNKNOWN = "<pad>", "<unk>"


class InstructionTokenizer:
    """Whole words, lower case, padded with 0 to a fixed length."""

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        self._tokenizer = tokenizer
        self._length = length
        self._unknown = tokenizer.token_to_id(UNKNOWN)

    @classmethod
    def of_phrases(cls, phrases: Iterable[str], length: int) -> InstructionTokenizer:
        """A tokenizer that knows the words of phrases, ids in order of the alphabet."""
        words = sorted({word for phrase in phrases for word in phrase.lower().split()})
        vocabulary = {word: index for index, word in enumerate([PAD, UNKNOWN, *words])}
        tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
        tokenizer.normalizer = Lowercase()
        tokenizer.pre_tokenizer = WhitespaceSplit()
        return cls(tokenizer, length)

    @classmethod
    def load(cls, folder: Path, length: int) -> InstructionTokenizer:
        """From `tokenizer.json` of a checkpoint."""
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")), length)

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, as Hugging Face lays them out."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "unk_token": UNKNOWN,
            "model_max_length": self._length,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

    @property
    def words(self) -> list[str]:
        """The words that it knows, sorted."""
        return sorted(set(self._tokenizer.get_vocab()) - {PAD, UNKNOWN})

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """`length` ids, 0 where padded.

        Raises ValueError naming the unknown words, or that the text is empty or too long.
        """
        words = text.split()
        if not words:
            raise ValueError("the instruction is empty; say for example 'wait'")
        known = set(self.words)
        unknown = [word for word in words if word.lower() not in known]
        if unknown:
            raise ValueError(
                f"instruction {text!r} has unknown words: {', '.join(map(repr, unknown))}; "
                f"known are {', '.join(self.words)}"
            )
        if len(words) > self._length:
            raise ValueError(
                f"instruction has {len(words)} words, expected at most {self._length}: {text!r}"
            )
        ids = self._tokenizer.encode(" ".join(words)).ids
        return ids + [0] * (self._length - len(ids))
