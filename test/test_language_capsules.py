# SPDX-License-Identifier: Apache-2.0
"""Capsules of language models: what they hold is enough, and nothing of it can be left out."""

from __future__ import annotations

import pytest
import torch
from language_families import FAMILIES, adopted, checkpoint, tokens_of
from transformers import AutoModelForCausalLM

from flashrt_ros.models.language import Generator, Limits, Reuse, Sampling, adopt
from flashrt_ros.models.language.decoder import LOGITS
from flashrt_ros.runtime import Role, Session
from flashrt_ros.runtime.errors import FingerprintMismatch

_SAMPLED = Sampling(temperature=1.5, top_k=40, top_p=0.95, repetition_penalty=1.1, seed=7)


def generator_of(family: str) -> Generator:
    model = adopted(family)
    arena = model.arena()
    decoder = model.bind(arena)
    return Generator(decoder, Session(arena, fingerprint=model.fingerprint))


def tokens_from(generator: Generator, count: int | None = None) -> list[tuple[int, bytes]]:
    """Up to `count` tokens, each with the bytes of the logits that the next one comes from."""
    said = []
    for step in generator.steps():
        if step.token is not None:
            logits = generator.decoder.arena[LOGITS]
            said.append((step.token, logits.numpy().tobytes()))
        if count is not None and len(said) == count:
            break
    return said


def begin(generator: Generator, prompt: list[int], count: int = 40) -> None:
    generator.start(prompt, _SAMPLED, Limits(count, stop_tokens=()), reuse=Reuse.NONE)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_restore_continues_bit_for_bit(family: str) -> None:
    """After more steps, after another prompt, three times, and in an arena full of garbage."""
    generator = generator_of(family)
    session = generator.session
    begin(generator, tokens_of(90))
    before = tokens_from(generator, 8)
    capsule = session.snapshot("middle")
    wanted = tokens_from(generator)
    assert len(before) + len(wanted) == 40
    begin(generator, tokens_of(130, seed=5))
    tokens_from(generator)
    for _ in range(3):
        session.restore(capsule)
        assert generator.run is not None
        assert tokens_from(generator) == wanted

    model = adopted(family)
    arena = model.arena()
    decoder = model.bind(arena)
    foreign = Session(arena, fingerprint=model.fingerprint, store=session.store)
    again = Generator(decoder, foreign)
    arena.fixed.random_(0, 128)
    for group in arena.groups:
        for plane in group.planes:
            plane.random_(0, 64)
    foreign.restore(capsule)
    assert tokens_from(again) == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_from_an_aligned_capsule_a_prefill_is_bit_identical_to_a_cold_one(family: str) -> None:
    generator = generator_of(family)
    session, model = generator.session, generator.decoder.model
    prompt = tokens_of(230)
    begin(generator, prompt)
    wanted = tokens_from(generator)
    aligned = model.aligned_length(len(prompt))
    assert aligned == 192
    begin(generator, prompt[:aligned])
    while generator.decoder.position < aligned:
        generator.advance()
    capsule = session.snapshot()
    begin(generator, tokens_of(50, seed=3))
    tokens_from(generator)
    session.restore(capsule)
    assert generator.decoder.exact
    started = generator.start(prompt, _SAMPLED, Limits(40, stop_tokens=()), reuse=Reuse.EXACT)
    assert started.reused == aligned
    assert tokens_from(generator) == wanted


def test_a_capsule_in_the_middle_of_a_prompt_holds_its_rest() -> None:
    generator = generator_of("qwen3_5_text")
    begin(generator, tokens_of(200))
    generator.advance()
    capsule = generator.session.snapshot()
    assert generator.decoder.position == 64
    wanted = tokens_from(generator)
    begin(generator, tokens_of(70, seed=9))
    tokens_from(generator)
    generator.session.restore(capsule)
    assert generator.run is not None
    assert len(generator.run.todo) == 136
    assert tokens_from(generator) == wanted


@pytest.mark.parametrize("left_out", [Role.KV, Role.RECURRENT, Role.CONV, Role.RANDOM, Role.META])
def test_leaving_out_one_role_of_buffers_diverges(left_out: Role) -> None:
    generator = generator_of("qwen3_5_text")
    session = generator.session
    begin(generator, tokens_of(90))
    tokens_from(generator, 8)
    capsule = session.snapshot()
    wanted = tokens_from(generator, 20)
    run = generator.run

    def other_than(roles: set[Role] | None) -> list[tuple[int, bytes]]:
        begin(generator, tokens_of(120, seed=4), 200)
        tokens_from(generator, 11)
        session.restore(capsule, roles=roles)
        generator._set(None)
        generator._run = run  # of registered state an ablation restores nothing
        return tokens_from(generator, 20)

    everything = set(Role)
    assert other_than(everything) == wanted
    assert other_than(everything - {left_out}) != wanted


def test_a_later_snapshot_costs_fixed_bytes_and_new_rows_only() -> None:
    generator = generator_of("qwen3_5_text")
    session, arena = generator.session, generator.decoder.arena
    begin(generator, tokens_of(300))
    while generator.decoder.position < 256:
        generator.advance()
    session.snapshot("one")
    tokens_from(generator, 1)
    report = session.restore("one")
    assert report.rows_copied == 0
    assert report.rows_shared == 256
    assert report.bytes_copied == arena.fixed.numel()


def test_a_capsule_of_other_weights_is_refused() -> None:
    generator = generator_of("llama")
    begin(generator, tokens_of(20))
    tokens_from(generator, 3)
    capsule = generator.session.snapshot()
    module = AutoModelForCausalLM.from_pretrained(checkpoint("llama"))
    with torch.no_grad():
        module.lm_head.weight[3, 5] += 1e-3
    model = adopt(module, max_context=600, chunk=64)
    arena = model.arena()
    decoder = model.bind(arena)
    session = Session(arena, fingerprint=model.fingerprint, store=generator.session.store)
    Generator(decoder, session)
    with pytest.raises(FingerprintMismatch, match="weights"):
        session.restore(capsule)
    assert decoder.position == 0
