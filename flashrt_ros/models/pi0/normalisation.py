# SPDX-License-Identifier: Apache-2.0
"""Statistics of the data that a checkpoint was trained on, between radians and its numbers.

Where they are read from, and the names there:

- LeRobot: the step `normalizer_processor` of `policy_preprocessor.json` names a safetensors file
  with `observation.state.mean`, `action.std`, `action.q01` and the like, and says by `norm_map`
  which are used; `unnormalizer_processor` of `policy_postprocessor.json` does for actions.
- transformers: `state_mean`, `state_std`, `actions_mean`, `actions_std` in `processor_config.json`.
- A LeRobot dataset: `stats.json`, {feature: {statistic: [numbers]}}, with the modes of
  `normalization_mapping` in the checkpoint's config.

The formulas are those of LeRobot's `normalize_processor.py`. Where LeRobot leaves values as they
are because a statistic is missing, an error is raised here: actions in units of a standard
deviation look like actions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

STATE = "observation.state"
ACTION = "action"


class Mode(str, Enum):
    """Which statistics are used, by LeRobot's names."""

    IDENTITY = "IDENTITY"
    MEAN_STD = "MEAN_STD"
    MIN_MAX = "MIN_MAX"
    QUANTILES = "QUANTILES"
    QUANTILE10 = "QUANTILE10"

    def __str__(self) -> str:
        return self.value

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the two statistics, none for IDENTITY."""
        return _STATISTICS[self]


_STATISTICS = {
    Mode.IDENTITY: (),
    Mode.MEAN_STD: ("mean", "std"),
    Mode.MIN_MAX: ("min", "max"),
    Mode.QUANTILES: ("q01", "q99"),
    Mode.QUANTILE10: ("q10", "q90"),
}


@dataclass(frozen=True)
class Normaliser:
    """The statistics of one feature.

    MEAN_STD: (x - mean) / (std + epsilon). The others map the range between their two statistics
    to -1 .. 1; a range of width zero counts as epsilon wide. `first` and `second` are float32
    [size]: mean and std, or the lower and the upper end.
    """

    feature: str
    mode: Mode
    first: Tensor
    second: Tensor
    epsilon: float = 1e-8

    @property
    def size(self) -> int:
        """Numbers in the feature; 0 for IDENTITY, which takes any."""
        return 0 if self.mode is Mode.IDENTITY else len(self.first)

    def normalise(self, values: Tensor) -> Tensor:
        """Values [..., size] as the network sees them."""
        if self.mode is Mode.IDENTITY:
            return values
        if self.mode is Mode.MEAN_STD:
            return (values - self.first) / (self.second + self.epsilon)
        return 2 * (values - self.first) / self._width() - 1

    def restore(self, values: Tensor) -> Tensor:
        """The inverse of `normalise`."""
        if self.mode is Mode.IDENTITY:
            return values
        if self.mode is Mode.MEAN_STD:
            return values * self.second + self.first
        return (values + 1) / 2 * self._width() + self.first

    def scaled(self, factor: float) -> Normaliser:
        """The statistics in another unit: of values times factor."""
        return Normaliser(
            self.feature, self.mode, self.first * factor, self.second * factor, self.epsilon
        )

    def to(self, device: str | torch.device) -> Normaliser:
        """The same on a device."""
        first, second = self.first.to(device), self.second.to(device)
        return Normaliser(self.feature, self.mode, first, second, self.epsilon)

    def describe(self) -> str:
        """One line that two normalisers share only if they do the same."""
        numbers = [[float(x) for x in t] for t in (self.first, self.second)]
        return f"{self.feature} {self.mode} {self.epsilon!r} {numbers}"

    def _width(self) -> Tensor:
        width = self.second - self.first
        return torch.where(width == 0, self.epsilon, width)

    @staticmethod
    def of(
        feature: str,
        mode: Mode | str,
        statistics: Mapping[str, Sequence[float] | Tensor],
        source: str,
        epsilon: float = 1e-8,
    ) -> Normaliser:
        """Pick what `mode` needs from a feature's statistics.

        Raises ValueError naming what is missing, of unequal size or not finite, and the source.
        """
        mode = Mode(mode)
        missing = [name for name in mode.statistics if name not in statistics]
        if missing:
            raise ValueError(
                f"{source}: no {' and no '.join(missing)} of {feature!r}, which {mode} needs; it "
                f"has {', '.join(statistics) or 'nothing'} of it. Give the statistics of the data "
                "that the policy was trained on"
            )
        pair = [_vector(statistics[name]) for name in mode.statistics] or [torch.zeros(0)] * 2
        if len(pair[0]) != len(pair[1]):
            raise ValueError(
                f"{source}: {' and '.join(mode.statistics)} of {feature!r} have {len(pair[0])} "
                f"and {len(pair[1])} numbers"
            )
        for name, numbers in zip(mode.statistics, pair, strict=False):
            if not bool(torch.isfinite(numbers).all()):
                raise ValueError(f"{source}: {name} of {feature!r} is {numbers.tolist()}")
        return Normaliser(feature, mode, pair[0], pair[1], epsilon)


@dataclass(frozen=True)
class Normalisation:
    """What a policy's state and actions are normalised with."""

    state: Normaliser
    action: Normaliser

    def in_radians(self, unit: str) -> Normalisation:
        """The same for values in radians, where the statistics are of `unit`: "rad" or "deg"."""
        if unit == "rad":
            return self
        if unit == "deg":
            factor = math.pi / 180
            return Normalisation(self.state.scaled(factor), self.action.scaled(factor))
        raise ValueError(f"joint unit is {unit!r}, expected 'rad' or 'deg'")

    def to(self, device: str | torch.device) -> Normalisation:
        """The same on a device."""
        return Normalisation(self.state.to(device), self.action.to(device))

    def describe(self) -> str:
        """Two lines that two normalisations share only if they do the same."""
        return f"{self.state.describe()}\n{self.action.describe()}"

    @staticmethod
    def of_checkpoint(folder: Path, config: Mapping[str, Any]) -> Normalisation:
        """Read a checkpoint's statistics; `config` is its config.json.

        Raises ValueError naming the feature and statistic that is missing, or the files looked
        for where there are none.
        """
        if (folder / _PREPROCESSOR).exists():
            return _of_lerobot(folder)
        if (folder / "stats.json").exists():
            return _of_dataset(folder / "stats.json", config)
        path = folder / "processor_config.json"
        if path.exists():
            return _of_transformers(path)
        raise ValueError(
            f"{folder} has no statistics of {STATE!r} and {ACTION!r}: no {_PREPROCESSOR} "
            "(LeRobot), stats.json (a LeRobot dataset's) or processor_config.json (transformers)"
        )


