# SPDX-License-Identifier: Apache-2.0
"""A transformers language model adopted: its weights, and what a live state of it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from flashrt_ros.models.language.decoder import Decoder, token_specs
from flashrt_ros.models.language.geometry import LayerGeometry
from flashrt_ros.models.language.mtp import MtpHead, head_geometry, head_specs
from flashrt_ros.runtime import Arena, Backend, BufferSpec, Fingerprint

SMALLEST_BUCKET = 256


@dataclass(frozen=True)
class LanguageModel:
    """Weights and geometry; immutable, so any number of live states can share it.

    Attributes:
        module: the transformers model (nn.Module), on its device, in evaluation mode.
        geometry: the buffers of each decoder layer.
        fingerprint: what capsules of its states are bound to.
        vocabulary: number of logits.
        max_context: tokens that a state has room for.
        chunk: tokens of a whole prefill piece.
        stop_tokens: that end a text, by the checkpoint.
        tokenizer: of the checkpoint, or None when it has none.
        mtp: the head that drafts tokens, or None.
        draft_tokens: how many it drafts at a time.
        native: decode steps run in `kernels/decode.cpp`.
        kernels: what decode steps run in, and why not in something faster.
    """

    module: Any
    geometry: tuple[LayerGeometry, ...]
    fingerprint: Fingerprint
    vocabulary: int
    max_context: int
    chunk: int
    backend: Backend
    device: torch.device
    stop_tokens: tuple[int, ...] = ()
    tokenizer: Any = None
    mtp: MtpHead | None = None
    draft_tokens: int = 0
    native: bool = False
    kernels: str = "torch"

    # -- binding

    def buffer_specs(self) -> list[BufferSpec]:
        """The closed set of one live state."""
        layers = [spec for layer in self.geometry for spec in layer.specs]
        specs = layers + token_specs(self.vocabulary, self.max_context, self.chunk)
        if self.mtp is not None:
            specs += head_specs(self.mtp_geometry, self.mtp.fc.out_features)
        return specs

    @property
    def mtp_geometry(self) -> LayerGeometry:
        """The rows of the drafting head."""
        return head_geometry(self.geometry)

    def bind(self, arena: Arena, *, seed: int = 0) -> Decoder:
        """Initial values into the arena, plans over it captured.

        Args:
            arena: made of `buffer_specs()`, on this model's device; more buffers may be in it.
            seed: of the sampling noise.
        """
        return Decoder(self, arena, seed=seed)

    def arena(self) -> Arena:
        """An arena for one live state."""
        return Arena(self.buffer_specs(), self.device)

    # -- shapes

    @property
    def buckets(self) -> tuple[int, ...]:
        """Rows that attention can be made to read: powers of two, and the whole context last."""
        sizes = []
        size = SMALLEST_BUCKET
        while size < self.max_context:
            sizes.append(size)
            size *= 2
        return (*sizes, self.max_context)

    @property
    def prefill_backend(self) -> Backend:
        """How prefill plans are replayed: not compiled.

        Their time is in large matrix products, which torch.compile leaves to the same library, and
        there would be one to compile for each length and bucket.
        """
        return Backend.EAGER if self.backend is Backend.COMPILED else self.backend

    @property
    def prefill_buckets(self) -> tuple[int, ...]:
        """Rows that attention can be made to read in a prefill.

        Eager plans read whole chunks up to the last one that has a valid row, and no more.
        """
        if self.prefill_backend is not Backend.EAGER:
            return self.buckets
        return (*range(self.chunk, self.max_context, self.chunk), self.max_context)

    @property
    def piece_lengths(self) -> tuple[int, ...]:
        """Lengths that prefill has plans for.

        Eager plans cost nothing, so there is one for every length. Captured ones do: the rest of a
        prompt is then cut into powers of two.
        """
        if self.prefill_backend is Backend.EAGER:
            return tuple(range(1, self.chunk + 1))
        lengths = {self.chunk}
        length = 1
        while length < self.chunk:
            lengths.add(length)
            length *= 2
        return tuple(sorted(lengths))

    def aligned_length(self, tokens: int) -> int:
        """The longest prefix of `tokens` tokens that whole chunks compute.

        Going on from a capsule taken there is bit-identical to a cold prefill.
        """
        return tokens // self.chunk * self.chunk

    def pieces(self, start: int, stop: int) -> Iterator[int]:
        """Lengths to prefill tokens start .. stop in.

        Chunks start at multiples of the chunk, wherever `start` is: kernels of recurrent layers
        round differently for other cuts, so this is what makes a prefill repeatable.
        """
        while start < stop:
            border = min(self.aligned_length(start) + self.chunk, stop)
            length = max(n for n in self.piece_lengths if n <= border - start)
            yield length
            start += length
