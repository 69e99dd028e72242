# SPDX-License-Identifier: Apache-2.0
"""Weights in eight bits: an option that says what it costs, or why it cannot be had."""

from __future__ import annotations

import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from flashrt_ros.bench.hybrid import sizes_of
from flashrt_ros.models.language import LanguageModel, adopt
from flashrt_ros.models.language.quantisation import quantise
from flashrt_ros.runtime import Session
from flashrt_ros.runtime.errors import InvalidArgument, Unsupported


def adopted() -> LanguageModel:
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(sizes_of(True, "cpu").config, dtype=torch.bfloat16)
    return adopt(module, max_context=64, chunk=16, kernels="torch")


def test_without_torchao_it_is_refused_with_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(Unsupported, match="needs torchao"):
        quantise(adopted(), "int8-weight-only")


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="'int3' is not known"):
        quantise(adopted(), "int3")


@pytest.mark.parametrize("kind", ["int8-weight-only", "float8-weight-only"])
def test_quantised_weights_have_a_small_known_error_and_another_fingerprint(kind) -> None:
    pytest.importorskip("torchao")
    model = adopted()
    plain = model.fingerprint
    try:
        quantised, error = quantise(model, kind)
    except Unsupported as reason:
        pytest.skip(str(reason))
    assert 0.0 < error.mean <= error.worst < 0.05
    assert error.layers > 20
    assert [field for field, _, _ in plain.mismatches(quantised.fingerprint)] == ["weights"]
    arena = quantised.arena()
    decoder = quantised.bind(arena)
    session = Session(arena, fingerprint=quantised.fingerprint)
    decoder.prefill(list(range(3, 19)))
    decoder.choose()
    session.commit(stamp_ns=1, rows={group.counter: 16 for group in arena.groups})
    kept = session.snapshot()
    said = [decoder.step() for _ in range(6)]
    session.restore(kept)
    assert [decoder.step() for _ in range(6)] == said
