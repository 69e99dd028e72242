# SPDX-License-Identifier: Apache-2.0
"""A decode step in one call: C++ for decoders of the llama shape on a CPU.

At batch 1 a token costs the bytes of the weights, read once from memory, and a framework's
hundreds of small operations cost as much again. `kernels/decode.cpp` reads the model's own weights
where they are, writes rows, logits and tokens into the arena, and keeps nothing. It is built once
by the machine's C++ compiler for the machine's processor and kept in a cache. Where it cannot be
had, the step is transformers' own code, and `LanguageModel.kernels` says why.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flashrt_ros.models.language.geometry import ROWS, LayerGeometry, LayerKind
from flashrt_ros.runtime import Arena
from flashrt_ros.runtime.errors import InternalFault

SOURCE = Path(__file__).parent / "kernels" / "decode.cpp"
FAMILIES = frozenset({"llama", "qwen3"})
"""Model types whose layers `decode.cpp` computes, each tested against transformers."""

_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared", "-Wno-psabi")
_LANES = 16
_MOST_GROUPS = 16


class Unavailable(Exception):
    """The kernels cannot be used here; says why."""


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _Layer(ctypes.Structure):
    _fields_ = [
        *_fields(c_void_p, "norm1 norm2 query_norm key_norm"),
        *_fields(c_void_p, "query key value output gate up down keys values"),
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        *_fields(c_int32, "hidden heads key_heads size inner layers vocabulary is_bf16"),
        *_fields(c_int64, "head_stride row_stride capacity"),
        *_fields(c_float, "epsilon scale"),
        ("layer", POINTER(_Layer)),
        *_fields(c_void_p, "embedding head norm cosines sines scratch"),
    ]


class _State(ctypes.Structure):
    _fields_ = _fields(c_void_p, "position history pending draw logits")


def check(module: Any, geometry: tuple[LayerGeometry, ...]) -> None:
    """Whether `decode.cpp` computes this model.

    Raises:
        Unavailable: names what it does not compute.
    """
    config = module.config
    kind = config.model_type
    if kind not in FAMILIES:
        raise Unavailable(f"kernels compute {', '.join(sorted(FAMILIES))}, not {kind}")
    if any(layer.kind is not LayerKind.FULL for layer in geometry):
        raise Unavailable("kernels compute full attention only")
    parameters = dict(module.named_parameters())
    dtypes = {parameter.dtype for parameter in parameters.values()}
    devices = {parameter.device.type for parameter in parameters.values()}
    if devices != {"cpu"} or not dtypes <= {torch.float32} | {torch.bfloat16} or len(dtypes) != 1:
        raise Unavailable(f"kernels compute float32 or bfloat16 on a CPU, not {dtypes} {devices}")
    biased = next((name for name in parameters if name.endswith("bias")), None)
    if biased is not None:
        raise Unavailable(f"kernels compute projections without bias; there is {biased}")
    attention = module.model.layers[0].self_attn
    size = attention.head_dim
    groups = config.num_attention_heads // config.num_key_value_heads
    rotary = 2 * module.model.rotary_emb.inv_freq.numel()
    if config.hidden_act != "silu" or size % _LANES or groups > _MOST_GROUPS or rotary != size:
        raise Unavailable(
            f"kernels compute SiLU, heads of a multiple of {_LANES} and wholly rotated, "
            f"{_MOST_GROUPS} to a key head at most; there are {config.hidden_act}, {size} "
            f"({rotary} rotated), {groups}"
        )


@functools.cache
def build() -> ctypes.CDLL:
    """The compiled kernels, from the cache or made now (seconds).

    Raises:
        Unavailable: no compiler, or it failed; an earlier try in this process counts.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise Unavailable("no C++ compiler (g++) was found")
    try:
        version = _output([compiler, "--version"])
        # what -march=native means here
        target = _output([compiler, "-march=native", "-Q", "--help=target"])
        source = SOURCE.read_text()
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{compiler} or {SOURCE.name}: {error}") from error
    identity = "\n".join((source, *_FLAGS, platform.machine(), version, target))
    name = f"decode-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"
    library = _cache() / name
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / name
            try:
                _output([compiler, *_FLAGS, str(SOURCE), "-o", str(made)])
            except subprocess.SubprocessError as error:
                said = str(getattr(error, "stderr", "") or error)[:500]
                raise Unavailable(f"{compiler} failed: {said}") from error
            os.replace(made, library)  # whole or not at all, for others that look
    loaded = ctypes.CDLL(str(library))
    loaded.decode_scratch.argtypes = [POINTER(_Model), ctypes.c_int]
    loaded.decode_scratch.restype = c_int64
    for function in (loaded.decode_see, loaded.decode_greedy):
        function.argtypes = [POINTER(_Model), POINTER(_State), ctypes.c_int]
        function.restype = ctypes.c_int
    return loaded


