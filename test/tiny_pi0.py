# SPDX-License-Identifier: Apache-2.0
"""A π0 checkpoint of some ten thousand random weights, written as transformers writes one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from transformers import PI0Config, PI0ForConditionalGeneration

CAMERAS = {"top": (20, 30), "wrist": (28, 28)}
JOINTS = ("shoulder", "elbow", "gripper")
IMAGE_TOKEN = 40
WORDS = ["<pad>", "<eos>", "<bos>", "<unk>", "\n", "pick", "place", "the", "red", "cube", "up"]


def tiny_config(**changes: object) -> PI0Config:
    """Two layers each; images of 28 x 28 in patches of 14; chunks of 5."""
    heads = {
        "model_type": "gemma",
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 24,
        "patch_size": 14,
        "image_size": 28,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vision_use_head": False,
        "projection_dim": 24,
    }
    settings: dict[str, object] = {
        "vlm_config": {
            "model_type": "paligemma",
            "text_config": heads
            | {"hidden_size": 24, "intermediate_size": 32, "vocab_size": IMAGE_TOKEN + 2},
            "vision_config": vision,
            "projection_dim": 24,
            "image_token_id": IMAGE_TOKEN,
        },
        "dit_config": heads | {"hidden_size": 16, "intermediate_size": 24},
        "chunk_size": 5,
        "max_state_dim": 6,
        "max_action_dim": 6,
        "num_inference_steps": 3,
    }
    return PI0Config(**(settings | changes))


def tiny_model(seed: int = 0, **changes: object) -> PI0ForConditionalGeneration:
    """Weights large enough that every input shows in the actions."""
    model = PI0ForConditionalGeneration(tiny_config(**changes)).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def tiny_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    newline = pre_tokenizers.Split(Regex(r"\n"), "isolated")
    space = pre_tokenizers.Split(" ", "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([newline, space])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in WORDS[:4]])
    fillers = [f"<loc{index}>" for index in range(IMAGE_TOKEN - len(WORDS))]
    tokenizer.add_tokens(fillers)
    tokenizer.add_special_tokens([AddedToken("<image>", normalized=False)])
    assert tokenizer.token_to_id("<image>") == IMAGE_TOKEN
    return tokenizer


def statistics(count: int = len(JOINTS)) -> dict[str, dict[str, list[float]]]:
    """Statistics of state and actions as a LeRobot dataset has them, rad."""
    index = np.arange(count)
    state = {"mean": 0.1 * index, "std": 0.5 + 0.1 * index, "min": -1.0 - index, "max": 1.5 + index}
    action = {
        "mean": 0.2 - 0.1 * index,
        "std": 0.3 + 0.1 * index,
        "min": -2 - index,
        "max": 2.0 + index,
    }
    for values in (state, action):
        values["q01"], values["q99"] = values["min"] * 0.9, values["max"] * 0.8
    return {
        feature: {name: [float(x) for x in values] for name, values in entries.items()}
        for feature, entries in (("observation.state", state), ("action", action))
    }


def write_robot(folder: Path, **changes: object) -> None:
    content: dict[str, object] = {
        "cameras": {name: list(size) for name, size in CAMERAS.items()},
        "joint_names": list(JOINTS),
        "joint_unit": "rad",
        "chunk_dt": 0.05,
        "tick_period": 0.2,
    }
    (folder / "robot.json").write_text(json.dumps(content | changes))


def write_checkpoint(folder: Path, model: PI0ForConditionalGeneration | None = None) -> Path:
    """Everything that transformers' model, processor and tokenizer save, and `robot.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (model or tiny_model()).save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>"}))
    numbers = statistics()
    processor = {
        "image_processor": {
            "size": {"max_height": 28, "max_width": 28},
            "pad_size": {"height": 28, "width": 28},
            "resample": 3,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "rescale_factor": 1 / 255,
        },
        "state_mean": numbers["observation.state"]["mean"],
        "state_std": numbers["observation.state"]["std"],
        "actions_mean": numbers["action"]["mean"],
        "actions_std": numbers["action"]["std"],
    }
    (folder / "processor_config.json").write_text(json.dumps(processor))
    write_robot(folder)
    return folder


def images(seed: int = 0) -> dict[str, np.ndarray]:
    """One random image a camera, uint8 [height, width, 3]."""
    generator = np.random.default_rng(seed)
    return {
        name: generator.integers(0, 256, (*size, 3), dtype=np.uint8)
        for name, size in CAMERAS.items()
    }


def positions(seed: int = 0) -> np.ndarray:
    """Joint positions, rad."""
    return np.random.default_rng(100 + seed).uniform(-1, 1, len(JOINTS)).astype(np.float32)