_PREPROCESSOR = "policy_preprocessor.json"
_POSTPROCESSOR = "policy_postprocessor.json"
# What these do is done here, or needs no doing. Any other step changes what the network sees.
_KNOWN_STEPS = {
    "rename_observations_processor",
    "to_batch_processor",
    "pi0_new_line_processor",
    "tokenizer_processor",
    "device_processor",
    "normalizer_processor",
    "unnormalizer_processor",
}


def _of_lerobot(folder: Path) -> Normalisation:
    steps = _steps(folder / _PREPROCESSOR)
    state = _of_step(folder, _PREPROCESSOR, steps.get("normalizer_processor"), STATE, "STATE")
    if not (folder / _POSTPROCESSOR).exists():
        raise ValueError(f"{folder} has {_PREPROCESSOR} but no {_POSTPROCESSOR}")
    steps = _steps(folder / _POSTPROCESSOR)
    step = steps.get("unnormalizer_processor")
    return Normalisation(state, _of_step(folder, _POSTPROCESSOR, step, ACTION, "ACTION"))


def _steps(path: Path) -> dict[str, Any]:
    """Steps of a processor by registered name."""
    steps = {}
    for step in json.loads(path.read_text())["steps"]:
        name = step.get("registry_name", step.get("class", "?"))
        if name not in _KNOWN_STEPS and step.get("config", {}).get("enabled", True):
            raise ValueError(
                f"{path}: step {name!r} is not supported; without it the policy would see other "
                f"inputs than in training. Known are {', '.join(sorted(_KNOWN_STEPS))}"
            )
        steps[name] = step
    return steps


def _of_step(folder: Path, name: str, step: Any, feature: str, kind: str) -> Normaliser:
    if step is None:
        raise ValueError(f"{folder / name}: no step that normalises {feature!r}")
    config = step.get("config", {})
    mode = config.get("norm_map", {}).get(kind, Mode.IDENTITY)
    path = folder / step.get("state_file", name)
    tensors = load_file(path) if step.get("state_file") else {}
    found = {
        key.rpartition(".")[2]: tensor
        for key, tensor in tensors.items()
        if key.rpartition(".")[0] == feature
    }
    if not found and tensors and Mode(mode) is not Mode.IDENTITY:
        others = sorted({key.rpartition(".")[0] for key in tensors})
        raise ValueError(f"{path}: no statistics of {feature!r}; it has {', '.join(others)}")
    return Normaliser.of(feature, mode, found, str(path), config.get("eps", 1e-8))


def _of_dataset(path: Path, config: Mapping[str, Any]) -> Normalisation:
    statistics = json.loads(path.read_text())
    modes = config.get("normalization_mapping", {})

    def read(feature: str, kind: str) -> Normaliser:
        mode = modes.get(kind, Mode.MEAN_STD)
        return Normaliser.of(feature, mode, statistics.get(feature, {}), str(path))

    return Normalisation(read(STATE, "STATE"), read(ACTION, "ACTION"))


def _of_transformers(path: Path) -> Normalisation:
    content = json.loads(path.read_text())

    def read(feature: str, prefix: str) -> Normaliser:
        found = {
            name: content[f"{prefix}_{name}"]
            for name in Mode.MEAN_STD.statistics
            if content.get(f"{prefix}_{name}") is not None
        }
        return Normaliser.of(feature, Mode.MEAN_STD, found, str(path))

    return Normalisation(read(STATE, "state"), read(ACTION, "actions"))


def _vector(numbers: Sequence[float] | Tensor) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.float32).detach().cpu().flatten()
