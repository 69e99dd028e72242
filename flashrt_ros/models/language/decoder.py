# SPDX-License-Identifier: Apache-2.0
"""A language model bound to one arena: the plans that move its state forward.

State between two replays, all of it in buffers:

    position         tokens that the cache has seen; counts the rows
    tokens.history   those tokens
    tokens.pending   the token that was chosen and not yet seen, or -1
    logits           for the token after the last one seen
    exact            leading tokens that whole aligned chunks computed, see `LanguageModel.pieces`

A prefill replay sees given tokens. A choice replay chooses the pending token from the logits. A
step replay sees the pending token and chooses the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from flashrt_ros.models.language.cache import ArenaCache, Frame
from flashrt_ros.models.language.forward import call, call_hidden
from flashrt_ros.models.language.geometry import ROWS
from flashrt_ros.models.language.mtp import LIMIT, MOST_STOP_TOKENS, STOP, Drafting, select
from flashrt_ros.models.language.native import NativeStep, StepBuffers
from flashrt_ros.models.language.sampling import (
    DRAW,
    SEED,
    Sampling,
    draw,
    read_settings,
    sampling_specs,
    signed,
    write_settings,
)
from flashrt_ros.runtime import Arena, BufferSpec, Kind, Plan, Role, ShapeKey, bucket_for
from flashrt_ros.runtime.errors import InvalidArgument, NotReady

if TYPE_CHECKING:
    from flashrt_ros.models.language.model import LanguageModel

INPUT = "tokens.input"
HISTORY = "tokens.history"
PENDING = "tokens.pending"
LOGITS = "logits"
EXACT = "exact"

NONE = -1
"""Value of the pending token when there is none."""


def token_specs(vocabulary: int, max_context: int, chunk: int) -> list[BufferSpec]:
    """The buffers of the state that no layer owns."""
    return [
        BufferSpec(ROWS, Role.META, torch.int64, ()),
        BufferSpec(EXACT, Role.META, torch.int64, ()),
        BufferSpec(INPUT, Role.IO, torch.int64, (chunk,)),
        BufferSpec(HISTORY, Role.META, torch.int64, (max_context,), Kind.APPEND, row_counter=ROWS),
        BufferSpec(PENDING, Role.META, torch.int64, ()),
        BufferSpec(LOGITS, Role.IO, torch.float32, (vocabulary,)),
        *sampling_specs(),
    ]


class Decoder:
    """One live state of a language model. Make it with `LanguageModel.bind`.

    Everything that a replay reads is in the arena: after a restore the decoder goes on from there.
    Not thread-safe; the replay thread owns it.
    """

    def __init__(self, model: LanguageModel, arena: Arena, *, seed: int = 0) -> None:
        self.model = model
        self.arena = arena
        self._frame = Frame(arena[ROWS], arena[ROWS].view(1))
        self._cache = ArenaCache(model.geometry, arena, self._frame)
        buckets = model.buckets
        self._prefill = Plan(
            "prefill",
            self._run_prefill,
            [
                ShapeKey(length, bucket)
                for bucket in model.prefill_buckets
                for length in model.piece_lengths
            ],
            model.prefill_backend,
        )
        choices = [ShapeKey(0, bucket) for bucket in buckets]
        steps = [ShapeKey(1, bucket) for bucket in buckets]
        self._choice = Plan("choice", self._run_choice, choices, model.backend)
        self._step = Plan("step", self._run_step, steps, model.backend)
        # without the sort of the whole vocabulary that the other settings need
        self._plain_choice = Plan("plain_choice", self._run_plain_choice, choices, model.backend)
        self._plain_step = Plan("plain_step", self._run_plain_step, steps, model.backend)
        self.drafted = 0  # tokens that the head drafted, and how many of them were right
        self.accepted = 0
        self._native: NativeStep | None = None
        if model.native:
            buffers = StepBuffers(arena[HISTORY], arena[PENDING], arena[DRAW], arena[LOGITS])
            self._native = NativeStep(
                model.module, model.geometry, arena, buffers, model.max_context
            )
        self._drafting: Drafting | None = None
        self._speculation: Plan | None = None
        if model.mtp is not None:
            count = model.draft_tokens
            self._drafting = Drafting(model.mtp, model.mtp_geometry, arena, count)
            spans = [ShapeKey(count + 1, bucket) for bucket in buckets if bucket > count]
            self._speculation = Plan("speculation", self._run_speculation, spans, model.backend)
        arena[SEED].fill_(signed(seed))
        write_settings(arena, Sampling())
        pool = None
        for plan in self.plans:  # tries them on token 0, which every vocabulary has
            pool = plan.capture(arena, pool)
        arena[PENDING].fill_(NONE)

    @property
    def plans(self) -> tuple[Plan, ...]:
        plans = (self._prefill, self._choice, self._plain_choice, self._step, self._plain_step)
        return plans if self._speculation is None else (*plans, self._speculation)

    # -- the state, read on the host (synchronises a CUDA device)

    @property
    def position(self) -> int:
        """Tokens that the cache has seen."""
        return int(self.arena[ROWS])

    @property
    def pending(self) -> int | None:
        """The token that was chosen and not yet seen."""
        token = int(self.arena[PENDING])
        return None if token == NONE else token

    @property
    def exact(self) -> bool:
        """Whether a cold prefill of the same tokens would give this very state, bit for bit."""
        return int(self.arena[EXACT]) == self.position

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self.model.max_context - self.position

    def tokens(self) -> list[int]:
        """The tokens seen, and the pending one."""
        seen: list[int] = self.arena[HISTORY][: self.position].tolist()
        return seen if self.pending is None else [*seen, self.pending]

    def logits(self) -> torch.Tensor:
        """Logits of the token after the last one seen: the buffer, float32 [vocabulary]."""
        return self.arena[LOGITS]

    # -- replays

    def prefill(self, tokens: Sequence[int]) -> None:
        """See one piece of tokens: a length that `LanguageModel.pieces` gives. One replay.

        A pending token is forgotten: who wants it seen puts it first.

        Raises:
            InvalidArgument: no such piece, a token outside the vocabulary, or no room; nothing
                was changed.
        """
        length = len(tokens)
        if length not in self.model.piece_lengths:
            raise InvalidArgument(f"a piece of {length} tokens: cut prompts with pieces()")
        size = self.arena[LOGITS].shape[0]
        bad = next((token for token in tokens if not 0 <= token < size), None)
        if bad is not None:
            raise InvalidArgument(f"token {bad} is not in the vocabulary of {size}")
        key = ShapeKey(length, self._bucket(length, self.model.prefill_buckets))
        self.arena[INPUT][:length].copy_(torch.tensor(tokens, dtype=torch.int64))
        self._prefill.replay(key)

    def choose(self) -> int:
        """Choose the pending token from the logits. One replay.

        Raises:
            NotReady: nothing was seen yet, so there are no logits.
        """
        position = self.position
        if position == 0:
            raise NotReady("no token was seen yet: prefill a prompt before choosing a token")
        plan = self._plain_choice if self.sampling.plain else self._choice
        plan.replay(ShapeKey(0, bucket_for(position, self.model.buckets)))
        return int(self.arena[PENDING])

    def step(self) -> int:
        """See the pending token and choose the next one. One replay.

        Raises:
            NotReady: no token is pending.
            InvalidArgument: the context is full.
        """
        if self.pending is None:
            raise NotReady("no token is pending: choose one before the step")
        plan = self._plain_step if self.sampling.plain else self._step
        plan.replay(ShapeKey(1, self._bucket(1)))
        return int(self.arena[PENDING])

    def can_speculate(self, stop_tokens: Sequence[int]) -> bool:
        """Whether `speculate` says the same tokens as `step` would, here and now.

        It needs a head, room for all drafts, greedy decoding without a penalty, a pending token,
        and few enough stop tokens.
        """
        return (
            self._drafting is not None
            and len(stop_tokens) <= MOST_STOP_TOKENS
            and self.room > self._drafting.count
            and self.pending is not None
            and self.sampling.plain
        )

    def speculate(self, most: int, stop_tokens: Sequence[int] = ()) -> list[int]:
        """See the pending token and the drafts after it that are right. One replay.

        Args:
            most: tokens to say at most, 1 or more.
            stop_tokens: no token after one of these is said.

        Returns:
            The new tokens: accepted drafts, then the one that is pending now.

        Raises:
            NotReady: see `can_speculate`.
        """
        if self._drafting is None or self._speculation is None or most < 1:
            raise NotReady("nothing to draft with, or nothing to say")
        if not self.can_speculate(stop_tokens):
            raise NotReady("speculation needs greedy decoding, a pending token and room for drafts")
        count = self._drafting.count
        stops = [*stop_tokens, *[NONE] * (MOST_STOP_TOKENS - len(stop_tokens))]
        self.arena[STOP].copy_(torch.tensor(stops))
        self.arena[LIMIT].fill_(most - 1)
        before = self.position
        self._speculation.replay(ShapeKey(count + 1, self._bucket(count + 1)))
        said: list[int] = self.arena[HISTORY][before + 1 : self.position].tolist()
        self.drafted += min(count, most - 1)
        self.accepted += len(said)
        return [*said, int(self.arena[PENDING])]

    def set_sampling(self, sampling: Sampling) -> None:
        """How the next tokens are chosen; part of the state from now on."""
        write_settings(self.arena, sampling)

    def forget_pending(self) -> None:
        """Take back the choice of the pending token; the logits it came from are still there."""
        self.arena[PENDING].fill_(NONE)

    @property
    def sampling(self) -> Sampling:
        """The settings in the state."""
        return read_settings(self.arena)

    def _bucket(self, more: int, buckets: Sequence[int] = ()) -> int:
        position = self.position
        if position + more > self.model.max_context:
            raise InvalidArgument(
                f"{position} tokens were seen and {more} more do not fit the context of "
                f"{self.model.max_context}"
            )
        return bucket_for(position + more, buckets or self.model.buckets)

    # -- what a replay runs: reads and writes buffers only

    def _run_prefill(self, key: ShapeKey) -> None:
        self._see(self.arena[INPUT][: key.query], key)
        self.arena[PENDING].fill_(NONE)

    def _run_choice(self, key: ShapeKey) -> None:
        arena = self.arena
        history = arena[HISTORY][: key.bucket]
        arena[PENDING].copy_(draw(arena, arena[LOGITS], history, arena[ROWS]))

    def _run_step(self, key: ShapeKey) -> None:
        if self._native is None:
            self._see(self.arena[PENDING].view(1), key)
        else:
            self._native.see()
        self._run_choice(key)

    def _run_plain_choice(self, key: ShapeKey) -> None:
        self.arena[PENDING].copy_(self.arena[LOGITS].argmax())
        self.arena[DRAW].add_(1)  # counted, so that noise does not depend on which plan ran

    def _run_plain_step(self, key: ShapeKey) -> None:
        if self._native is None:
            self._see(self.arena[PENDING].view(1), key)
            self._run_plain_choice(key)
        else:
            self._native.greedy()

    @torch.no_grad()
    def _see(self, tokens: torch.Tensor, key: ShapeKey) -> None:
        arena = self.arena
        position = arena[ROWS]
        rows = self._rows(key)
        module = self.model.module
        if self._drafting is None:
            logits = call(module, tokens[None], rows[None], self._cache)
        else:
            hidden = call_hidden(module, tokens[None], rows[None], self._cache)
            logits = module.lm_head(hidden[:, -1:])
            self._drafting.follow(tokens, hidden[0], rows, key.bucket)
            self._drafting.keep(hidden[0, -1])
        arena[LOGITS].copy_(logits[0, -1])
        arena[HISTORY].index_copy_(0, rows, tokens)
        if key.query == self.model.chunk:
            exact = arena[EXACT]
            exact.add_(torch.where(exact == position, key.query, 0))
        position.add_(key.query)

    @torch.no_grad()
    def _run_speculation(self, key: ShapeKey) -> None:
        drafting, arena = self._drafting, self.arena
        assert drafting is not None
        rows = self._rows(key)
        tokens = drafting.draft(arena[PENDING], rows, key.bucket)
        steps: dict[int, list[list[torch.Tensor]]] = {}
        self._frame.steps = steps
        try:
            hidden = call_hidden(self.model.module, tokens[None], rows[None], self._cache)[0]
        finally:
            self._frame.steps = None
        logits = self.model.module.lm_head(hidden)
        best = logits.argmax(dim=-1)
        accepted = drafting.accepted(tokens, best)
        index = accepted.view(1)
        select(steps, self._cache, index)
        drafting.follow(tokens, hidden, rows, key.bucket)  # in place of what the drafts wrote
        drafting.keep(hidden.index_select(0, index)[0])
        arena[LOGITS].copy_(logits.index_select(0, index)[0])
        arena[HISTORY].index_copy_(0, rows, tokens)
        arena[PENDING].copy_(best.index_select(0, index)[0])
        arena[DRAW].add_(accepted + 1)
        arena[ROWS].add_(accepted + 1)

    def _rows(self, key: ShapeKey) -> torch.Tensor:
        """Where the tokens of this replay go, int64 [query]; the frame is set to them."""
        rows = torch.arange(key.query, device=self.arena.device) + self.arena[ROWS]
        # a capture tries one plan after the other and may pass the end; no replay does
        rows = rows.clamp(max=self.model.max_context - 1)
        self._frame.rows, self._frame.bucket = rows, key.bucket
        return rows
