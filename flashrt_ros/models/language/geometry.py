# SPDX-License-Identifier: Apache-2.0
"""Which buffers a model's cache needs, found out without its weights.

The model is built from its config on the meta device, where tensors have shapes but no bytes, and
sees a few tokens. What its cache then holds says everything: which layer keeps rows, which keeps
windows and states, in which shape and dtype. So no table of families has to be kept, and a family
whose cache holds something else is refused before a weight is read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PretrainedConfig

from flashrt_ros.models.language.forward import call
from flashrt_ros.runtime import BufferSpec, Kind, Role
from flashrt_ros.runtime.errors import Unsupported

ROWS = "position"
"""Name of the buffer that counts rows: int64 scalar, tokens that the state has seen."""

_PROBE_LENGTH = 8


class LayerKind(Enum):
    """What a cache layer keeps."""

    FULL = "rows"
    SLIDING = "rows of a window"
    STATES = "convolution and recurrent states"
    FULL_AND_STATES = "rows, convolution and recurrent states"
    SLIDING_AND_STATES = "rows of a window, convolution and recurrent states"
    NONE = "nothing"


_KINDS = {
    "DynamicLayer": LayerKind.FULL,
    "DynamicSlidingWindowLayer": LayerKind.SLIDING,
    "LinearAttentionLayer": LayerKind.STATES,
    "LinearAttentionAndFullAttentionLayer": LayerKind.FULL_AND_STATES,
    "LinearAttentionAndSlidingWindowAttentionLayer": LayerKind.SLIDING_AND_STATES,
    "DummyLayer": LayerKind.NONE,
}


@dataclass(frozen=True)
class LayerGeometry:
    """The buffers of one decoder layer.

    Attributes:
        rows: key and value rows, or nothing.
        conv: convolution windows [1, channels, kernel], oldest first.
        recurrent: recurrent states, in whatever shape and dtype the model keeps them.
    """

    index: int
    kind: LayerKind
    rows: tuple[BufferSpec, ...] = ()
    conv: tuple[BufferSpec, ...] = ()
    recurrent: tuple[BufferSpec, ...] = ()

    @property
    def specs(self) -> tuple[BufferSpec, ...]:
        return self.rows + self.conv + self.recurrent


def check_supported(config: PretrainedConfig) -> None:
    """Refuse what cannot live in buffers, by the config alone.

    Raises:
        Unsupported: naming the model type, what it has and why that cannot be adopted.
    """
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise Unsupported(f"{name}: encoder and decoder; expected a decoder-only language model")
    text = config.get_text_config(decoder=True)
    for place, rope in _rope_types(text):
        if rope in ("dynamic", "longrope"):
            raise Unsupported(
                f"{name}: rotary embedding {rope!r}{place} changes its frequencies with the "
                "longest sequence seen, a value that lives in the module and in no buffer; a "
                "capsule could not hold it. Set rope_type to 'default', 'linear', 'yarn' or "
                "'llama3'"
            )
    try:
        layers = DynamicCache(config=text).layers
    except Exception as error:
        raise Unsupported(
            f"{name}: transformers cannot say which cache its layers need "
            f"({type(error).__name__}: {error})"
        ) from error
    chunked = "chunked_attention" in (getattr(text, "layer_types", None) or ())
    for index, layer in enumerate(layers):
        kind = type(layer).__name__
        if kind not in _KINDS or (chunked and kind == "DynamicSlidingWindowLayer"):
            raise Unsupported(
                f"{name}: layer {index} needs the cache layer {kind}"
                f"{' for chunked attention' if chunked else ''}, whose state has no buffers here; "
                f"known are {', '.join(_KINDS)}"
            )


def _rope_types(config: PretrainedConfig) -> Iterator[tuple[str, str]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    if not isinstance(parameters, dict):
        return
    if "rope_type" in parameters:
        yield "", parameters["rope_type"]
    for key, value in parameters.items():
        if isinstance(value, dict) and "rope_type" in value:
            yield f" of {key}", value["rope_type"]


def probe(
    config: PretrainedConfig, *, dtype: torch.dtype, max_context: int
) -> tuple[LayerGeometry, ...]:
    """The buffers of each decoder layer.

    Raises:
        Unsupported: see `check_supported`; also when the model does not run on the meta device or
            its cache holds more than rows and states.
    """
    check_supported(config)
    probed = copy.deepcopy(config)
    # mixtures of experts route by data, which meta tensors lack; this implementation does not
    probed.get_text_config(decoder=True)._experts_implementation = "batched_mm"
    probed._experts_implementation = "batched_mm"
    try:
        with torch.device("meta"), torch.no_grad():
            model = AutoModelForCausalLM.from_config(probed, dtype=dtype).eval()
            cache = DynamicCache(config=model.config.get_text_config(decoder=True))
            ids = torch.zeros(1, _PROBE_LENGTH, dtype=torch.long)
            call(model, ids, torch.arange(_PROBE_LENGTH)[None], cache)
    except Exception as error:
        raise Unsupported(
            f"{config.model_type}: the model cannot be tried without weights "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}), so its "
            "cache is not known"
        ) from error
    return tuple(
        _layer(index, layer, max_context, config.model_type)
        for index, layer in enumerate(cache.layers)
    )


def _layer(index: int, layer: Any, capacity: int, name: str) -> LayerGeometry:
    kind = _KINDS[type(layer).__name__]
    prefix = f"layer{index}"
    rows: tuple[BufferSpec, ...] = ()
    keys = getattr(layer, "keys", None)
    if keys is not None and kind is not LayerKind.NONE:
        rows = (
            _rows(f"{prefix}.attention.key", layer.keys, capacity),
            _rows(f"{prefix}.attention.value", layer.values, capacity),
        )
    conv = _states(f"{prefix}.conv", Role.CONV, getattr(layer, "conv_states", {}))
    states = getattr(layer, "recurrent_states", {})
    recurrent = _states(f"{prefix}.recurrent", Role.RECURRENT, states)
    if kind is not LayerKind.NONE and not (rows or conv or recurrent):
        raise Unsupported(f"{name}: layer {index} has a {type(layer).__name__} that stayed empty")
    return LayerGeometry(index, kind, rows, conv, recurrent)


def _rows(name: str, tensor: Tensor, capacity: int) -> BufferSpec:
    _, heads, _, size = tensor.shape
    return BufferSpec(
        name,
        Role.KV,
        tensor.dtype,
        (heads, capacity, size),
        Kind.APPEND,
        row_dim=1,
        row_counter=ROWS,
    )


def _states(name: str, role: Role, states: dict[int, Tensor | None]) -> tuple[BufferSpec, ...]:
    present = [state for state in states.values() if state is not None]
    return tuple(
        BufferSpec(
            name if len(present) == 1 else f"{name}{index}", role, state.dtype, tuple(state.shape)
        )
        for index, state in enumerate(present)
    )
