# SPDX-License-Identifier: Apache-2.0
"""llama.cpp as a peer: its C interface in the library of the pip package `xllamacpp`.

The package's own interface is a server; measured is what lies below it, through the functions that
llama.h declares. Their structures changed often, so they are taken for this one version and their
default values are looked at before anything is believed.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from ctypes import POINTER, byref, c_bool, c_float, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import torch

PACKAGE = "xllamacpp"
VERSION = "2026.10.11549"  # of llama.cpp build 11549

GGML_F32, GGML_F16 = 0, 1  # enum ggml_type


def rows_type(dtype: torch.dtype) -> int:
    """ggml type of keys and values beside ours of `dtype`: as many bytes. For bfloat16 it is F16,
    llama.cpp's own choice."""
    return GGML_F32 if dtype is torch.float32 else GGML_F16


class PeerMissing(Exception):
    """llama.cpp cannot be measured here; says why."""


class _ModelParams(ctypes.Structure):
    _fields_ = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        *((name, c_int32) for name in ("split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((name, c_void_p) for name in ("tensor_split", "progress", "progress_data", "overrides")),
        ("flags", c_bool * 6),
        ("reserve", c_int8 * 256),
    ]


class _ContextParams(ctypes.Structure):
    _fields_ = [
        *((name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling")),
        *((name, c_int32) for name in ("pooling", "attention", "flash_attention")),
        *((f"rope{index}", c_float) for index in range(6)),
        ("yarn_orig_ctx", c_uint32),
        ("defrag", c_float),
        *((name, c_void_p) for name in ("cb_eval", "cb_eval_data")),
        *((name, c_int32) for name in ("type_k", "type_v")),
        *((name, c_void_p) for name in ("abort", "abort_data")),
        ("flags", c_bool * 6),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
        ("reserve", c_int8 * 256),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        *((name, c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")),
    ]


def _library() -> Any:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise PeerMissing(f"{PACKAGE} is not installed: pip install -r requirements/bench.txt")
    version = importlib.metadata.version(PACKAGE)
    if version != VERSION:
        raise PeerMissing(f"{PACKAGE} is {version}; its structures are known for {VERSION} only")
    folder = Path((spec.submodule_search_locations or ["."])[0])
    library = ctypes.CDLL(str(next(folder.glob("*.so"))))
    library.llama_model_default_params.restype = _ModelParams
    library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _ModelParams]
    library.llama_model_load_from_file.restype = c_void_p
    library.llama_context_default_params.restype = _ContextParams
    library.llama_init_from_model.argtypes = [c_void_p, _ContextParams]
    library.llama_init_from_model.restype = c_void_p
    library.llama_get_memory.argtypes = [c_void_p]
    library.llama_get_memory.restype = c_void_p
    library.llama_memory_clear.argtypes = [c_void_p, c_bool]
    library.llama_memory_seq_rm.argtypes = [c_void_p, c_int32, c_int32, c_int32]
    library.llama_memory_seq_rm.restype = c_bool
    library.llama_batch_get_one.argtypes = [c_void_p, c_int32]
    library.llama_batch_get_one.restype = _Batch
    library.llama_decode.argtypes = [c_void_p, _Batch]
    library.llama_decode.restype = c_int32
    library.llama_get_logits_ith.argtypes = [c_void_p, c_int32]
    library.llama_get_logits_ith.restype = POINTER(c_float)
    for name in ("llama_free", "llama_model_free"):
        getattr(library, name).argtypes = [c_void_p]
    library.llama_state_seq_get_size.argtypes = [c_void_p, c_int32]
    library.llama_state_seq_get_size.restype = c_size_t
    for name in ("llama_state_seq_get_data", "llama_state_seq_set_data"):
        function = getattr(library, name)
        function.argtypes = [c_void_p, c_void_p, c_size_t, c_int32]
        function.restype = c_size_t
    library.llama_print_system_info.restype = ctypes.c_char_p
    return library


_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, c_void_p)
_quiet = _Log(lambda level, text, data: None)


class LlamaCpp:
    """One model of llama.cpp and one sequence of it.

    Args:
        path: a GGUF file.
        context: tokens of room.
        threads: for decoding and for prompts.
        rows: ggml type of keys and values.

    Raises:
        PeerMissing: the library is not there, is another version, or refused the model.
    """

    def __init__(self, path: Path, *, context: int, threads: int, rows: int) -> None:
        self._library = library = _library()
        library.llama_log_set(_quiet, None)
        library.llama_backend_init()
        self.version = f"{VERSION} ({PACKAGE})"
        self.system = library.llama_print_system_info().decode()
        params = library.llama_context_default_params()
        looked = (params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max)
        types = (params.type_k, params.type_v)
        if looked != (512, 2048, 512, 1) or types != (GGML_F16, GGML_F16) or params.n_samplers:
            raise PeerMissing(f"llama_context_params is laid out otherwise: {looked}, {types}")
        self._model = library.llama_model_load_from_file(
            str(path).encode(), library.llama_model_default_params()
        )
        if not self._model:
            raise PeerMissing(f"llama.cpp did not load {path}")
        params.n_ctx, params.n_threads, params.n_threads_batch = context, threads, threads
        params.type_k = params.type_v = rows
        self._context = library.llama_init_from_model(self._model, params)
        if not self._context:
            raise PeerMissing(f"llama.cpp made no context for {path}")
        self._memory = library.llama_get_memory(self._context)
        self.vocabulary = library.llama_vocab_n_tokens(self._vocab())

    def _vocab(self) -> c_void_p:
        self._library.llama_model_get_vocab.argtypes = [c_void_p]
        self._library.llama_model_get_vocab.restype = c_void_p
        self._library.llama_vocab_n_tokens.argtypes = [c_void_p]
        return c_void_p(self._library.llama_model_get_vocab(self._model))

    def clear(self) -> None:
        """Forget every token."""
        self._library.llama_memory_clear(self._memory, False)

    def see(self, tokens: Sequence[int]) -> int:
        """See tokens, in batches of 2048 at most; returns the likeliest next one."""
        for start in range(0, len(tokens), 2048):
            part = np.asarray(tokens[start : start + 2048], dtype=np.int32)
            batch = self._library.llama_batch_get_one(part.ctypes.data, len(part))
            status = self._library.llama_decode(self._context, batch)
            if status != 0:
                raise RuntimeError(f"llama_decode answered {status}")
        logits = self._library.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def state(self) -> bytearray:
        """The state of the sequence, as llama_state_seq_get_data gives it."""
        size = self._library.llama_state_seq_get_size(self._context, 0)
        data = bytearray(size)
        buffer = (ctypes.c_char * size).from_buffer(data)
        written = self._library.llama_state_seq_get_data(self._context, byref(buffer), size, 0)
        if written != size:
            raise RuntimeError(f"llama_state_seq_get_data wrote {written} of {size} bytes")
        return data

    def set_state(self, data: bytearray) -> None:
        """Put a state back."""
        buffer = (ctypes.c_char * len(data)).from_buffer(data)
        if not self._library.llama_state_seq_set_data(self._context, byref(buffer), len(data), 0):
            raise RuntimeError("llama_state_seq_set_data refused the state")

    def close(self) -> None:
        """Free context and model."""
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)
