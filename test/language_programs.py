# SPDX-License-Identifier: Apache-2.0
"""Adopted models as the runtime's audits take them; also imported in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from language_families import adopted, feed, tokens_of

from flashrt_ros.models.language import Decoder, Sampling
from flashrt_ros.runtime import Arena, BufferSpec, Fingerprint


class LanguageProgram:
    """A few tokens in, a few sampled tokens out, at each step."""

    def __init__(self, family: str) -> None:
        torch.set_num_threads(1)
        self.model = adopted(family)
        self.decoder: Decoder | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        return self.model.fingerprint

    def buffer_specs(self) -> Sequence[BufferSpec]:
        return self.model.buffer_specs()

    def bind(self, arena: Arena, *, seed: int) -> None:
        self.decoder = self.model.bind(arena, seed=seed)
        self.decoder.set_sampling(Sampling(temperature=1.2, top_k=50, repetition_penalty=1.2))

    def step(self, index: int) -> None:
        decoder = self.decoder
        assert decoder is not None
        feed(decoder, tokens_of(3 + index % 4, seed=index))
        decoder.choose()
        decoder.step()
        decoder.step()


def hybrid() -> LanguageProgram:
    return LanguageProgram("qwen3_5_text")


def side_by_side() -> LanguageProgram:
    return LanguageProgram("falcon_h1")
