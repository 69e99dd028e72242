# SPDX-License-Identifier: Apache-2.0
"""A checkpoint directory: config.json, model.safetensors, normalisation.json, tokenizer.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from flashrt_ros.models.streaming_vla.configuration import StreamingVLAConfig
from flashrt_ros.models.streaming_vla.instruction import InstructionTokenizer
from flashrt_ros.models.streaming_vla.modeling import StreamingVLA
from flashrt_ros.models.streaming_vla.normalisation import Normalisation

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A network with what it takes to talk to it."""

    config: StreamingVLAConfig
    network: StreamingVLA
    normalisation: Normalisation
    tokenizer: InstructionTokenizer

    def save(self, folder: Path) -> None:
        """Write every file of the checkpoint into folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.config.save(folder)
        self.normalisation.save(folder)
        self.tokenizer.save(folder)
        tensors = {k: v.detach().contiguous() for k, v in self.network.state_dict().items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        (folder / WEIGHTS).chmod(0o644)  # safetensors makes it private

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "cpu") -> Checkpoint:
        """Read a checkpoint for inference.

        Raises FileNotFoundError naming a missing file, ValueError if config or weights don't fit.
        """
        for name in ("config.json", WEIGHTS, "normalisation.json", "tokenizer.json"):
            if not (folder / name).exists():
                raise FileNotFoundError(f"{folder} has no {name}: not a whole checkpoint")
        config = StreamingVLAConfig.load(folder)
        network = StreamingVLA(config)
        try:
            network.load_state_dict(load_file(folder / WEIGHTS))
        except RuntimeError as error:
            raise ValueError(f"{folder / WEIGHTS} does not fit config.json: {error}") from error
        network = network.to(device).eval().requires_grad_(False)
        normalisation = Normalisation.load(folder).to(device)
        tokenizer = InstructionTokenizer.load(folder, config.instruction_length)
        return cls(config, network, normalisation, tokenizer)
