# SPDX-License-Identifier: Apache-2.0
"""Instructions as token ids: beginning of sequence, the text, one newline.

The newline separates the prefix from what follows in PaliGemma's training. LeRobot appends one
where there is none, transformers' processor always; here a text that ends with one keeps it.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

FILE_NAME = "tokenizer.json"


class PromptTokenizer:
    """Instructions to ids.

    tokenizer: of the `tokenizers` library; bos: its token for the beginning of a sequence;
    max_length: most ids of a prompt, bos and newline included; image_token_id: stands for image
    features, so no text may contain it.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, bos: str, max_length: int, image_token_id: int
    ) -> None:
        self.max_length = max_length
        # A tokenizer saved after use may pad or cut, which would hide a prompt's length.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._bos = bos
        bos_id = tokenizer.token_to_id(bos)
        if bos_id is None:
            raise ValueError(f"the tokenizer has no token {bos!r} for the beginning of a sequence")
        added = tokenizer.get_added_tokens_decoder()
        self._reserved = {number for number, token in added.items() if token.special}
        self._reserved |= {image_token_id, bos_id}
        self._unknown = tokenizer.token_to_id("<unk>")

    @staticmethod
    def of_checkpoint(folder: Path, *, max_length: int, image_token_id: int) -> PromptTokenizer:
        """Read `tokenizer.json` and, for the name of the bos token, `tokenizer_config.json`.

        Raises FileNotFoundError where a checkpoint has no tokenizer (LeRobot's name PaliGemma's
        instead of holding it).
        """
        path = folder / FILE_NAME
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} has no {FILE_NAME}: put the one of google/paligemma-3b-pt-224 there, "
                "with its tokenizer_config.json, or pass a tokenizer"
            )
        config = folder / "tokenizer_config.json"
        bos = json.loads(config.read_text()).get("bos_token") if config.exists() else None
        if isinstance(bos, dict):  # an AddedToken
            bos = bos["content"]
        return PromptTokenizer(
            Tokenizer.from_file(str(path)),
            bos=bos or "<bos>",
            max_length=max_length,
            image_token_id=image_token_id,
        )

    def encode(self, text: str) -> list[int]:
        """Ids of an instruction, at most `max_length`.

        Raises ValueError: too long (with both lengths), a reserved token in it, or words that the
        tokenizer does not know (named).
        """
        ended = text if text.endswith("\n") else f"{text}\n"
        # bos is encoded with the text: some tokenizers treat the first segment differently.
        encoding = self._tokenizer.encode(self._bos + ended, add_special_tokens=False)
        ids = list(encoding.ids)
        pairs = list(zip(encoding.tokens, ids, strict=True))[1:]
        found = [token for token, number in pairs if self._is_reserved(number)]
        if found:
            raise ValueError(
                f"instruction {text!r} contains the reserved {', '.join(map(repr, found))}"
            )
        if self._unknown is not None and self._unknown in ids:
            spans = [s for s, i in zip(encoding.offsets, ids, strict=True) if i == self._unknown]
            words = [(self._bos + ended)[start:stop] for start, stop in spans]
            raise ValueError(f"instruction {text!r}: unknown {', '.join(map(repr, words))}")
        if len(ids) > self.max_length:
            raise ValueError(
                f"instruction of {len(ids)} tokens (with beginning and newline) is too long: the "
                f"policy was trained with at most {self.max_length}; shorten {text!r}"
            )
        return ids

    def describe(self) -> str:
        """Text that two tokenizers share only if they encode alike."""
        return f"{self._bos}\0{self.max_length}\0{self._tokenizer.to_str()}"

    def _is_reserved(self, number: int) -> bool:
        return number in self._reserved and number != self._unknown
