# SPDX-License-Identifier: Apache-2.0
"""The language engine: callers, verbs and cancels meet between replays."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import pytest
from language_families import speaking, tokens_of

from flashrt_ros.models.language import Finish, LanguageEngine, Limits, Reuse, Sampling
from flashrt_ros.runtime import RuntimeFault, Session
from flashrt_ros.runtime.errors import Code, StaleBoundary

_LONG = Limits(200, stop_tokens=())
_SHORT = Limits(8, stop_tokens=())
_WAIT = 60.0


class Motion(IntEnum):
    """The numbers of policies.Motion."""

    HOLD = 1
    REPLAN = 2
    CONTINUE = 3


@pytest.fixture
def engine() -> Iterator[LanguageEngine]:
    model = speaking()
    arena = model.arena()
    decoder = model.bind(arena)
    made = LanguageEngine(decoder, Session(arena, fingerprint=model.fingerprint))
    made.start()
    yield made
    made.close()


def test_tokens_stream_as_they_are_committed(engine: LanguageEngine) -> None:
    stream = engine.generate("the robot", limits=_SHORT)
    chunks = list(stream)
    result = stream.result(_WAIT)
    assert [chunk.token for chunk in chunks] == list(result.tokens)
    assert [chunk.index for chunk in chunks] == list(range(8))
    boundaries = [chunk.boundary for chunk in chunks]
    assert boundaries == list(range(boundaries[0], boundaries[0] + 8))
    assert result.text.startswith("".join(chunk.text for chunk in chunks))
    assert result.finish is Finish.LENGTH
    assert result.first_token_s > 0


def test_two_callers_are_served_in_order_and_get_what_each_would_get_alone(
    engine: LanguageEngine,
) -> None:
    prompts = [tokens_of(40, seed=1), tokens_of(50, seed=2)]
    alone = [engine.generate(prompt, limits=_SHORT).result(_WAIT).tokens for prompt in prompts]
    streams = [engine.generate(prompt, limits=_SHORT, reuse=Reuse.NONE) for prompt in prompts]
    assert [stream.result(_WAIT).tokens for stream in streams] == alone
    first, second = (stream.result() for stream in streams)
    assert first.boundary < second.boundary


def test_a_cancel_ends_at_the_next_boundary_with_what_there_is(engine: LanguageEngine) -> None:
    stream = engine.generate(tokens_of(20), limits=_LONG)
    for chunk in stream:
        if chunk.index == 2:
            stream.cancel()
            break
    result = stream.result(_WAIT)
    assert result.finish is Finish.CANCELLED
    assert 3 <= len(result.tokens) < 200
    assert engine.generate(tokens_of(20), limits=_SHORT).result(_WAIT).finish is Finish.LENGTH


def test_a_request_cancelled_while_it_waits_is_never_taken_up(engine: LanguageEngine) -> None:
    long = engine.generate(tokens_of(20), limits=_LONG)
    waiting = engine.generate(tokens_of(20), limits=_LONG)
    waiting.cancel()
    long.cancel()
    assert waiting.result(_WAIT).tokens == ()
    assert waiting.result().finish is Finish.CANCELLED


def test_a_restore_in_the_middle_repeats_the_same_sampled_tokens(engine: LanguageEngine) -> None:
    sampling = Sampling(temperature=1.2, top_k=50)
    stream = engine.generate(tokens_of(40), sampling, Limits(30, stop_tokens=()))
    for chunk in stream:
        if chunk.index == 4:
            break
    engine.call(lambda session: session.snapshot("middle"), _WAIT)
    wanted = stream.result(_WAIT)

    def restore(session: Session) -> tuple[int, Motion]:
        report, motion = engine.restore("middle", Motion.HOLD)
        return report.capsule.meta.record.rows[0][1], motion

    rows, motion = engine.call(restore, _WAIT)
    assert motion is Motion.HOLD
    again = engine.go_on().result(_WAIT)
    left = wanted.tokens[rows - 40 + 1 :]
    assert 0 < len(left) < 30
    assert again.tokens == left
    assert wanted.text.endswith(again.text)


def test_a_restore_ends_the_request_under_way_and_says_so(engine: LanguageEngine) -> None:
    engine.call(lambda session: session.snapshot("start"), _WAIT)
    stream = engine.generate(tokens_of(20), limits=_LONG)
    next(iter(stream))
    engine.call(lambda session: engine.restore("start", Motion.REPLAN), _WAIT)
    assert stream.result(_WAIT).finish is Finish.SUPERSEDED
    assert engine.decoder.position == 0


def test_continue_goes_on_with_the_restored_run_before_what_is_queued(
    engine: LanguageEngine,
) -> None:
    stream = engine.generate(tokens_of(20), limits=Limits(60, stop_tokens=()))
    next(iter(stream))
    capsule = engine.call(lambda session: session.snapshot("running"), _WAIT)
    stream.result(_WAIT)
    boundary = engine.call(lambda session: session.live.number, _WAIT)
    engine.call(lambda session: engine.restore("running", Motion.CONTINUE), _WAIT)
    later = engine.generate(tokens_of(30), limits=Limits(1, stop_tokens=())).result(_WAIT)
    # the restored run committed the rest of its tokens first, under new boundary numbers
    assert later.boundary > boundary + (boundary - capsule.boundary)


def test_a_hold_keeps_requests_waiting_until_it_ends(engine: LanguageEngine) -> None:
    engine.call(lambda session: engine.reset(Motion.HOLD), _WAIT)
    stream = engine.generate(tokens_of(5), limits=_SHORT)
    engine.call(lambda session: None, _WAIT)
    assert engine.waiting == 1
    engine.call(lambda session: engine.reset(Motion.REPLAN), _WAIT)
    assert stream.result(_WAIT).finish is Finish.LENGTH


def test_a_verb_that_is_refused_leaves_the_request_running(engine: LanguageEngine) -> None:
    stream = engine.generate(tokens_of(20), limits=Limits(60, stop_tokens=()))
    next(iter(stream))
    with pytest.raises(StaleBoundary):
        engine.call(lambda session: engine.reset(Motion.REPLAN, expected_boundary=9999), _WAIT)
    result = stream.result(_WAIT)
    assert (result.finish, len(result.tokens)) == (Finish.LENGTH, 60)


@pytest.mark.parametrize(
    ("prompt", "limits", "reason"),
    [
        ([], Limits(), "empty"),
        ("", Limits(), "empty"),
        ([5] * 401, Limits(), "context"),
        ([99999], Limits(), "vocabulary"),
    ],
    ids=["no tokens", "no text", "over the context", "no such token"],
)
def test_what_cannot_be_generated_is_refused_and_the_next_request_runs(
    engine: LanguageEngine, prompt: str | list[int], limits: Limits, reason: str
) -> None:
    stream = engine.generate(prompt, limits=limits)
    with pytest.raises(RuntimeFault, match=reason) as caught:
        stream.result(_WAIT)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert engine.generate([5], limits=_SHORT).result(_WAIT).finish is Finish.LENGTH


def test_a_prompt_that_fills_the_context_gets_one_token(engine: LanguageEngine) -> None:
    result = engine.generate(tokens_of(400), limits=_SHORT).result(_WAIT)
    assert (result.finish, len(result.tokens)) == (Finish.CONTEXT, 1)


def test_no_tokens_asked_for_only_reads_the_prompt(engine: LanguageEngine) -> None:
    result = engine.generate(tokens_of(40), limits=Limits(0)).result(_WAIT)
    assert (result.tokens, result.finish) == ((), Finish.LENGTH)
    assert engine.decoder.position == 40


def test_a_stop_string_ends_the_text_wherever_it_lies(engine: LanguageEngine) -> None:
    full = engine.generate("the cup", limits=Limits(40, stop_tokens=())).result(_WAIT)
    stop = full.text[9:12]
    cut = engine.generate("the cup", limits=Limits(40, (stop,), ())).result(_WAIT)
    assert cut.finish is Finish.STOP_STRING
    assert cut.text == full.text[: full.text.index(stop)]
    assert cut.tokens == full.tokens[: len(cut.tokens)]


def test_a_stop_token_ends_the_run_and_is_its_last_token(engine: LanguageEngine) -> None:
    full = engine.generate(tokens_of(9), limits=_SHORT).result(_WAIT)
    stop = full.tokens[3]
    cut = engine.generate(tokens_of(9), limits=Limits(40, (), (stop,))).result(_WAIT)
    assert cut.finish is Finish.STOP_TOKEN
    assert cut.tokens == full.tokens[: full.tokens.index(stop) + 1]


def test_the_reported_seed_repeats_the_result(engine: LanguageEngine) -> None:
    hot = Sampling(temperature=2.0)
    first = engine.generate(tokens_of(9), hot, _SHORT).result(_WAIT)
    second = engine.generate(tokens_of(9), hot, _SHORT).result(_WAIT)
    assert first.seed != second.seed
    repeated = Sampling(temperature=2.0, seed=first.seed)
    assert engine.generate(tokens_of(9), repeated, _SHORT).result(_WAIT).tokens == first.tokens


def test_unicode_and_chat_templates_reach_the_model(engine: LanguageEngine) -> None:
    prompt = engine.chat([{"role": "user", "content": "hol die Tasse 🤖"}])
    assert engine.decoder.model.tokenizer.decode(prompt).endswith("<s>assistant: ")
    result = engine.generate(prompt, limits=_SHORT).result(_WAIT)
    assert result.started is not None
    assert result.started.prompt == len(prompt)


def test_a_replay_that_fails_ends_its_request_and_only_a_reset_goes_on(
    engine: LanguageEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = engine.generate(tokens_of(20), limits=_SHORT).result(_WAIT).tokens

    def broken() -> int:
        raise OSError("the accelerator fell off")

    with monkeypatch.context() as patch:
        patch.setattr(engine.decoder, "step", broken)
        with pytest.raises(OSError, match="fell off"):
            engine.generate(tokens_of(20), limits=_SHORT).result(_WAIT)
    with pytest.raises(RuntimeFault) as caught:
        engine.generate(tokens_of(20), limits=_SHORT, reuse=Reuse.EXACT).result(_WAIT)
    assert caught.value.code is Code.NEEDS_RESET
    engine.call(lambda session: engine.reset(Motion.REPLAN), _WAIT)
    assert engine.generate(tokens_of(20), limits=_SHORT).result(_WAIT).tokens == wanted


def test_closing_answers_everyone(engine: LanguageEngine) -> None:
    running = engine.generate(tokens_of(20), limits=_LONG)
    waiting = engine.generate(tokens_of(20), limits=_LONG)
    next(iter(running))
    engine.close()
    assert running.result(_WAIT).finish is Finish.CANCELLED
    with pytest.raises(RuntimeFault, match="closed"):
        waiting.result(_WAIT)
    with pytest.raises(RuntimeFault, match="closed"):
        engine.generate(tokens_of(3))
