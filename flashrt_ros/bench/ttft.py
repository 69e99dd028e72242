# SPDX-License-Identifier: Apache-2.0
"""Time to the first token: cold, and after a state came back plus a suffix of 16 tokens."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import DynamicCache

from ..models.language import Reuse
from . import smollm2
from .decode import open_peer
from .language import (
    Pair,
    first_token,
    hybrid_config,
    peak_mib,
    random_module,
    random_tokens,
    reset_peak,
)
from .llama_cpp import LlamaCpp
from .report import Report, row_of, timed

SUFFIX = 16


def run(report: Report, *, quick: bool = False, device: str = "cpu", full: bool = False) -> None:
    """Rows `ttft_<model>_<cold|restore>_over_<whom>_<dtype>_<length>`, ms.

    A row has our times as samples and the named one's, taken in turns, as `baseline`. `full` adds
    the longest lengths: 16k of the hybrid; 4k and, as its context is 8k, 7936 of SmolLM2. All are
    whole chunks, so that the capsule to restore is one of the whole prefix.
    """
    lengths = [256, 512] if quick else [2048, 4096, 8192] + [16384] * full
    config = hybrid_config(quick)
    context = lengths[-1] + 256
    pair = Pair(random_module(config, torch.float32), max_context=context, device=device)
    for length in lengths:
        _measure(report, "hybrid", pair, length, quick=quick)
    if device != "cpu":
        return
    lengths = [256] if quick else [2048] + [4096, 7936] * full
    for module in smollm2.modules(report, quick=quick):
        context = lengths[-1] + SUFFIX + 1
        pair = Pair(module, max_context=context, device=device)
        with tempfile.TemporaryDirectory() as folder:
            peer = open_peer(report, module, Path(folder), context)
            for length in lengths:
                _measure(report, "smollm2", pair, length, quick=quick, peer=peer)
            if peer is not None:
                peer.close()


def _measure(
    report: Report, model: str, pair: Pair, length: int, *, quick: bool,
    peer: LlamaCpp | None = None,
) -> None:  # fmt: skip
    size = pair.model.vocabulary
    prefix = random_tokens(length, size, seed=length)
    turns = 4 if quick else 8
    prompts = [prefix + random_tokens(SUFFIX, size, seed=n) for n in range(turns + 1)]
    other = random_tokens(32, size, seed=99)
    generator = pair.generator()

    cold: dict[str, Callable[[], object]] = {
        "own": partial(first_token, generator, prompts[0], Reuse.NONE),
        "transformers": partial(pair.plain_first_token, prompts[0]),
    }
    if peer is not None:
        cold["llama_cpp"] = partial(_peer_cold, peer, prompts[0])
    reset_peak()
    colds: dict[str, list[float]] = {side: [] for side in cold}
    for _ in range(1 if length > 4096 else 2):
        for side, take in cold.items():
            colds[side].append(timed(take))

    kept = pair.cache()
    pair.plain_first_token(prefix, kept)
    state = None
    if peer is not None:
        _peer_cold(peer, prefix)
        state = peer.state()
    # the prefix's capsule is there since the cold run; the first restore is a warm-up
    first_token(generator, prompts[0], Reuse.EXACT)
    warm: dict[str, list[float]] = {"own": [], "transformers_deepcopy": []}
    for prompt in prompts[1:]:
        first_token(generator, other, Reuse.NONE)  # the state is driven elsewhere
        warm["own"].append(timed(partial(first_token, generator, prompt, Reuse.EXACT)))
        copied = partial(_from_copy, pair, prompt, kept, length)
        warm["transformers_deepcopy"].append(timed(copied))
        if peer is not None and state is not None:
            _peer_cold(peer, other)
            again = partial(_peer_restore, peer, state, prompt[length:])
            warm.setdefault("llama_cpp", []).append(timed(again))

    params = {
        "tokens": length,
        "suffix": SUFFIX,
        "parameters": pair.parameters,
        "peak_mib": peak_mib(),
    }
    dtype = str(pair.plain.dtype).removeprefix("torch.")
    where = f"{dtype}_{length // 1024}k" if length % 1024 == 0 else f"{dtype}_{length}"
    for kind, samples in (("cold", colds), ("restore", warm)):
        for side, against in samples.items():
            if side != "own":
                name = f"ttft_{model}_{kind}_over_{side}_{where}"
                own = samples["own"]
                report.add(row_of(name, own, unit="ms", params=params, against=against))
    # what a restore is for: against computing the prompt, ours and transformers'
    for side in ("own", "transformers"):
        base = sorted(colds[side])[len(colds[side]) // 2]
        against = [base] * len(warm["own"])
        name = f"ttft_{model}_restore_over_{side}_cold_{where}"
        report.add(row_of(name, warm["own"], unit="ms", params=params, against=against))


def _from_copy(pair: Pair, prompt: list[int], kept: DynamicCache, seen: int) -> int:
    return pair.plain_first_token(prompt, copy.deepcopy(kept), seen)


def _peer_cold(peer: LlamaCpp, prompt: list[int]) -> int:
    peer.clear()
    return peer.see(prompt)


def _peer_restore(peer: LlamaCpp, state: bytearray, suffix: list[int]) -> int:
    peer.clear()
    peer.set_state(state)
    return peer.see(suffix)
