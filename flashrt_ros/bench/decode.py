# SPDX-License-Identifier: Apache-2.0
"""Decode speed against `generate()` of transformers, same weights, same dtype, one run."""

from __future__ import annotations

import statistics
import time

import torch

from ..models.language import Generator, Limits, Reuse
from .language import Pair, hybrid_config, peak_mib, random_tokens, reset_peak
from .report import Report, row_of


def run(report: Report, *, quick: bool = False, device: str = "cpu") -> None:
    """Rows `decode_<dtype>` in tokens/s; ratio is ours over that of `generate()`."""
    prompt, count, turns = (64, 16, 2) if quick else (512, 64, 5)
    for dtype in (torch.float32, torch.bfloat16):
        pair = Pair(
            hybrid_config(quick), max_context=prompt + count + 1, dtype=dtype, device=device
        )
        tokens = random_tokens(prompt, pair.model.vocabulary, seed=1)
        generator = pair.generator()
        own, plain = [], []
        reset_peak()
        for _ in range(turns):  # in turns, so that both meet the same other load
            own.append(_own_speed(generator, tokens, count))
            plain.append(_plain_speed(pair, tokens, count))
        name = str(dtype).removeprefix("torch.")
        base, median = statistics.median(plain), statistics.median(own)
        params = {
            "prompt": prompt,
            "tokens": count,
            "parameters": pair.parameters,
            "peak_mib": peak_mib(),
        }
        report.add(
            row_of(
                f"decode_{name}",
                own,
                unit="tokens/s",
                params=params,
                baseline=base,
                ratio=median / base,
            )
        )
        report.add(
            row_of(f"decode_transformers_generate_{name}", plain, unit="tokens/s", params=params)
        )


def _own_speed(generator: Generator, tokens: list[int], count: int) -> float:
    generator.start(tokens, limits=Limits(count, stop_tokens=()), reuse=Reuse.EXACT)
    while not generator.advance().tokens:
        pass
    start = time.perf_counter()
    said = sum(len(step.tokens) for step in generator.steps())
    return said / (time.perf_counter() - start)


def _plain_speed(pair: Pair, tokens: list[int], count: int) -> float:
    """Tokens after the first a second: two runs, so that the prefill cancels out."""
    ids = torch.tensor([tokens], device=pair.device)
    spent = []
    for length in (1, count):
        start = time.perf_counter()
        pair.plain.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=length,
            min_new_tokens=length,
        )
        spent.append(time.perf_counter() - start)
    return (count - 1) / max(spent[1] - spent[0], 1e-9)
