# SPDX-License-Identifier: Apache-2.0
"""Weights of an adopted model in eight bits, by torchao, with the error that it makes.

Only weights: activations, rows and states stay as they are, and so does what a capsule holds. The
fingerprint's weights are others, for the results are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import nn

from flashrt_ros.models.language.model import LanguageModel
from flashrt_ros.runtime.errors import InvalidArgument, Unsupported


class Quantisation(str, Enum):
    INT8 = "int8-weight-only"
    FP8 = "float8-weight-only"

    def __str__(self) -> str:
        return self.value


_CONFIGS = {
    Quantisation.INT8: "Int8WeightOnlyConfig",
    Quantisation.FP8: "Float8WeightOnlyConfig",
}


@dataclass(frozen=True)
class QuantisationError:
    """Error of the products, relative to their size (root mean squares), on normal inputs.

    Of single layers: how much of it reaches the logits is the model's affair. Measure what the
    model is used for.
    """

    layers: int
    mean: float
    worst: float
    worst_layer: str


def quantise(
    model: LanguageModel, kind: Quantisation | str
) -> tuple[LanguageModel, QuantisationError]:
    """The model with its linear layers' weights in eight bits. The module is changed in place.

    Call it before `bind`. The output layer stays as it is where it is the embedding, too.

    Raises:
        Unsupported: torchao is missing or cannot do this here, or the model's decode steps are
            native kernels, which read the weights themselves; says what to do.
        InvalidArgument: no such kind.
    """
    try:
        kind = Quantisation(kind)
    except ValueError:
        known = ", ".join(map(str, Quantisation))
        raise InvalidArgument(f"quantisation {kind!r} is not known; known are {known}") from None
    if model.native:
        raise Unsupported(
            "native decode steps read the weights themselves; adopt(kernels='torch') to quantise"
        )
    apply = _torchao(kind)
    embedded = {id(m.weight) for m in model.module.modules() if isinstance(m, nn.Embedding)}
    errors: dict[str, float] = {}
    with torch.no_grad():
        for name, layer in list(model.module.named_modules()):
            if isinstance(layer, nn.Linear) and id(layer.weight) not in embedded:
                errors[name] = _error_of(layer, apply, kind)
    worst = max(errors, key=lambda name: errors[name], default="")
    found = QuantisationError(
        len(errors), sum(errors.values()) / max(len(errors), 1), errors.get(worst, 0.0), worst
    )
    fingerprint = replace(model.fingerprint, weights=f"{model.fingerprint.weights} {kind} torchao")
    return replace(model, fingerprint=fingerprint), found


def _torchao(kind: Quantisation) -> Callable[[nn.Module], None]:
    try:
        library: Any = importlib.import_module("torchao.quantization")
        config: Any = getattr(library, _CONFIGS[kind])()
    except (ImportError, AttributeError) as error:
        raise Unsupported(
            f"{kind} needs torchao (pip install torchao, or the extra 'quantisation'): {error}"
        ) from error

    def apply(module: nn.Module) -> None:
        library.quantize_(module, config)

    return apply


def _error_of(layer: nn.Linear, apply: Callable[[nn.Module], None], kind: Quantisation) -> float:
    weight = layer.weight
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(16, layer.in_features, generator=generator).to(weight)
    before = layer(inputs).float()
    try:
        apply(layer)
        after = layer(inputs).float()
    except Exception as error:  # a kernel that this device or version lacks: any of torch's many
        raise Unsupported(
            f"{kind} does not work here: {type(error).__name__}: {error}; "
            "load the model again before using it"
        ) from error
    return float((after - before).norm() / before.norm().clamp_min(1e-12))
