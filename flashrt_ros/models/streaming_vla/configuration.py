# SPDX-License-Identifier: Apache-2.0
"""The configuration of a streaming vision-language-action policy, and its backbone's."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

MODEL_TYPE = "streaming_vla"
TOKENS_PER_TICK = 3  # instruction, image, state


@dataclass(frozen=True)
class StreamingVLAConfig:
    """What `config.json` of a checkpoint holds. Lengths in tokens or channels, times in s.

    noise_scale: of the noise that sampling starts from, in standard deviations of what the head
    was trained with. Below 1 it cuts off the rare far sample, which would shake a touching finger.
    """

    joint_names: tuple[str, ...]
    camera: str = "camera"
    image_size: int = 64
    tick_period: float = 0.1
    chunk_length: int = 8
    chunk_dt: float = 0.05
    flow_steps: int = 10
    noise_scale: float = 0.5
    vocab_size: int = 16
    instruction_length: int = 8
    window_ticks: int = 8
    hidden_size: int = 128
    intermediate_size: int = 384
    layer_types: tuple[str, ...] = ("full_attention", "linear_attention", "linear_attention")
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    linear_num_heads: int = 4
    linear_head_dim: int = 32
    linear_conv_kernel: int = 4
    vision_channels: tuple[int, int, int] = (32, 48, 64)
    vision_keypoints: int = 32
    vision_global: int = 128
    colours: tuple[str, ...] = ("red", "green", "blue", "yellow")
    action_width: int = 256
    action_blocks: int = 3
    model_type: str = MODEL_TYPE

    def text_config(self) -> Qwen3_5TextConfig:
        """The configuration of the transformers blocks that the backbone is built of."""
        return Qwen3_5TextConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=len(self.layer_types),
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            linear_conv_kernel_dim=self.linear_conv_kernel,
            linear_key_head_dim=self.linear_head_dim,
            linear_value_head_dim=self.linear_head_dim,
            linear_num_key_heads=self.linear_num_heads,
            linear_num_value_heads=self.linear_num_heads,
            layer_types=list(self.layer_types),
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [8, 0, 0],
            },
            attn_implementation="sdpa",
        )

    def save(self, folder: Path) -> None:
        """Write `config.json` into folder."""
        text = json.dumps(dataclasses.asdict(self), indent=2)
        (folder / "config.json").write_text(text + "\n")

    @classmethod
    def load(cls, folder: Path) -> StreamingVLAConfig:
        """Read `config.json` of folder. Raises ValueError naming what it holds wrongly."""
        path = folder / "config.json"
        values: dict[str, Any] = json.loads(path.read_text())
        if values.get("model_type") != MODEL_TYPE:
            raise ValueError(
                f"{path}: model_type is {values.get('model_type')!r}, expected {MODEL_TYPE!r}"
            )
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"{path}: unknown fields {', '.join(unknown)}")
        fields: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in values.items()
        }
        return cls(**fields)
