# SPDX-License-Identifier: Apache-2.0
"""Prompts that begin as earlier ones: what is reused and computed, and that nothing changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from language_families import adopted, tokens_of

from flashrt_ros.models.language import (
    Exactness,
    Generator,
    Limits,
    PrefixRegistry,
    Reuse,
    Sampling,
)
from flashrt_ros.runtime import Arena, BufferSpec, Fingerprint, Role, Session

_INT = torch.int64
_LIMITS = Limits(6, stop_tokens=())


def generator_of(family: str = "qwen3_5_text", capacity: int = 64) -> Generator:
    model = adopted(family)
    arena = model.arena()
    decoder = model.bind(arena)
    session = Session(arena, fingerprint=model.fingerprint)
    return Generator(decoder, session, prefixes=PrefixRegistry(session, capacity))


def run(generator: Generator, prompt: list[int], reuse: Reuse) -> tuple[int, int, list[bytes]]:
    """(tokens reused, tokens computed, bytes of the logits at each token)."""
    started = generator.start(prompt, Sampling(), _LIMITS, reuse=reuse)
    seen, logits = 0, []
    for step in generator.steps():
        seen += step.seen
        if step.token is not None:
            logits.append(generator.decoder.logits().numpy().tobytes())
    return started.reused, seen, logits


def test_a_shared_beginning_is_computed_once_and_changes_no_bit() -> None:
    shared = tokens_of(150)
    prompts = [shared + tokens_of(30, seed=seed) for seed in (1, 2, 3)]
    cold = [run(generator_of(), prompt, Reuse.NONE)[2] for prompt in prompts]
    generator = generator_of()
    warm = [run(generator, prompt, Reuse.EXACT) for prompt in prompts]
    assert [each[:2] for each in warm] == [(0, 180), (128, 52), (128, 52)]
    assert [each[2] for each in warm] == cold
    assert generator.prefixes is not None
    assert generator.prefixes.tokens_reused == 256
    assert run(generator, prompts[1], Reuse.EXACT) == (180, 0, cold[1])


def test_a_longer_prompt_of_the_same_text_starts_at_the_last_whole_chunk() -> None:
    generator = generator_of()
    prompt = tokens_of(230)
    run(generator, prompt[:100], Reuse.EXACT)
    reused, computed, logits = run(generator, prompt, Reuse.EXACT)
    assert (reused, computed) == (64, 166)
    assert logits == run(generator_of(), prompt, Reuse.NONE)[2]


def test_any_state_may_be_used_when_rounding_does_not_matter() -> None:
    """The next turn of a conversation starts where the last answer ended."""
    generator = generator_of()
    prompt = tokens_of(100)
    run(generator, prompt, Reuse.ANY)
    answer = generator.generated
    turn = [*prompt, *answer, *tokens_of(10, seed=2)]
    started = generator.start(turn, Sampling(), _LIMITS, reuse=Reuse.ANY)
    assert started.reused == len(prompt) + len(answer) - 1  # the last token was not seen yet
    assert started.exactness is Exactness.RUN
    said = [step.token for step in generator.steps() if step.token is not None]
    cold = generator_of()
    cold.start(turn, Sampling(), _LIMITS)
    assert said == [step.token for step in cold.steps() if step.token is not None]


def test_none_computes_every_token() -> None:
    generator = generator_of()
    prompt = tokens_of(70)
    run(generator, prompt, Reuse.EXACT)
    assert run(generator, prompt, Reuse.NONE)[:2] == (0, 70)


def test_a_dropped_capsule_is_not_found_any_more() -> None:
    generator = generator_of()
    session = generator.session
    prompt = tokens_of(130)
    run(generator, prompt, Reuse.EXACT)
    for info in session.capsules():
        if "prefix" in info.tags and info.meta.record.rows[0][1] > 64:
            session.drop(info)
    run(generator, tokens_of(5, seed=8), Reuse.NONE)
    assert run(generator, prompt, Reuse.EXACT)[:2] == (64, 66)


def test_the_registry_keeps_as_many_capsules_as_it_may() -> None:
    generator = generator_of(capacity=3)
    for seed in range(4):
        run(generator, tokens_of(70, seed=seed), Reuse.EXACT)
    assert generator.prefixes is not None
    assert len(generator.prefixes) == 3
    kept = [info for info in generator.session.capsules() if "prefix" in info.tags]
    assert len(kept) == 3


_WORDS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(known=_WORDS, asked=_WORDS)
def test_the_tree_finds_what_a_search_through_all_finds(
    known: list[list[int]], asked: list[list[int]]
) -> None:
    session = Session(Arena([BufferSpec("x", Role.META, _INT, ())]), fingerprint=Fingerprint("x"))
    registry = PrefixRegistry(session, 8)
    order: list[tuple[int, ...]] = []
    for tokens in known:
        registry.remember(tokens, Exactness.PREFIX)
        key = tuple(tokens)
        order = [*(each for each in order if each != key), key][-8:]
    for tokens in asked:
        fitting = [key for key in order if tuple(tokens[: len(key)]) == key]
        best = max(fitting, key=len, default=None)
        found = registry.find(tokens)
        assert (None if found is None else found.length) == (None if best is None else len(best))
        if best is not None:
            order = [*(each for each in order if each != best), best]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129])
def test_lengths_around_a_chunk_border(length: int) -> None:
    prompt = tokens_of(180)
    generator = generator_of()
    run(generator, prompt[:length], Reuse.EXACT)
    reused, computed, logits = run(generator, prompt, Reuse.EXACT)
    assert reused == length // 64 * 64
    assert reused + computed == 180
    assert logits == run(generator_of(), prompt, Reuse.NONE)[2]
