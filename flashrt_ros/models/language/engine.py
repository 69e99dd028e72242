# SPDX-License-Identifier: Apache-2.0
"""The language engine: one replay thread that generates for one caller after the other.

Callers leave requests and read streams; verbs wait in the session's queue. Both are looked at
between two replays, so a cancelled request ends at the next boundary, a snapshot never sees a
half-done replay, and a verb waits for one replay at most.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flashrt_ros.models.language.decoder import Decoder
from flashrt_ros.models.language.generation import Finish, Generator, Limits, Started, Step
from flashrt_ros.models.language.prefix import PrefixRegistry, Reuse
from flashrt_ros.models.language.sampling import Sampling
from flashrt_ros.runtime import RestoreReport, Session, SessionHost
from flashrt_ros.runtime.errors import Cancelled, InvalidArgument, NotReady, RuntimeFault

Motion = TypeVar("Motion", bound=int)

logger = logging.getLogger(__name__)

# The numbers of policies.Motion, which lies in a layer above. A text has no arm to hold, but the
# same three answers to "what now": wait, go on with what is queued, go on with what was restored.
_HOLD, _REPLAN, _CONTINUE = 1, 2, 3


@dataclass(frozen=True)
class Request:
    """What a caller asks for.

    Attributes:
        tokens: of the prompt; None: go on with the run in the live state.
        sampling: with seed None the engine chooses one and reports it.
    """

    tokens: tuple[int, ...] | None
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    reuse: Reuse = Reuse.EXACT


@dataclass(frozen=True)
class Chunk:
    """One token as a caller gets it, committed already."""

    token: int
    text: str
    boundary: int
    epoch: int
    index: int


@dataclass(frozen=True)
class Generated:
    """What a request came to.

    Attributes:
        first_token_s: from the moment that the replay thread took the request up.
        decode_s: from the first to the last token.
        seed: of the noise; the same request with it gives the same tokens.
    """

    tokens: tuple[int, ...]
    text: str
    finish: Finish
    started: Started | None
    first_token_s: float
    decode_s: float
    seed: int
    boundary: int
    epoch: int

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first; 0 when there were none."""
        count = len(self.tokens) - 1
        return count / self.decode_s if count > 0 and self.decode_s > 0 else 0.0


class Stream:
    """A request under way: iterate over its chunks, or wait for `result()`. Any thread."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cancelled = threading.Event()
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._result: Future[Generated] = Future()

    def cancel(self) -> None:
        """End at the next boundary; what was generated so far is the result."""
        self.cancelled.set()

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks as they are committed. Raises what went wrong, if anything did."""
        while (chunk := self._chunks.get()) is not None:
            yield chunk
        self._result.result()

    def result(self, timeout: float | None = None) -> Generated:
        """Wait for the end. Raises RuntimeFault when the request was refused or failed."""
        return self._result.result(timeout)

    @property
    def done(self) -> bool:
        return self._result.done()

    # -- the engine's side

    def put(self, chunk: Chunk) -> None:
        self._chunks.put(chunk)

    def finish(self, result: Generated | BaseException) -> None:
        if isinstance(result, BaseException):
            self._result.set_exception(result)
        else:
            self._result.set_result(result)
        self._chunks.put(None)


class _Active:
    """The request that the replay thread works on."""

    def __init__(self, stream: Stream, epoch: int) -> None:
        self.stream = stream
        self.epoch = epoch
        self.started: Started | None = None
        self.seed = 0
        self.tokens: list[int] = []
        self.text: list[str] = []
        self.taken_s = time.perf_counter()
        self.first_s = 0.0
        self.last_s = 0.0

    def add(self, step: Step, epoch: int) -> None:
        self.last_s = time.perf_counter()
        if step.tokens and not self.tokens:
            self.first_s = self.last_s
        for token, text in zip(step.tokens, step.texts, strict=True):
            index = len(self.tokens)
            self.tokens.append(token)
            self.text.append(text)
            self.stream.put(Chunk(token, text, step.boundary, epoch, index))

    def result(self, finish: Finish, boundary: int, epoch: int) -> Generated:
        return Generated(
            tokens=tuple(self.tokens),
            text="".join(self.text),
            finish=finish,
            started=self.started,
            first_token_s=self.first_s - self.taken_s if self.tokens else 0.0,
            decode_s=self.last_s - self.first_s if self.tokens else 0.0,
            seed=self.seed,
            boundary=boundary,
            epoch=epoch,
        )


