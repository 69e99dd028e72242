# SPDX-License-Identifier: Apache-2.0
"""Time to the first token: cold, and after a capsule restore plus a suffix of 16 tokens."""

from __future__ import annotations

import copy
import statistics
from functools import partial

import torch
from transformers import DynamicCache

from ..models.language import Reuse
from .language import Pair, first_token, hybrid_config, peak_mib, random_tokens, reset_peak
from .report import Report, row_of, timed

SUFFIX = 16


def run(report: Report, *, quick: bool = False, device: str = "cpu") -> None:
    """Rows `ttft_*_<length>`; baseline and ratio compare with the cold prefill of the same run."""
    lengths = (256, 512) if quick else (2048, 4096, 8192, 16384)
    pair = Pair(
        hybrid_config(quick), max_context=lengths[-1] + 256, dtype=torch.float32, device=device
    )
    for length in lengths:
        _measure(report, pair, length, cold=1 if length > 4096 else 2, warm=4 if quick else 8)


def _measure(report: Report, pair: Pair, length: int, *, cold: int, warm: int) -> None:
    size = pair.model.vocabulary
    prefix = random_tokens(length, size, seed=length)
    prompts = [prefix + random_tokens(SUFFIX, size, seed=n) for n in range(warm)]
    params = {"tokens": length, "suffix": SUFFIX, "parameters": pair.parameters}

    generator = pair.generator()
    reset_peak()
    own_cold = [timed(partial(first_token, generator, prompts[0], Reuse.NONE)) for _ in range(cold)]
    restored = []
    for prompt in prompts[1:]:
        first_token(generator, random_tokens(32, size, seed=99), Reuse.NONE)  # dirty the state
        restored.append(timed(partial(first_token, generator, prompt, Reuse.EXACT)))
    own_peak = peak_mib()

    reset_peak()
    plain_cold = [timed(partial(pair.plain_first_token, prompts[0])) for _ in range(cold)]
    kept = pair.cache()
    pair.plain_first_token(prefix, kept)
    copied = [timed(partial(_from_copy, pair, prompt, kept, length)) for prompt in prompts[1:]]
    plain_peak = peak_mib()

    base = statistics.median(own_cold)
    fresh = statistics.median(plain_cold)
    name = f"{length // 1024}k" if length >= 1024 else str(length)
    for kind, samples, baseline, peak in (
        ("cold", own_cold, fresh, own_peak),
        ("restore", restored, base, own_peak),
        ("transformers_fresh", plain_cold, fresh, plain_peak),
        ("transformers_deepcopy", copied, fresh, plain_peak),
    ):
        report.add(
            row_of(
                f"ttft_{kind}_{name}",
                samples,
                unit="ms",
                params={**params, "peak_mib": peak},
                baseline=baseline,
                ratio=baseline / statistics.median(samples),
            )
        )


def _from_copy(pair: Pair, prompt: list[int], kept: DynamicCache, seen: int) -> int:
    return pair.plain_first_token(prompt, copy.deepcopy(kept), seen)
