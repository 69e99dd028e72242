# SPDX-License-Identifier: Apache-2.0
"""Takes a transformers language model and its checkpoint as they are."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from flashrt_ros.models.language.attention import ATTENTION
from flashrt_ros.models.language.geometry import LayerGeometry, check_supported, probe
from flashrt_ros.models.language.model import LanguageModel
from flashrt_ros.models.language.mtp import MtpHead, load_head, make_stepwise
from flashrt_ros.models.language.native import Unavailable, build, check
from flashrt_ros.runtime import (
    Backend,
    Fingerprint,
    device_family,
    text_digest,
    weights_digest,
)
from flashrt_ros.runtime.errors import InvalidArgument, Unsupported

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Config entries that say where and how a checkpoint is kept, not what it computes.
_INCIDENTAL = frozenset(
    {"_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype"}
)


def adopt(
    model_or_path: str | os.PathLike[str] | nn.Module,
    *,
    max_context: int,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
    backend: Backend | str = Backend.EAGER,
    chunk: int = 256,
    gguf_file: str | None = None,
    draft_tokens: int = 0,
    kernels: str = "auto",
) -> LanguageModel:
    """Adopt a causal language model: its state will live in an arena, its tokens stay the same.

    Args:
        model_or_path: a checkpoint directory (safetensors, sharded or not; a GGUF file's directory
            with `gguf_file`; or the path of the GGUF file), or a transformers model in memory,
            whose attention implementation is changed.
        max_context: tokens that a state has room for.
        dtype: of weights and rows; None: the checkpoint's. A GGUF file is dequantised, to float32
            unless said otherwise.
        backend: how plans are replayed.
        chunk: tokens of a whole prefill piece.
        draft_tokens: tokens to draft at a time with the checkpoint's multi-token prediction head
            (Qwen3.5, Qwen3-Next); 0: don't. Greedy tokens stay the same.
        kernels: "native": decode steps in C++ (CPU, decoders of the llama shape); "torch": in
            torch; "auto": native where it can be had. Greedy tokens in float32 stay the same.

    Raises:
        Unsupported: the model cannot be adopted; found from the config, before weights are read.
            Or native kernels were asked for and cannot be had; says why.
        InvalidArgument: an argument's value cannot be meant.
        FileNotFoundError: there is no such checkpoint.
    """
    if max_context < 1 or chunk < 1 or draft_tokens < 0:
        raise InvalidArgument(
            f"max_context {max_context}, chunk {chunk}: expected 1 or more; "
            f"draft_tokens {draft_tokens}: expected 0 or more"
        )
    chunk = min(chunk, max_context)
    place = torch.device(device)
    kind = Backend(backend)
    if kind is Backend.CUDA_GRAPH and place.type != "cuda":
        raise Unsupported(f"backend cuda_graph needs a CUDA device, not {place}")
    wanted = _dtype(dtype)
    tokenizer: Any = None
    module: Any
    if isinstance(model_or_path, nn.Module):
        module = model_or_path
        config = module.config
        if wanted is not None:
            module = module.to(dtype=wanted)
        wanted = next(module.parameters()).dtype
        geometry = _geometry(config, wanted, max_context)
        module.set_attn_implementation(ATTENTION)
        weights = module_digest(module)
    else:
        directory, gguf_file = _locate(model_or_path, gguf_file)
        options: dict[str, Any] = {"gguf_file": gguf_file} if gguf_file else {}
        config = AutoConfig.from_pretrained(directory, local_files_only=True, **options)
        wanted = wanted or _stored_dtype(config, bool(gguf_file))
        geometry = _geometry(config, wanted, max_context)
        module = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=wanted,
            attn_implementation=ATTENTION,
            local_files_only=True,
            **options,
        )
        weights = weights_digest(directory, pattern=gguf_file or "*.safetensors")
        tokenizer = _tokenizer(directory, options)
    module = module.to(device=place).eval().requires_grad_(False)
    _straighten(module)
    native, kernels = _kernels(kernels, module, geometry, kind, chunk)
    head: MtpHead | None = None
    if draft_tokens:
        if isinstance(model_or_path, nn.Module) or gguf_file:
            raise Unsupported("drafting needs the mtp.* tensors of a safetensors checkpoint")
        head = load_head(module, Path(model_or_path), wanted).to(device=place)
        make_stepwise(module)
    text = config.get_text_config(decoder=True)
    shapes = f"max_context {max_context} chunk {chunk} drafts {draft_tokens}"
    settings = f"{config_text(config)}\n{shapes}"
    return LanguageModel(
        module=module,
        geometry=geometry,
        fingerprint=Fingerprint(
            model=config.model_type,
            weights=weights,
            config=text_digest(settings),
            dtype=str(wanted).removeprefix("torch."),
            plan="native" if native else str(kind),
            device=device_family(place),
        ),
        vocabulary=text.vocab_size,
        max_context=max_context,
        chunk=chunk,
        backend=kind,
        device=place,
        stop_tokens=_stop_tokens(module, config, tokenizer),
        tokenizer=tokenizer,
        mtp=head,
        draft_tokens=draft_tokens,
        native=native,
        kernels=kernels,
    )


def _straighten(module: Any) -> None:
    """Give the output layer a last position with plain strides.

    What transformers cuts out of a prompt's hidden states keeps their strides. torch's matmul then
    takes its batched path, which in bfloat16 copies the whole output matrix first: half the time of
    a prefill of 16 tokens of SmolLM2.
    """
    head = module.get_output_embeddings()
    if head is not None and not getattr(head, "_flashrt_straight", False):
        head.register_forward_pre_hook(
            lambda _, inputs: (inputs[0].clone(memory_format=torch.contiguous_format), *inputs[1:])
        )
        head._flashrt_straight = True


def _kernels(
    asked: str, module: Any, geometry: tuple[LayerGeometry, ...], backend: Backend, chunk: int
) -> tuple[bool, str]:
    """Whether decode steps run in native kernels; and what they run in, with the reason."""
    if asked not in ("auto", "native", "torch"):
        raise InvalidArgument(f"kernels {asked!r}: expected auto, native or torch")
    if asked == "torch":
        return False, "torch"
    try:
        if backend is not Backend.EAGER:
            raise Unavailable(f"the back end is {backend}, not eager")
        if chunk == 1:
            raise Unavailable("with chunks of one token a step must count as a whole chunk")
        check(module, geometry)
        build()
    except Unavailable as error:
        if asked == "native":
            raise Unsupported(str(error)) from error
        return False, f"torch: {error}"
    return True, "native"


def config_text(config: PretrainedConfig) -> str:
    """What a config says about the computation, in one canonical text."""
    entries = {k: v for k, v in config.to_dict().items() if k not in _INCIDENTAL}
    return json.dumps(entries, sort_keys=True, default=str)


def module_digest(module: nn.Module) -> str:
    """SHA-256 (hex) over names and bytes of a model in memory."""
    total = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        data = tensor.detach().cpu().contiguous().flatten()
        total.update(f"{name} {data.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(memoryview(data.view(torch.uint8).numpy()))
    return total.hexdigest()


def _geometry(
    config: PretrainedConfig, dtype: torch.dtype, max_context: int
) -> tuple[LayerGeometry, ...]:
    check_supported(config)
    return probe(config, dtype=dtype, max_context=max_context)


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise InvalidArgument(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _stored_dtype(config: PretrainedConfig, gguf: bool) -> torch.dtype:
    stored = None if gguf else getattr(config.get_text_config(decoder=True), "dtype", None)
    return _dtype(stored) or torch.float32


def _locate(path: str | os.PathLike[str], gguf_file: str | None) -> tuple[Path, str | None]:
    place = Path(path)
    if place.is_file() and place.suffix == ".gguf":
        return place.parent, place.name
    if not place.is_dir():
        raise FileNotFoundError(
            f"no checkpoint at {place}: expected a directory with config.json and safetensors, or "
            "a GGUF file; models are not downloaded"
        )
    if gguf_file is None and not (place / "config.json").exists():
        files = sorted(place.glob("*.gguf"))
        if len(files) == 1:
            return place, files[0].name
        raise FileNotFoundError(f"{place} has no config.json and {len(files)} GGUF files")
    return place, gguf_file


def _stop_tokens(module: nn.Module, config: PretrainedConfig, tokenizer: Any) -> tuple[int, ...]:
    """End-of-text tokens: what generation config, config and tokenizer name, as generate() does."""
    found: set[int] = set()
    text = config.get_text_config(decoder=True)
    for owner in (getattr(module, "generation_config", None), text):
        value = getattr(owner, "eos_token_id", None)
        if value is not None:
            found.update(value if isinstance(value, list | tuple) else [value])
            break
    if getattr(tokenizer, "eos_token_id", None) is not None:
        found.add(tokenizer.eos_token_id)
    return tuple(sorted(found))


def _tokenizer(directory: Path, options: dict[str, Any]) -> Any:
    known = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    if not options and not any((directory / name).exists() for name in known):
        return None
    return AutoTokenizer.from_pretrained(directory, local_files_only=True, **options)
