# SPDX-License-Identifier: Apache-2.0
"""What a hybrid language model must do on every device and by every plan."""

from __future__ import annotations

import pytest
import torch
from contract import NEEDS_GPU, ON_EACH_DEVICE, no_synchronisation
from transformers import AutoModelForCausalLM

from flashrt_ros.bench.hybrid import sizes_of
from flashrt_ros.models.language import adopt
from flashrt_ros.runtime import Backend, Session, ShapeKey

each = pytest.mark.parametrize(("device", "backend"), ON_EACH_DEVICE)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])


class Talking:
    """A small random Qwen3.5 with its session."""

    def __init__(self, device: str, backend: Backend, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        module = AutoModelForCausalLM.from_config(sizes_of(True, "cpu").config, dtype=dtype)
        self.model = adopt(module, max_context=256, device=device, backend=backend, chunk=32)
        self.arena = self.model.arena()
        self.decoder = self.model.bind(self.arena)
        self.session = Session(self.arena, fingerprint=self.model.fingerprint)

    def feed(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(3, self.model.vocabulary, (count,), generator=generator).tolist()
        start = self.decoder.position
        for length in self.model.pieces(start, start + count):
            self.decoder.prefill(tokens[:length])
            del tokens[:length]
        self.decoder.choose()
        self.commit()

    def say(self, count: int) -> tuple[list[int], bytes]:
        """Greedy tokens, and the bytes of the last logits."""
        said = [self.decoder.step() for _ in range(count)]
        self.commit()
        return said, self.decoder.logits().cpu().numpy().tobytes()

    def commit(self) -> None:
        counters = {group.counter for group in self.arena.groups}
        rows = {counter: self.arena.row_count(counter) for counter in counters}
        self.session.commit(stamp_ns=1, rows=rows)


@each
@dtypes
def test_a_restored_text_goes_on_bit_for_bit_logits_included(device, backend, dtype) -> None:
    one = Talking(device, backend, dtype)
    one.feed(70, seed=1)
    kept = one.session.snapshot()
    wanted = one.say(12)
    one.feed(40, seed=2)
    for _ in range(2):
        one.session.restore(kept)
        assert one.say(12) == wanted


@each
def test_the_replay_of_a_decode_step_never_waits_for_the_device(device, backend) -> None:
    one = Talking(device, backend, torch.float32)
    one.feed(10, seed=1)
    one.say(2)
    with no_synchronisation(device), torch.inference_mode(False):
        one.decoder._plain_step.replay(ShapeKey(1, one.model.buckets[0]))


@NEEDS_GPU
@dtypes
def test_graphs_and_eager_plans_say_the_same_tokens(dtype) -> None:
    said = []
    for backend in (Backend.EAGER, Backend.CUDA_GRAPH):
        one = Talking("cuda", backend, dtype)
        one.feed(64, seed=1)
        said.append(one.say(16))
    assert said[0] == said[1]