def _output(command: list[str]) -> str:
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return result.stdout


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home) / "flashrt_ros"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="flashrt_ros-"))


@dataclass(frozen=True)
class StepBuffers:
    """The buffers of the state that a step reads and writes, besides the layers' rows.

    int64 scalars `pending`, `draw`; int64 [context] `history`; float32 [vocabulary] `logits`.
    """

    history: Tensor
    pending: Tensor
    draw: Tensor
    logits: Tensor


class NativeStep:
    """The step of one live state. Everything it points to is in the arena or never changes.

    Raises:
        Unavailable: see `check` and `build`.
    """

    def __init__(
        self,
        module: nn.Module,
        geometry: tuple[LayerGeometry, ...],
        arena: Arena,
        buffers: StepBuffers,
        max_context: int,
    ) -> None:
        check(module, geometry)
        self._library = build()
        self._kept: list[Any] = []  # what the structures point to
        self._most_threads = max(torch.get_num_threads(), os.cpu_count() or 1)
        self._model = self._describe(module, geometry, arena, max_context)
        self._state = _State(
            *(
                tensor.data_ptr()
                for tensor in (
                    arena[ROWS],
                    buffers.history,
                    buffers.pending,
                    buffers.draw,
                    buffers.logits,
                )
            )
        )
        size = self._library.decode_scratch(self._model, self._most_threads)
        self._model.scratch = self._pointer(torch.zeros(size))

    def see(self) -> None:
        """See the pending token: rows, history, logits, position."""
        self._run(self._library.decode_see)

    def greedy(self) -> None:
        """See the pending token and make the first of the largest logits the pending one."""
        self._run(self._library.decode_greedy)

    def _run(self, function: Any) -> None:
        threads = min(torch.get_num_threads(), self._most_threads)
        if function(self._model, self._state, threads) != 0:
            raise InternalFault("a step without a pending token or without room; nothing changed")

    def _pointer(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        tensor = tensor.detach().contiguous()  # a parameter is contiguous: no copy
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _describe(
        self, module: Any, geometry: tuple[LayerGeometry, ...], arena: Arena, max_context: int
    ) -> _Model:
        config, decoder = module.config, module.model
        layers = (_Layer * len(decoder.layers))()
        for into, block, shape in zip(layers, decoder.layers, geometry, strict=True):
            attention, mlp = block.self_attn, block.mlp
            keys, values = (arena[spec.name] for spec in shape.rows)
            for name, norm in (
                ("norm1", block.input_layernorm),
                ("norm2", block.post_attention_layernorm),
                ("query_norm", getattr(attention, "q_norm", None)),
                ("key_norm", getattr(attention, "k_norm", None)),
            ):
                setattr(into, name, self._pointer(None if norm is None else norm.weight.float()))
            for name, linear in (
                ("query", attention.q_proj),
                ("key", attention.k_proj),
                ("value", attention.v_proj),
                ("output", attention.o_proj),
                ("gate", mlp.gate_proj),
                ("up", mlp.up_proj),
                ("down", mlp.down_proj),
            ):
                setattr(into, name, self._pointer(linear.weight))
            into.keys, into.values = keys.data_ptr(), values.data_ptr()
        self._kept.append(layers)
        positions = torch.arange(max_context)[None]
        half = attention.head_dim // 2
        cosines, sines = decoder.rotary_emb(torch.zeros(1), positions)
        return _Model(
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            size=attention.head_dim,
            inner=mlp.down_proj.in_features,
            layers=len(layers),
            vocabulary=module.lm_head.out_features,
            is_bf16=keys.dtype is torch.bfloat16,
            head_stride=keys.stride(0),
            row_stride=keys.stride(1),
            capacity=max_context,
            epsilon=config.rms_norm_eps,
            scale=attention.scaling,
            layer=layers,
            embedding=self._pointer(decoder.embed_tokens.weight),
            head=self._pointer(module.lm_head.weight),
            norm=self._pointer(decoder.norm.weight.float()),
            cosines=self._pointer(cosines[0, :, :half]),
            sines=self._pointer(sines[0, :, :half]),
        )
