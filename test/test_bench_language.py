# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of language models run, and compare with peers that compute the same thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from flashrt_ros.bench import decode, smollm2, ttft
from flashrt_ros.bench.language import Pair, random_tokens
from flashrt_ros.bench.llama_cpp import LlamaCpp, PeerMissing, rows_type
from flashrt_ros.bench.report import Report, validate

pytest.importorskip("gguf", reason="the extra [bench] is not installed")


@pytest.mark.parametrize(("name", "module"), [("decode", decode), ("ttft", ttft)])
def test_a_quick_run_gives_rows_of_the_format(name: str, module: object) -> None:
    report = Report(name)
    module.run(report, quick=True)  # type: ignore[attr-defined]
    validate(json.loads(report.to_json()))
    names = {row.name for row in report.rows}
    if name == "decode":
        assert {f"decode_hybrid_over_transformers_{t}" for t in ("float32", "bfloat16")} <= names
        assert "decode_smollm2_over_transformers_bfloat16" in names
    else:
        assert {
            "ttft_hybrid_cold_over_transformers_float32_256",
            "ttft_hybrid_restore_over_own_cold_float32_512",
            "ttft_smollm2_restore_over_transformers_deepcopy_bfloat16_256",
        } <= names
    compared = any("over_llama_cpp" in row for row in names)
    assert compared or any("llama.cpp is left out" in note for note in report.notes)
    assert all(row.spread is not None and row.ratio for row in report.rows)


def test_llama_cpp_reads_the_same_model(tmp_path: Path) -> None:
    """Greedy tokens of the file that was written are those of the module it was written from."""
    module = smollm2.random_llama()
    path = tmp_path / "weights.gguf"
    smollm2.write_gguf(module, path)
    try:
        peer = LlamaCpp(path, context=200, threads=1, rows=rows_type(torch.float32))
    except PeerMissing as error:
        pytest.skip(str(error))
    pair = Pair(module, max_context=200, device="cpu")
    prompt = random_tokens(100, 1000, seed=3)
    said = [peer.see(prompt)]
    state = peer.state()
    for _ in range(24):
        said.append(peer.see(said[-1:]))
    decoder = pair.model.bind(pair.model.arena())
    decoder.prefill(prompt)
    assert [decoder.choose(), *(decoder.step() for _ in range(24))] == said
    peer.clear()
    peer.set_state(state)
    assert peer.see(said[:1]) == said[1], "the state that came back is another one"
    peer.close()


def test_a_missing_peer_is_a_note_and_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashrt_ros.bench.llama_cpp.VERSION", "0")
    report = Report("decode")
    module = smollm2.random_llama()
    assert decode.open_peer(report, module, tmp_path, 50) is None
    assert any("llama.cpp is left out" in note for note in report.notes)
    assert report.peers == {}
