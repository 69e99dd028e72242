# SPDX-License-Identifier: Apache-2.0
"""The statistics between radians and what the network sees."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

FILE_NAME = "normalisation.json"


@dataclass(frozen=True)
class Normalisation:
    """state_mean, state_std: float32 [joints], rad. action_std: float32 [chunk, joints], rad, of
    a chunk's points relative to the joints at its beginning (their mean is taken as zero)."""

    state_mean: Tensor
    state_std: Tensor
    action_std: Tensor

    def state(self, positions: Tensor) -> Tensor:
        """Joint positions, [..., joints] rad, as the network sees them."""
        return (positions - self.state_mean) / self.state_std

    def joints(self, state: Tensor) -> Tensor:
        """The inverse of `state`."""
        return state * self.state_std + self.state_mean

    def actions(self, chunk: Tensor, positions: Tensor) -> Tensor:
        """Absolute chunk [..., chunk, joints] rad, begun at positions [..., joints], normalised."""
        return (chunk - positions.unsqueeze(-2)) / self.action_std

    def chunk(self, actions: Tensor, positions: Tensor) -> Tensor:
        """The inverse of `actions`."""
        return actions * self.action_std + positions.unsqueeze(-2)

    def to(self, device: str | torch.device) -> Normalisation:
        """The same on a device."""
        return Normalisation(*(getattr(self, f).to(device) for f in self.__dataclass_fields__))

    def save(self, folder: Path) -> None:
        """Write `normalisation.json` into folder."""
        values = {name: getattr(self, name).tolist() for name in self.__dataclass_fields__}
        (folder / FILE_NAME).write_text(json.dumps(values, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Normalisation:
        """Read `normalisation.json` of folder. Raises ValueError if its fields are others."""
        path = folder / FILE_NAME
        values = json.loads(path.read_text())
        if set(values) != set(cls.__dataclass_fields__):
            raise ValueError(
                f"{path} has {sorted(values)}, expected {sorted(cls.__dataclass_fields__)}"
            )
        return cls(**{name: torch.tensor(value) for name, value in values.items()})
