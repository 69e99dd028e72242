# SPDX-License-Identifier: Apache-2.0
"""Decode steps in C++ say what transformers says, wherever rows, widths and threads end."""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from language_families import Reference, adopted, checkpoint, feed, save_checkpoint, tokens_of

import flashrt_ros
from flashrt_ros.models.language import Decoder, Sampling, adopt
from flashrt_ros.models.language.decoder import DRAW, HISTORY, LOGITS, PENDING
from flashrt_ros.models.language.native import (
    SOURCE,
    NativeStep,
    StepBuffers,
    Unavailable,
    build,
)
from flashrt_ros.runtime.errors import InternalFault, InvalidArgument, Unsupported

_TOLERANCE = 2e-4


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def said(decoder: Decoder, count: int) -> list[int]:
    return [decoder.choose(), *(decoder.step() for _ in range(count - 1))]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_native_steps_say_what_torch_says(family: str) -> None:
    """The parity tests meet transformers with the default, which is native for these families."""
    native = adopted(family)
    plain = adopt(checkpoint(family), max_context=600, chunk=64, kernels="torch")
    assert (native.native, native.kernels) == (True, "native")
    assert (plain.native, plain.kernels) == (False, "torch")
    assert (native.fingerprint.plan, plain.fingerprint.plan) == ("native", "eager")
    decoders = [model.bind(model.arena()) for model in (native, plain)]
    for decoder in decoders:
        feed(decoder, tokens_of(100))
    assert said(decoders[0], 60) == said(decoders[1], 60)
    assert decoders[0].tokens() == decoders[1].tokens()
    torch.testing.assert_close(decoders[0].logits(), decoders[1].logits(), rtol=0, atol=_TOLERANCE)
    for name in ("layer0.attention.key", "layer3.attention.value"):
        rows = [decoder.arena[name][:, : decoder.position] for decoder in decoders]
        torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=_TOLERANCE)


def test_widths_that_fill_no_vector_and_lengths_around_a_chunk_of_rows(tmp_path: Path) -> None:
    """The kernel goes through 16 values and 128 rows at a time."""
    widths: dict[str, Any] = {"hidden_size": 72, "intermediate_size": 101, "vocab_size": 163}
    folder = save_checkpoint("llama", tmp_path, **widths)
    model = adopt(folder, max_context=260, chunk=64, kernels="native")
    for length in (1, 126, 254):
        decoder = model.bind(model.arena())
        reference = Reference(folder)
        prompt = tokens_of(length, seed=length)
        feed(decoder, prompt)
        expected = reference.see(prompt)
        for _ in range(4):
            token = decoder.pending if decoder.pending is not None else decoder.choose()
            expected = reference.see([token])
            decoder.step()
            torch.testing.assert_close(decoder.logits(), expected, rtol=0, atol=_TOLERANCE)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_number_of_threads_changes_no_bit(dtype: str) -> None:
    model = adopt(checkpoint("qwen3"), max_context=300, chunk=64, dtype=dtype)
    assert model.native
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(1)
        decoder = model.bind(model.arena())
        feed(decoder, tokens_of(200))
        decoder.choose()
        torch.set_num_threads(count)
        decoder.step()
        decoder.step()
        found.append(decoder.arena.fixed.clone())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_bfloat16_steps_are_no_farther_from_float32_than_transformers() -> None:
    model = adopt(checkpoint("llama"), max_context=300, chunk=64, dtype="bfloat16")
    assert model.native
    decoder = model.bind(model.arena())
    exact = Reference(checkpoint("llama"))
    theirs = Reference(checkpoint("llama"), dtype=torch.bfloat16)
    prompt = tokens_of(150)
    feed(decoder, prompt)
    exact.see(prompt)
    theirs.see(prompt)
    ours, others = 0.0, 0.0
    for _ in range(8):
        token = decoder.pending if decoder.pending is not None else decoder.choose()
        wanted, given = exact.see([token]), theirs.see([token])
        decoder.step()
        ours += float((decoder.logits() - wanted).abs().mean())
        others += float((given - wanted).abs().mean())
    assert ours < 1.2 * others


