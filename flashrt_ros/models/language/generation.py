# SPDX-License-Identifier: Apache-2.0
"""Generation over a session: a prompt in, tokens out, one boundary for each.

A run (what is generated, and when it ends) is registered state of the session, so a capsule taken
in the middle of one holds it, and a restore goes on with it: the rest of the prompt, the tokens
still allowed, the stop strings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from flashrt_ros.models.language.decoder import Decoder
from flashrt_ros.models.language.prefix import Exactness, PrefixRegistry, Reuse
from flashrt_ros.models.language.sampling import Sampling
from flashrt_ros.models.language.text import TextStream
from flashrt_ros.runtime import Session, StateItem
from flashrt_ros.runtime.errors import InvalidArgument, NotReady

STATE = "generation"
"""Name of the registered state item."""


class Finish(str, Enum):
    """Why a run ended."""

    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    LENGTH = "length"  # as many tokens as were asked for
    CONTEXT = "context"  # the context is full
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"  # a verb changed the live state meanwhile

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Limits:
    """When a run ends.

    Attributes:
        max_tokens: at most so many tokens.
        stop: strings that end the text; they are not part of it.
        stop_tokens: tokens that end the run; None: those of the checkpoint.
    """

    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise InvalidArgument(f"max_tokens is {self.max_tokens}: expected 0 or more")
        if any(not stop for stop in self.stop):
            raise InvalidArgument("a stop string is empty: it would end every text at once")


@dataclass(frozen=True)
class Run:
    """A run under way or ended; immutable, so a capsule holds it as it was.

    Attributes:
        prompt: tokens of the prompt.
        todo: tokens of the prompt that are still to be seen.
        clean: the state before the prompt's rest was that of a cold prefill.
    """

    prompt: int
    todo: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...]
    stop_tokens: tuple[int, ...]
    clean: bool
    finish: Finish | None = None


@dataclass(frozen=True)
class Started:
    """How a prompt began.

    Attributes:
        prompt: its tokens.
        reused: tokens that were not computed, because a state had seen them.
        capsule: id of the capsule that this state came from; empty: the live state or none.
        exactness: what the result is identical to.
        bytes_copied: by the restore.
    """

    prompt: int
    reused: int
    capsule: str = ""
    exactness: Exactness = Exactness.PREFIX
    bytes_copied: int = 0


@dataclass(frozen=True)
class Step:
    """What one replay did.

    Attributes:
        boundary: number of the boundary that it committed.
        seen: tokens of the prompt that it saw.
        tokens: the tokens that it said: none for a piece of the prompt, several when drafts of
            them were right.
        texts: the text that became certain with each.
        finish: why the run ended with it, or None.
    """

    boundary: int
    seen: int = 0
    tokens: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    finish: Finish | None = None

    @property
    def token(self) -> int | None:
        """The last token that it said."""
        return self.tokens[-1] if self.tokens else None


@dataclass
class _Text:
    """Text of the live run; None when it must be rebuilt from the tokens in the state."""

    stream: TextStream | None = None
    generated: int = 0
    fresh: bool = field(default=False)


class Generator:
    """Runs prompts on one session. Used on its replay thread only.

    Args:
        decoder: bound to the session's arena.
        session: no boundary was committed yet.
        prefixes: remembers states by their tokens; None: only the live state is ever gone on from.
        clock: stamps boundaries, ns.
    """

    def __init__(
        self,
        decoder: Decoder,
        session: Session,
        *,
        prefixes: PrefixRegistry | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.decoder = decoder
        self.session = session
        self.prefixes = prefixes
        self._clock = clock
        self._run: Run | None = None
        self._text = _Text()
        session.register_state(StateItem(STATE, self._get, self._check, self._set))

    # -- runs

    @property
    def run(self) -> Run | None:
        """The run in the live state."""
        return self._run

    @property
    def generated(self) -> list[int]:
        """Tokens of the live run so far."""
        if self._run is None or self._run.todo:
            return []
        return self.decoder.tokens()[self._run.prompt :]

    def start(
        self,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        reuse: Reuse = Reuse.EXACT,
    ) -> Started:
        """Begin a run: find the state to start from and make it live. One boundary, no replay.

        Raises:
            InvalidArgument: an empty prompt, one longer than the context, a token outside the
                vocabulary, or stop strings without a tokenizer; nothing was changed.
        """
        tokens = [int(token) for token in tokens]
        limits = limits or Limits()
        self._check_prompt(tokens, limits)
        started, clean = self._find(tokens, reuse)
        stop_tokens = limits.stop_tokens
        if stop_tokens is None:
            stop_tokens = self.decoder.model.stop_tokens
        self._run = Run(
            prompt=len(tokens),
            todo=tuple(tokens[started.reused :]),
            max_tokens=limits.max_tokens,
            stop=limits.stop,
            stop_tokens=stop_tokens,
            clean=clean,
        )
        self._text = _Text()
        settings = sampling or Sampling()
        self.decoder.forget_pending()
        self.decoder.set_sampling(settings)
        # buffers changed, so there is a new boundary: what is live is never between two of them
        self._commit(b"start " + repr(settings).encode())
        return started

    def advance(self) -> Step:
        """One replay and one boundary: a piece of the prompt, or a token.

        Raises:
            NotReady: there is no run, or it has ended.
        """
        run = self._run
        if run is None or run.finish is not None:
            raise NotReady("no run to advance: start one, or restore a capsule of one under way")
        if run.todo:
            return self._see(run)
        if run.max_tokens == 0:
            return self._end(run, Finish.LENGTH)
        return self._choose(run)

    def steps(self) -> Iterator[Step]:
        """Advance until the run ends."""
        while self._run is not None and self._run.finish is None:
            yield self.advance()

    def end(self, finish: Finish) -> str:
        """End the run now. Returns text that was held back."""
        if self._run is None or self._run.finish is not None:
            return ""
        self._run = replace(self._run, finish=finish)
        stream = self._text.stream
        return stream.flush() if stream is not None else ""

    # -- replays

    def _see(self, run: Run) -> Step:
        decoder = self.decoder
        position = decoder.position
        length = next(decoder.model.pieces(position, position + len(run.todo)))
        piece = run.todo[:length]
        decoder.prefill(piece)
        run = replace(run, todo=run.todo[length:])
        self._run = run
        boundary = self._commit(b"see " + np.asarray(piece, dtype="<i8").tobytes())
        self._remember(run)
        return Step(boundary, seen=length)

    def _choose(self, run: Run) -> Step:
        decoder = self.decoder
        text = self._text_of(run)
        tokens = self._say(run, run.max_tokens - text.generated)
        texts: list[str] = []
        finish: Finish | None = None
        for token in tokens:
            piece = ""
            if token in run.stop_tokens:
                finish = Finish.STOP_TOKEN
            elif text.stream is not None:
                piece = text.stream.push(token)
                if text.stream.stopped is not None:
                    finish = Finish.STOP_STRING
            texts.append(piece)
        text.generated += len(tokens)
        if finish is None and text.generated >= run.max_tokens:
            finish = Finish.LENGTH
        if finish is None and decoder.room == 0:
            finish = Finish.CONTEXT
        if finish is not None:
            self._run = replace(run, finish=finish)
            if text.stream is not None:
                texts[-1] += text.stream.flush()
        boundary = self._commit(b"choose " + repr(decoder.sampling).encode())
        return Step(boundary, tokens=tuple(tokens), texts=tuple(texts), finish=finish)

    def _say(self, run: Run, most: int) -> list[int]:
        """The next token, or several where drafts of them are right."""
        decoder = self.decoder
        if decoder.pending is None:
            return [decoder.choose()]
        # a stop string may end inside a draft, and the state must not be past the end of the text
        if most > 1 and not run.stop and decoder.can_speculate(run.stop_tokens):
            return decoder.speculate(most, run.stop_tokens)
        return [decoder.step()]

    def _end(self, run: Run, finish: Finish) -> Step:
        self._run = replace(run, finish=finish)
        return Step(self.session.live.number, finish=finish)

    def _commit(self, inputs: bytes) -> int:
        record = self.session.commit(
            stamp_ns=self._clock(), inputs=inputs, rows=self.decoder.position
        )
        return record.number

    def _text_of(self, run: Run) -> _Text:
        """The run's text so far; after a restore, read again from the tokens in the state."""
        text = self._text
        if not text.fresh:
            tokens = self.generated
            tokenizer = self.decoder.model.tokenizer
            text = _Text(None if tokenizer is None else TextStream(tokenizer, run.stop))
            for token in tokens:
                if text.stream is not None:
                    text.stream.push(token)
            text.generated = len(tokens)
            text.fresh = True
            self._text = text
        return text

    # -- where a prompt starts

    def _check_prompt(self, tokens: list[int], limits: Limits) -> None:
        model = self.decoder.model
        if not tokens:
            raise InvalidArgument("the prompt is empty: expected one token or more")
        if len(tokens) > model.max_context:
            raise InvalidArgument(
                f"the prompt has {len(tokens)} tokens, the context {model.max_context}"
            )
        bad = next((token for token in tokens if not 0 <= token < model.vocabulary), None)
        if bad is not None:
            raise InvalidArgument(f"token {bad} is not in the vocabulary of {model.vocabulary}")
        if limits.stop and model.tokenizer is None:
            raise InvalidArgument("stop strings need a tokenizer, and the checkpoint has none")

    def _find(self, tokens: list[int], reuse: Reuse) -> tuple[Started, bool]:
        decoder = self.decoder
        live = decoder.position
        exact = decoder.exact
        usable = 0
        if (
            0 < live <= len(tokens)
            and (reuse is Reuse.ANY or (reuse is Reuse.EXACT and exact))
            and decoder.tokens()[:live] == tokens[:live]
        ):
            usable = live
        found = None
        if self.prefixes is not None and reuse is not Reuse.NONE:
            found = self.prefixes.find(tokens, reuse)
        if found is not None and found.length > usable:
            report = self.session.restore(found.capsule)
            started = Started(
                len(tokens), found.length, found.capsule.id, found.exactness, report.bytes_copied
            )
            return started, found.exactness is Exactness.PREFIX
        if usable:
            exactness = Exactness.PREFIX if exact else Exactness.RUN
            return Started(len(tokens), usable, exactness=exactness), exact
        if live:
            self.session.reset()
        return Started(len(tokens), 0), True

    def _remember(self, run: Run) -> None:
        if self.prefixes is None:
            return
        if self.decoder.exact:
            self.prefixes.remember(self.decoder.tokens(), Exactness.PREFIX)
        elif not run.todo:
            exactness = Exactness.WHOLE if run.clean else Exactness.RUN
            self.prefixes.remember(self.decoder.tokens(), exactness)

    # -- registered state

    def _get(self) -> dict[str, Any] | None:
        return None if self._run is None else asdict(self._run)

    def _check(self, value: Any) -> None:
        if value is not None:
            try:
                _run_of(value)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"no run: {error}") from error

    def _set(self, value: Any) -> None:
        self._run = None if value is None else _run_of(value)
        self._text = _Text()


def _run_of(value: dict[str, Any]) -> Run:
    finish = value["finish"]
    return Run(
        prompt=int(value["prompt"]),
        todo=tuple(int(token) for token in value["todo"]),
        max_tokens=int(value["max_tokens"]),
        stop=tuple(str(text) for text in value["stop"]),
        stop_tokens=tuple(int(token) for token in value["stop_tokens"]),
        clean=bool(value["clean"]),
        finish=None if finish is None else Finish(finish),
    )
