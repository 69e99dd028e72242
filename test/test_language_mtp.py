# SPDX-License-Identifier: Apache-2.0
"""Drafting with the multi-token prediction head: the same tokens in fewer replays."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from language_families import checkpoint, save_checkpoint, tokens_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from flashrt_ros.models.language import Generator, LanguageModel, Limits, Reuse, Sampling, adopt
from flashrt_ros.models.language.decoder import PENDING
from flashrt_ros.models.language.geometry import ROWS
from flashrt_ros.models.language.mtp import HIDDEN, MtpHead
from flashrt_ros.runtime import Role, Session
from flashrt_ros.runtime.errors import Unsupported

FAMILIES = ["qwen3_5_text", "qwen3_next"]
_folders: list[TemporaryDirectory[str]] = []


@functools.cache
def with_head(family: str) -> Path:
    """A checkpoint whose next token depends mostly on the last one, and a head that knows that.

    The branches of the layers are faint, so the model is nearly a table from token to token, which
    the head computes too, without the branches: it is often right and often wrong.
    """
    _folders.append(TemporaryDirectory())
    folder = save_checkpoint(family, Path(_folders[-1].name))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight", "down_proj")):
            tensor.mul_(0.06)
    head = MtpHead(AutoModelForCausalLM.from_pretrained(folder))
    size = head.fc.out_features
    state = {name: tensor.detach().clone() for name, tensor in head.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    for name, tensor in state.items():
        if tensor.dim() > 1:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.15)
        elif "norm" in name:
            tensor.zero_()  # these norms multiply by 1 + weight
    state["fc.weight"][:, :size] = torch.eye(size) * 3
    save_file(
        {**tensors, **{f"mtp.{name}": tensor.contiguous() for name, tensor in state.items()}},
        file,
        metadata={"format": "pt"},
    )
    return folder


@functools.cache
def drafting(family: str, count: int) -> LanguageModel:
    return adopt(with_head(family), max_context=300, chunk=32, draft_tokens=count)


def generator_of(model: LanguageModel) -> Generator:
    arena = model.arena()
    return Generator(model.bind(arena), Session(arena, fingerprint=model.fingerprint))


def said_by(
    generator: Generator, prompt: list[int], count: int = 60, stop: tuple[int, ...] = ()
) -> list[int]:
    generator.start(prompt, Sampling(), Limits(count, (), stop), reuse=Reuse.NONE)
    return [token for step in generator.steps() for token in step.tokens]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_greedy_decoding_and_some_drafts_are_right(
    family: str, count: int
) -> None:
    plain = generator_of(drafting(family, 0))
    drafts = generator_of(drafting(family, count))
    for seed in range(2):
        prompt = tokens_of(50, seed=seed)
        assert said_by(drafts, prompt) == said_by(plain, prompt)
        # and so are the states: the branch that was not taken left nothing
        for name in ("layer0.recurrent", "layer0.conv", "logits"):
            torch.testing.assert_close(
                drafts.decoder.arena[name], plain.decoder.arena[name], rtol=0, atol=2e-4
            )
        assert drafts.decoder.position == plain.decoder.position
    decoder = drafts.decoder
    assert 0 < decoder.accepted < decoder.drafted
    assert drafts.session.live.number < plain.session.live.number


def test_a_boundary_covers_accepted_tokens_only_and_a_restore_repeats_the_rest() -> None:
    generator = generator_of(drafting("qwen3_5_text", 3))
    generator.start(tokens_of(50), Sampling(), Limits(60, stop_tokens=()), reuse=Reuse.NONE)
    spans = []
    for step in generator.steps():
        if step.tokens:
            spans.append(step.tokens)
            assert generator.decoder.tokens()[50:] == [t for span in spans for t in span]
        if len(spans) == 9:
            capsule = generator.session.snapshot()
    wanted = spans[9:]
    assert {len(span) for span in spans} > {1}
    said_by(generator, tokens_of(40, seed=3))
    generator.session.restore(capsule)
    assert [step.tokens for step in generator.steps()] == wanted


def head_says(generator: Generator) -> bytes:
    """What the head makes of the pending token now; it writes scratch rows only."""
    decoder = generator.decoder
    drafting = decoder._drafting
    assert drafting is not None
    drafting._frame.rows, drafting._frame.bucket = decoder.arena[ROWS].clone().view(1), 256
    with torch.no_grad():
        hidden = drafting._head.hidden(
            decoder.arena[PENDING].view(1), decoder.arena[HIDDEN][None], drafting._cache
        )
    return hidden.numpy().tobytes()


def test_leaving_out_the_head_changes_what_it_drafts_from_but_no_token() -> None:
    generator = generator_of(drafting("qwen3_5_text", 3))
    session = generator.session
    generator.start(tokens_of(50), Sampling(), Limits(60, stop_tokens=()), reuse=Reuse.NONE)
    while len(generator.generated) < 8:
        generator.advance()
    capsule, run = session.snapshot(), generator.run
    drafted_from = head_says(generator)
    wanted = [token for step in generator.steps() for token in step.tokens]
    for roles, same in ((set(Role), True), (set(Role) - {Role.MTP}, False)):
        said_by(generator, tokens_of(70, seed=5))
        session.restore(capsule, roles=roles)
        generator._set(None)
        generator._run = run
        assert (head_says(generator) == drafted_from) is same
        assert [token for step in generator.steps() for token in step.tokens] == wanted


def test_no_token_is_said_past_a_stop_token_or_the_limit() -> None:
    plain = generator_of(drafting("qwen3_5_text", 0))
    drafts = generator_of(drafting("qwen3_5_text", 3))
    prompt = tokens_of(50)
    full = said_by(plain, prompt, 20)
    for count in range(1, 9):
        assert said_by(drafts, prompt, count) == full[:count]
        assert drafts.decoder.position == 50 + count - 1
    for stop in full[4:8]:
        cut = full[: full.index(stop) + 1]
        assert said_by(drafts, prompt, 20, (stop,)) == cut
        assert drafts.decoder.position == 50 + len(cut) - 1


def test_drafts_stop_where_the_context_ends() -> None:
    plain = generator_of(drafting("qwen3_5_text", 0))
    drafts = generator_of(drafting("qwen3_5_text", 3))
    prompt = tokens_of(290)
    assert said_by(drafts, prompt) == said_by(plain, prompt)
    assert drafts.decoder.room == 0


def test_sampled_tokens_are_not_drafted_and_stay_the_same() -> None:
    sampling = Sampling(temperature=1.3, seed=4)
    said = []
    for count in (0, 3):
        generator = generator_of(drafting("qwen3_5_text", count))
        generator.start(tokens_of(40), sampling, Limits(20, stop_tokens=()))
        said.append([step.tokens for step in generator.steps() if step.tokens])
        assert generator.decoder.drafted == 0
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("family", "reason"), [("qwen3_5_text", r"no mtp\.\*"), ("llama", "llama")]
)
def test_a_checkpoint_without_a_head_is_refused(family: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        adopt(checkpoint(family), max_context=100, draft_tokens=2)
