# SPDX-License-Identifier: Apache-2.0
"""Decode speed beside `generate()` of transformers and llama.cpp: same weights, dtype and run."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ..models.language import Generator, Limits, Reuse
from . import smollm2
from .language import Pair, hybrid_config, peak_mib, random_module, random_tokens, reset_peak
from .llama_cpp import LlamaCpp, PeerMissing, rows_type
from .report import Report, row_of

Speed = Callable[[], float]


def run(report: Report, *, quick: bool = False, device: str = "cpu", full: bool = False) -> None:
    """Rows `decode_<model>_<who>_<dtype>` in tokens/s.

    A row of ours has the same run's median of a peer as `baseline`, one row for each peer; the last
    peer of SmolLM2 is memory itself: as many steps as the bytes of a step can be read in a second.
    `full` adds SmolLM2 after a prompt of 2048 tokens.
    """
    prompt, count, turns = (64, 16, 2) if quick else (512, 64, 4)
    for dtype in (torch.float32, torch.bfloat16):
        config = hybrid_config(quick)
        pair = Pair(random_module(config, dtype), max_context=prompt + count + 1, device=device)
        _measure(report, "hybrid", pair, dtype, prompt, count, turns)
    if device != "cpu":
        return
    for module in smollm2.modules(report, quick=quick):
        dtype = module.dtype
        for length in (prompt, 2048) if full and not quick else (prompt,):
            pair = Pair(module, max_context=length + count + 1, device=device)
            name = "smollm2" if length == prompt else f"smollm2_at_{length}"
            with tempfile.TemporaryDirectory() as folder:
                peer = open_peer(report, module, Path(folder), length + count + 1)
                _measure(report, name, pair, dtype, length, count, turns, peer)


def open_peer(report: Report, module: object, folder: Path, context: int) -> LlamaCpp | None:
    """llama.cpp with the weights of a module; None, and a note, where there is none."""
    path = folder / "weights.gguf"
    dtype = module.dtype  # type: ignore[attr-defined]
    try:
        smollm2.write_gguf(module, path)
        peer = LlamaCpp(
            path, context=context, threads=torch.get_num_threads(), rows=rows_type(dtype)
        )
    except (PeerMissing, ImportError) as error:
        report.notes.append(f"llama.cpp is left out: {error}")
        return None
    report.peers["llama.cpp"] = peer.version
    note = f"llama.cpp's library was built for: {peer.system}"
    if note not in report.notes:
        report.notes.append(note)
    return peer


def _measure(
    report: Report, name: str, pair: Pair, dtype: torch.dtype, prompt: int, count: int, turns: int,
    peer: LlamaCpp | None = None,
) -> None:  # fmt: skip
    tokens = random_tokens(prompt, pair.model.vocabulary, seed=1)
    generator = pair.generator()
    sides: dict[str, Speed] = {
        "own": lambda: _own_speed(generator, tokens, count),
        "transformers": lambda: _plain_speed(pair, tokens, count),
    }
    if peer is not None:
        opened = peer
        sides["llama_cpp"] = lambda: _peer_speed(opened, tokens, count)
        read = torch.ones(bytes_of_a_step(pair, prompt + count // 2) // 4)
        sides["memory_bound"] = lambda: _bound_speed(read)
    reset_peak()
    samples: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(turns):  # in turns, so that all meet the same other load
        for side, speed in sides.items():
            samples[side].append(speed())
    params = {
        "prompt": prompt,
        "tokens": count,
        "parameters": pair.parameters,
        "kernels": pair.model.kernels.partition(":")[0],
        "peak_mib": peak_mib(),
    }
    suffix = str(dtype).removeprefix("torch.")
    for side in list(sides)[1:]:
        report.add(
            row_of(
                f"decode_{name}_over_{side}_{suffix}",
                samples["own"],
                unit="tokens/s",
                params=params,
                against=samples[side],
            )
        )
    if peer is not None:
        peer.close()


def bytes_of_a_step(pair: Pair, rows: int) -> int:
    """Bytes that a step has to read: every weight once, and `rows` rows of every layer."""
    weights = sum(p.numel() * p.element_size() for p in pair.plain.parameters())
    kept = sum(
        spec.nbytes // spec.shape[spec.row_dim] * rows
        for layer in pair.model.geometry
        for spec in layer.rows
    )
    return weights + kept


def _bound_speed(read: torch.Tensor) -> float:
    """Steps a second if a step were nothing but reading as many bytes, as torch sums them."""
    spent = []
    for _ in range(8):
        start = time.perf_counter()
        read.sum()
        spent.append(time.perf_counter() - start)
    return 1 / statistics.median(spent)


def _own_speed(generator: Generator, tokens: list[int], count: int) -> float:
    generator.start(tokens, limits=Limits(count, stop_tokens=()), reuse=Reuse.EXACT)
    while not generator.advance().tokens:
        pass
    start = time.perf_counter()
    said = sum(len(step.tokens) for step in generator.steps())
    return said / (time.perf_counter() - start)


def _plain_speed(pair: Pair, tokens: list[int], count: int) -> float:
    """Tokens after the first a second, timed from token to token by a streamer."""
    ids = torch.tensor([tokens], device=pair.device)
    ticks = _Ticks()
    pair.plain.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
        streamer=ticks,
    )
    # the first call is the prompt's
    return (count - 1) / (ticks.times[count] - ticks.times[1])


class _Ticks:
    """When `generate()` said each token; a streamer."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _peer_speed(peer: LlamaCpp, tokens: list[int], count: int) -> float:
    peer.clear()
    token = peer.see(tokens)
    start = time.perf_counter()
    for _ in range(count - 1):
        token = peer.see([token])
    return (count - 1) / (time.perf_counter() - start)
