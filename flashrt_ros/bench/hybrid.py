# SPDX-License-Identifier: Apache-2.0
"""A random hybrid of about 4 B parameters in Qwen3.5's shape: what a GPU makes of the whole path.

Snapshot and restore of a long session against a plain copy of as many bytes, time to the first
token cold and after a restore, and decode against what the memory's bandwidth allows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

from ..models.language import Generator, Limits, PrefixRegistry, Reuse, adopt
from ..runtime import Backend, Session
from .report import Params, Report, interleaved, row_of, timed

SUFFIX = 16


@dataclass(frozen=True)
class Sizes:
    """How large the model is and how much is measured."""

    config: Qwen3_5TextConfig
    dtype: torch.dtype
    lengths: tuple[int, ...]  # prompts; sessions are frozen at the longest
    turns: int
    tokens: int  # decoded


def sizes_of(quick: bool, device: str) -> Sizes:
    period = ["linear_attention"] * 3 + ["full_attention"]
    if quick:
        config = _config(64, 4, period, heads=4, kv=2, head=16, linear=(2, 4, 16), vocabulary=512)
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        return Sizes(config, dtype, (256, 512), 3, 4)
    config = _config(
        2560, 32, period * 8, heads=16, kv=4, head=256, linear=(16, 32, 128), vocabulary=248320
    )
    return Sizes(config, torch.bfloat16, (2048, 16384), 20, 64)


def _config(
    hidden: int, layers: int, kinds: list[str], *, heads: int, kv: int, head: int,
    linear: tuple[int, int, int], vocabulary: int,
) -> Qwen3_5TextConfig:  # fmt: skip
    """linear: key heads, value heads, size of a head."""
    return Qwen3_5TextConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 18 // 5,
        num_hidden_layers=layers,
        layer_types=kinds,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=head,
        linear_num_key_heads=linear[0],
        linear_num_value_heads=linear[1],
        linear_key_head_dim=linear[2],
        linear_value_head_dim=linear[2],
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )


def run(report: Report, *, quick: bool = False, device: str = "cpu") -> None:
    """Rows `hybrid_*`."""
    sizes = sizes_of(quick, device)
    generator, parameters = _generator(report, sizes, device)
    params: Params = {"parameters": parameters, "dtype": str(sizes.dtype).removeprefix("torch.")}
    prompts = {length: _tokens(generator, length, seed=length) for length in sizes.lengths}
    for length, prompt in prompts.items():
        _first_tokens(report, generator, prompt, sizes, {**params, "tokens": length})
    _verbs(report, generator, prompts[max(sizes.lengths)], sizes, params)
    _decode(report, generator, prompts[min(sizes.lengths)], sizes, params)
    generator.session.close()


def _generator(report: Report, sizes: Sizes, device: str) -> tuple[Generator, int]:
    """The model bound by captured plans; by eager ones, with a note, where capturing fails."""
    torch.manual_seed(0)
    with torch.device(device):
        module: Any = AutoModelForCausalLM.from_config(sizes.config, dtype=sizes.dtype)
    parameters = sum(p.numel() for p in module.parameters())
    context = max(sizes.lengths) + SUFFIX + sizes.tokens + 1
    wanted = [Backend.CUDA_GRAPH] if device.startswith("cuda") else []
    for backend in [*wanted, Backend.EAGER]:
        try:
            model = adopt(module, max_context=context, device=device, backend=backend)
            arena = model.arena()
            decoder = model.bind(arena)
            break
        except Exception as error:
            if backend is Backend.EAGER:
                raise
            report.notes.append(
                f"Plans are eager: {backend} failed: {type(error).__name__}: {error}"
            )
    session = Session(arena, fingerprint=model.fingerprint)
    return Generator(decoder, session, prefixes=PrefixRegistry(session)), parameters


def _tokens(generator: Generator, count: int, seed: int) -> list[int]:
    size = generator.decoder.model.vocabulary
    made = torch.randint(0, size, (count,), generator=torch.Generator().manual_seed(seed))
    found: list[int] = made.tolist()
    return found


def _said(generator: Generator, tokens: list[int], reuse: Reuse, count: int = 1) -> list[int]:
    generator.start(tokens, limits=Limits(count, stop_tokens=()), reuse=reuse)
    return [token for step in generator.steps() for token in step.tokens]


def _first_tokens(
    report: Report, generator: Generator, prompt: list[int], sizes: Sizes, params: Params
) -> None:
    """Cold and restored in turns; each restored prompt ends in another suffix."""
    turns = max(3, sizes.turns // 4)
    suffixes = [_tokens(generator, SUFFIX, seed=n) for n in range(2 * turns + 2)]
    _said(generator, prompt + suffixes[0], Reuse.NONE)
    _said(generator, prompt + suffixes[1], Reuse.EXACT)
    cold, restored = [], []
    for turn in range(turns):
        ends = suffixes[2 + 2 * turn : 4 + 2 * turn]
        cold.append(timed(partial(_said, generator, prompt + ends[0], Reuse.NONE)))
        _said(generator, _tokens(generator, 32, seed=99), Reuse.NONE)  # drive the state elsewhere
        restored.append(timed(partial(_said, generator, prompt + ends[1], Reuse.EXACT)))
    name = f"{len(prompt)}"
    report.add(row_of(f"hybrid_ttft_cold_{name}", cold, unit="ms", params=params))
    row = row_of(f"hybrid_ttft_restore_{name}", restored, unit="ms", params=params, against=cold)
    report.add(row)


def _verbs(
    report: Report, generator: Generator, prompt: list[int], sizes: Sizes, params: Params
) -> None:
    """Snapshot and restore that share nothing with what is there, and plain copies in turns."""
    session = generator.session
    generator.prefixes = None  # whose capsules would share rows with what is measured
    _said(generator, _tokens(generator, len(prompt), seed=5), Reuse.NONE)
    other = session.snapshot("other", overwrite=True)
    _said(generator, prompt, Reuse.NONE)
    kept = session.snapshot("kept", overwrite=True)
    session.restore(other)
    copied = session.restore(kept).bytes_copied
    own = session.store.info(kept).own_bytes
    device = session.arena.device
    source = torch.ones(copied, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    samples: dict[str, list[float]] = {"copy": [], "snapshot": [], "restore": []}
    for _ in range(sizes.turns):
        session.restore(other)
        samples["copy"].append(timed(lambda: target.copy_(source)))
        samples["restore"].append(timed(partial(session.restore, kept)))
        session.drop(session.store.info(kept))
        samples["snapshot"].append(timed(lambda: session.snapshot("kept")))
        kept = session.store.find("kept")
    params = {**params, "tokens": len(prompt), "bytes": copied, "own_bytes": own}
    report.add(row_of("hybrid_copy", samples["copy"], params=params))
    for verb in ("snapshot", "restore"):
        name = f"hybrid_{verb}"
        report.add(row_of(name, samples[verb], params=params, against=samples["copy"]))


def _decode(
    report: Report, generator: Generator, prompt: list[int], sizes: Sizes, params: Params
) -> None:
    """Tokens a second; ratio is over what reading every weight once a token allows."""
    model = generator.decoder.model
    weights = sum(p.numel() * p.element_size() for p in model.module.parameters())
    block = torch.ones(min(weights, 1 << 30), dtype=torch.uint8, device=model.device)
    target = torch.zeros_like(block)

    def decode() -> None:
        for _ in generator.steps():
            pass

    def prepared() -> Callable[[], None]:
        generator.start(prompt, limits=Limits(sizes.tokens + 1, stop_tokens=()), reuse=Reuse.ANY)
        while not generator.advance().tokens:
            pass
        return decode

    rates, bounds = [], []
    prepared()()
    for _ in range(max(3, sizes.turns // 4)):
        spent = interleaved({"copy": partial(target.copy_, block)}, 3)["copy"]
        bandwidth = 2 * block.numel() / statistics.median(spent)  # read and written
        bounds.append(bandwidth / weights)
        rates.append(sizes.tokens / timed(prepared()))
    params = {**params, "tokens": sizes.tokens, "prompt": len(prompt), "weight_bytes": weights}
    report.add(row_of("hybrid_decode", rates, unit="tokens/s", params=params, against=bounds))