class LanguageEngine(SessionHost):
    """Generates on one session, request after request, and applies verbs in between.

    Args:
        decoder: bound to the session's arena.
        session: the live state; the engine becomes its replay thread.
        prefix_capacity: capsules kept of prompts' beginnings; 0: none.
    """

    def __init__(self, decoder: Decoder, session: Session, *, prefix_capacity: int = 64) -> None:
        super().__init__(session)
        self.decoder = decoder
        self.prefixes = PrefixRegistry(session, prefix_capacity) if prefix_capacity else None
        self.generator = Generator(decoder, session, prefixes=self.prefixes)
        self._waiting: deque[Stream] = deque()
        self._lock = threading.Lock()
        self._active: _Active | None = None
        self._held = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="flashrt-language", daemon=True)

    # -- life cycle, any thread

    def start(self) -> None:
        """Start the replay thread."""
        self._thread.start()

    def close(self) -> None:
        """End the request under way, refuse those that wait, stop the thread. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._wake()
            self._thread.join()
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        for stream in waiting:
            stream.finish(Cancelled("the engine was closed before the request was taken up"))
        self.session.close()

    # -- requests, any thread

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        reuse: Reuse = Reuse.EXACT,
    ) -> Stream:
        """Queue a prompt, text or tokens. Requests are taken up in order.

        What is wrong with it (an empty prompt, one over the context, ...) is raised by the stream.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else tuple(map(int, prompt))
        return self._queue(Request(tokens, sampling or Sampling(), limits or Limits(), reuse))

    def go_on(self) -> Stream:
        """Queue the run in the live state, that of a restored capsule say; ends a hold."""
        self._held = False
        return self._queue(Request(None))

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Tokens of a text as the checkpoint's tokenizer writes it, its special tokens included."""
        tokenizer = self.decoder.model.tokenizer
        if tokenizer is None:
            raise InvalidArgument("the checkpoint has no tokenizer: give the prompt as tokens")
        return tuple(tokenizer(text)["input_ids"])

    def chat(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Tokens of chat messages by the checkpoint's template, up to where the answer begins."""
        tokenizer = self.decoder.model.tokenizer
        if tokenizer is None or not tokenizer.chat_template:
            raise InvalidArgument("the checkpoint has no chat template: give the prompt as text")
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    @property
    def waiting(self) -> int:
        """Requests not yet taken up."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return self._active is not None

    # -- verbs, replay thread: pass these to `submit`

    def restore(self, ref: str, motion: Motion, **checks: Any) -> tuple[RestoreReport, Motion]:
        """Make a capsule's state live; the request under way ends as superseded.

        Motion HOLD: take nothing up until `go_on`. REPLAN: go on with the queued requests.
        CONTINUE: go on with the run in the capsule first, if it has one.
        """
        return self._moved(motion, lambda: self.session.restore(ref, **checks))

    def rollback(self, motion: Motion, **where: Any) -> tuple[RestoreReport, Motion]:
        """`Session.rollback`; motion as in `restore`."""
        return self._moved(motion, lambda: self.session.rollback(**where))

    def reset(self, motion: Motion, **checks: Any) -> tuple[RestoreReport, Motion]:
        """`Session.reset`; motion as in `restore`."""
        return self._moved(motion, lambda: self.session.reset(**checks))

    def _moved(
        self, motion: Motion, verb: Callable[[], RestoreReport]
    ) -> tuple[RestoreReport, Motion]:
        if motion not in (_HOLD, _REPLAN, _CONTINUE):
            raise InvalidArgument(f"motion {motion!r}: expected HOLD, REPLAN or CONTINUE")
        report = verb()
        self._held = motion == _HOLD
        run = self.generator.run
        if motion == _CONTINUE and run is not None and run.finish is None:
            with self._lock:
                self._waiting.appendleft(Stream(Request(None)))
        return report, motion

    # -- the replay thread

    def _loop(self) -> None:
        while not self._stopping.is_set():
            active = self._active
            try:
                self.session.serve(timeout=0.0 if active is not None else 0.05)
                if active is None:
                    self._take_up()
                else:
                    self._advance(active)
            except Exception as error:
                logger.exception("generation failed")
                self._fail(error)
        if self._active is not None:
            self._finish(self._active, Finish.CANCELLED)

    def _take_up(self) -> None:
        with self._lock:
            if self._held or not self._waiting:
                return
            stream = self._waiting.popleft()
        request = stream.request
        active = _Active(stream, self.session.epoch)
        if stream.cancelled.is_set():
            stream.finish(active.result(Finish.CANCELLED, self.session.live.number, active.epoch))
            return
        self._active = active
        try:
            if request.tokens is None:
                run = self.generator.run
                if run is None or run.finish is not None:
                    raise NotReady("the live state has no run to go on with")
            else:
                active.seed = request.sampling.seed or 0
                if request.sampling.seed is None:
                    active.seed = secrets.randbits(63)
                sampling = replace(request.sampling, seed=active.seed)
                active.started = self.generator.start(
                    request.tokens, sampling, request.limits, reuse=request.reuse
                )
        except RuntimeFault as fault:
            self._active = None
            stream.finish(fault)
            return
        active.epoch = self.session.epoch  # a prefix restored raised it: that one is ours

    def _advance(self, active: _Active) -> None:
        if self.session.epoch != active.epoch:
            # the state is another one now; its run, if any, belongs to whoever restored it
            self._finish(active, Finish.SUPERSEDED, ours=False)
            return
        if active.stream.cancelled.is_set():
            self._finish(active, Finish.CANCELLED)
            return
        step = self.generator.advance()
        active.add(step, self.session.epoch)
        if step.finish is not None:
            self._finish(active, step.finish, ours=False)

    def _finish(self, active: _Active, finish: Finish, *, ours: bool = True) -> None:
        if ours:
            active.text.append(self.generator.end(finish))
        self._active = None
        live = self.session.live.number
        active.stream.finish(active.result(finish, live, self.session.epoch))

    def _fail(self, error: Exception) -> None:
        active, self._active = self._active, None
        # the buffers may be half-way into a step: no boundary describes them any more
        self.session.invalidate(f"generation failed: {error}")
        if active is not None:
            active.stream.finish(error)

    def _queue(self, request: Request) -> Stream:
        stream = Stream(request)
        with self._lock:
            if self._stopping.is_set():
                raise Cancelled("the engine is closed")
            self._waiting.append(stream)
        self._wake()
        return stream