def test_a_step_without_a_token_or_without_room_changes_nothing() -> None:
    model = adopt(checkpoint("llama"), max_context=40, chunk=32)
    arena = model.arena()
    model.bind(arena)
    buffers = StepBuffers(arena[HISTORY], arena[PENDING], arena[DRAW], arena[LOGITS])
    step = NativeStep(model.module, model.geometry, arena, buffers, 40)
    for pending, position in ((-1, 3), (160, 3), (5, 40), (5, -1)):
        arena[PENDING].fill_(pending)
        arena["position"].fill_(position)
        before = arena.fixed.clone()
        with pytest.raises(InternalFault, match="without a pending token or without room"):
            step.greedy()
        assert torch.equal(arena.fixed, before)


def test_what_the_kernels_do_not_compute_is_said_and_runs_in_torch(tmp_path: Path) -> None:
    gemma = adopt(checkpoint("gemma3_text"), max_context=100)
    assert not gemma.native
    assert "not gemma3_text" in gemma.kernels
    biased = save_checkpoint("llama", tmp_path, attention_bias=True)
    assert "q_proj.bias" in adopt(biased, max_context=100).kernels
    with pytest.raises(Unsupported, match=r"without bias.*q_proj\.bias"):
        adopt(biased, max_context=100, kernels="native")
    with pytest.raises(InvalidArgument, match="auto, native or torch"):
        adopt(checkpoint("llama"), max_context=100, kernels="fast")


def test_without_a_working_compiler_steps_run_in_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\ncase $1 in *version|-march*) echo 1;; *) exit 1;; esac\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.cache_clear()
    try:
        with pytest.raises(Unavailable, match="failed"):
            build()
        model = adopt(checkpoint("llama"), max_context=100)
        assert not model.native
        assert "failed" in model.kernels
        assert list(tmp_path.rglob("*.so")) == []
    finally:
        build.cache_clear()


def test_a_prefill_reads_whole_chunks_up_to_the_last_valid_row() -> None:
    model = adopted("llama")
    assert model.prefill_buckets[:3] == (64, 128, 192)
    assert model.prefill_buckets[-1] == model.max_context == 600
    arena = model.arena()
    decoder = model.bind(arena)
    feed(decoder, tokens_of(64))
    # rows of later chunks are not looked at: these would make every sum not a number
    for name in ("layer0.attention.key", "layer0.attention.value"):
        arena[name][:, 128:].fill_(float("nan"))
    feed(decoder, tokens_of(64))
    assert bool(torch.isfinite(decoder.logits()).all())


def test_compiled_steps_say_what_eager_steps_say(tmp_path: Path) -> None:
    """Greedy ones compiled; sampled ones, where the compiler cannot do them, in eager mode."""
    folder = save_checkpoint("llama", tmp_path, num_hidden_layers=1)
    models = [
        adopt(folder, max_context=100, chunk=64, kernels="torch", backend=backend)
        for backend in ("compiled", "eager")
    ]
    torch._dynamo.reset()
    decoders = [model.bind(model.arena(), seed=3) for model in models]
    active = {plan.name: str(plan.active) for plan in decoders[0].plans}
    assert (active["prefill"], active["plain_step"]) == ("eager", "compiled")
    for decoder in decoders:
        feed(decoder, tokens_of(20))
    assert said(decoders[0], 30) == said(decoders[1], 30)
    for decoder in decoders:
        decoder.set_sampling(Sampling(temperature=1.0, top_k=20, seed=5))
    assert [decoders[0].step() for _ in range(30)] == [decoders[1].step() for _ in range(30)]


def test_the_source_is_part_of_the_package() -> None:
    """A wheel without it would run everywhere, slowly."""
    root = Path(__file__).parent.parent
    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg")
    patterns = setup["options.package_data"]["flashrt_ros"].split()
    packed = {path for pattern in patterns for path in (root / "flashrt_ros").glob(pattern)}
    relative = SOURCE.relative_to(Path(flashrt_ros.__file__).parent)
    assert root / "flashrt_ros" / relative in packed
