# SPDX-License-Identifier: Apache-2.0
"""The small model that comes with the extra [llm] says what transformers says."""

from __future__ import annotations

import pytest
import torch
from language_families import feed
from transformers import DynamicCache

from flashrt_ros.bench import smollm2
from flashrt_ros.models.language import adopt
from flashrt_ros.models.language.forward import call
from flashrt_ros.models.language.shipped import shipped_model

pytest.importorskip("gguf", reason="the extra [gguf] is not installed")
try:
    shipped_model()
except FileNotFoundError as missing:
    pytest.skip(str(missing), allow_module_level=True)


@torch.no_grad()
def test_smollm2_says_what_transformers_says() -> None:
    module = smollm2.load()
    module.set_attn_implementation("sdpa")
    prompt = torch.randint(3, 49152, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    cache = DynamicCache(config=module.config)
    wanted: list[int] = []
    new = prompt
    for _ in range(24):
        seen = cache.get_seq_length()
        positions = torch.arange(seen, seen + len(new))[None]
        new = [int(call(module, torch.tensor([new]), positions, cache)[0, -1].argmax())]
        wanted += new
    model = adopt(module, max_context=100)
    assert model.native
    decoder = model.bind(model.arena())
    feed(decoder, prompt)
    assert [decoder.choose(), *(decoder.step() for _ in range(23))] == wanted
