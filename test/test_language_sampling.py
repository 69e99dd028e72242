# SPDX-License-Identifier: Apache-2.0
"""Sampling: what each setting does to the distribution, and where the noise comes from."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from language_families import adopted, feed, tokens_of
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from flashrt_ros.models.language import Sampling
from flashrt_ros.models.language.sampling import draw, sampling_specs, write_settings
from flashrt_ros.runtime import Arena
from flashrt_ros.runtime.errors import InvalidArgument

_LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.4, -1.0, -3.0])


class Chooser:
    """Draws from fixed logits."""

    def __init__(self, sampling: Sampling, logits: torch.Tensor = _LOGITS) -> None:
        self.arena = Arena(sampling_specs())
        self.logits = logits
        write_settings(self.arena, sampling)

    def take(self, count: int, history: list[int] | None = None) -> list[int]:
        seen = torch.tensor([*(history or []), 0, 1, 2])  # rows above the counter do not count
        rows = torch.tensor(len(history or []))
        return [int(draw(self.arena, self.logits, seen, rows)) for _ in range(count)]


def test_greedy_takes_the_largest_logit_and_of_equal_ones_the_first() -> None:
    assert set(Chooser(Sampling()).take(5)) == {0}
    assert Chooser(Sampling(), torch.tensor([1.0, 3.0, 3.0])).take(1) == [1]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.5, seed=2),
        Sampling(temperature=2.0, top_k=3, seed=3),
        Sampling(temperature=1.0, top_p=0.7, seed=4),
        Sampling(temperature=1.3, top_k=4, top_p=0.8, seed=5),
        Sampling(temperature=1.0, repetition_penalty=1.7, seed=6),
    ],
    ids=str,
)
def test_frequencies_are_those_of_the_same_settings_in_transformers(sampling: Sampling) -> None:
    history = [0, 4]
    steps = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    steps.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    expected = torch.softmax(steps(torch.tensor([history]), _LOGITS[None].clone())[0], dim=0)
    count = 400
    counted = Counter(Chooser(sampling).take(count, history))
    for token, probability in enumerate(expected.tolist()):
        if probability == 0:
            assert counted[token] == 0, "a token that the settings exclude was drawn"
        # 5 standard deviations of a binomial
        spread = 5 * (probability * (1 - probability) / count) ** 0.5
        assert counted[token] / count == pytest.approx(probability, abs=spread + 1e-9)


def test_of_equal_logits_top_k_keeps_the_first_tokens_and_exactly_k() -> None:
    chooser = Chooser(Sampling(temperature=1.0, top_k=2, seed=1), torch.tensor([0.0, 1, 1, 1]))
    assert set(chooser.take(40)) == {1, 2}


def test_the_same_seed_gives_the_same_draws_and_another_seed_others() -> None:
    sampling = Sampling(temperature=1.0, seed=11)
    first = Chooser(sampling).take(50)
    assert Chooser(sampling).take(50) == first
    assert Chooser(Sampling(temperature=1.0, seed=12)).take(50) != first


def test_draws_go_on_where_the_buffers_say() -> None:
    chooser = Chooser(Sampling(temperature=1.0, seed=3))
    chooser.take(10)
    saved = chooser.arena.fixed.clone()
    wanted = chooser.take(20)
    chooser.arena.fixed.copy_(saved)
    assert chooser.take(20) == wanted


def test_settings_without_a_seed_keep_the_noise_of_the_state() -> None:
    """Who changes the temperature after a restore must not start the noise anew."""
    chooser = Chooser(Sampling(temperature=1.0, seed=3))
    chooser.take(10)
    saved = chooser.arena.fixed.clone()
    wanted = chooser.take(20)
    chooser.arena.fixed.copy_(saved)
    write_settings(chooser.arena, Sampling(temperature=1.0))
    assert chooser.take(20) == wanted


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"repetition_penalty": 0.0},
        {"seed": 2**64},
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_a_repetition_penalty_looks_at_the_whole_context() -> None:
    model = adopted("llama")
    decoder = model.bind(model.arena())
    decoder.set_sampling(Sampling(repetition_penalty=1e6))
    prompt = tokens_of(100)
    feed(decoder, prompt)
    said = [decoder.choose(), *(decoder.step() for _ in range(20))]
    assert len(set(said)) == len(said)
    assert not set(said) & set(prompt)
