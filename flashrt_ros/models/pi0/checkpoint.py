# SPDX-License-Identifier: Apache-2.0
"""π0 checkpoints, as transformers saves them and as LeRobot does.

Both name their weights alike (`paligemma_with_expert…`), and transformers reads both. They differ
in config.json (`model_type` there, `type` here) and in where statistics and image settings are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PI0Config, PI0ForConditionalGeneration

from flashrt_ros.models.pi0.images import ImagePreprocessing, Pipeline
from flashrt_ros.models.pi0.network import check_config
from flashrt_ros.models.pi0.normalisation import Normalisation
from flashrt_ros.models.pi0.prompt import PromptTokenizer
from flashrt_ros.models.pi0.robot import Robot
from flashrt_ros.runtime.fingerprint import weights_digest

WEIGHTS = "model*.safetensors"
_PROMPT_LENGTH = 48  # of PI0Processor and of LeRobot's `tokenizer_max_length`
# Options of LeRobot that change what goes in or comes out, with the value that changes nothing.
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("n_obs_steps", 1),
    ("adapt_to_pi_aloha", False),
    ("use_delta_joint_actions_aloha", False),
    ("use_relative_actions", False),
    ("paligemma_variant", "gemma_2b"),
    ("action_expert_variant", "gemma_300m"),
)
# Tables that nothing reads in inference; some checkpoints hold them, some don't.
_UNREAD = ("dit.embed_tokens", "lm_head", "rotary_emb.inv_freq")


@dataclass(frozen=True)
class Parts:
    """Everything that a π0 policy is made of."""

    name: str
    model: PI0ForConditionalGeneration
    robot: Robot
    images: ImagePreprocessing
    normalisation: Normalisation
    prompt: PromptTokenizer
    weights: str  # digest of the weights' content


@dataclass(frozen=True)
class Given:
    """What a caller says instead of the checkpoint; None: as the checkpoint says."""

    robot: Robot | None = None
    images: ImagePreprocessing | None = None
    normalisation: Normalisation | None = None
    prompt: PromptTokenizer | None = None


def load(folder: Path, given: Given, dtype: torch.dtype | None, device: str) -> Parts:
    """Read a checkpoint directory, weights last.

    Raises FileNotFoundError naming a missing file, ValueError naming what is not supported or does
    not fit.
    """
    raw = _read_config(folder)
    lerobot = "model_type" not in raw
    config = _config(folder, raw)
    robot = given.robot or Robot.load(folder)
    if "input_features" in raw:
        robot.check_features(raw["input_features"], str(folder / "config.json"))
    size = config.vlm_config.vision_config.image_size
    images = given.images or ImagePreprocessing.of_checkpoint(folder, size, lerobot=lerobot)
    normalisation = given.normalisation or Normalisation.of_checkpoint(folder, raw)
    prompt = given.prompt or PromptTokenizer.of_checkpoint(
        folder,
        max_length=int(raw.get("tokenizer_max_length", _PROMPT_LENGTH)),
        image_token_id=config.vlm_config.image_token_id,
    )
    model = _load_model(folder, config, dtype).to(device)
    weights = weights_digest(folder, pattern=WEIGHTS)
    return Parts(folder.name, model, robot, images, normalisation, prompt, weights)


def of_model(model: PI0ForConditionalGeneration, given: Given) -> Parts:
    """The parts around a model in memory, all of which must be given.

    Raises ValueError naming those that are not.
    """
    if given.robot is None or given.normalisation is None or given.prompt is None:
        missing = [n for n in ("robot", "normalisation", "prompt") if getattr(given, n) is None]
        raise ValueError(
            f"{', '.join(missing)} not given: a model in memory does not come with it; pass it, or "
            "the path of a checkpoint"
        )
    size = model.config.vlm_config.vision_config.image_size
    images = given.images or ImagePreprocessing(size, size, Pipeline.TRANSFORMERS)
    weights = _weights_of(model)
    return Parts("pi0", model, given.robot, images, given.normalisation, given.prompt, weights)


def config_text(config: PI0Config) -> str:
    """A config as text that does not depend on where it was read from."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {
                key: plain(item)
                for key, item in value.items()
                if key not in ("_name_or_path", "transformers_version", "dtype", "device")
            }
        return value

    return json.dumps(plain(config.to_dict()), sort_keys=True, default=str)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"{folder} has no config.json: not a checkpoint directory")
    raw = json.loads(path.read_text())
    kind = raw.get("model_type", raw.get("type"))
    if kind != "pi0":
        raise ValueError(f"{path}: model type is {kind!r}, expected 'pi0'")
    return raw


def _config(folder: Path, raw: Mapping[str, Any]) -> PI0Config:
    """The config, refused where the checkpoint asks for something that is not done here."""
    for name, neutral in _OPTIONS:
        if raw.get(name, neutral) != neutral and not (
            name.endswith("_variant") and {"vlm_config", "dit_config"} <= set(raw)
        ):
            raise ValueError(
                f"{folder / 'config.json'}: {name} is {raw[name]!r}, only {neutral!r} is supported"
            )
    config = PI0Config.from_pretrained(folder)
    vision = config.vlm_config.vision_config
    resolution = list(raw.get("image_resolution", [vision.image_size] * 2))
    if resolution != [vision.image_size] * 2:
        if "vlm_config" in raw or resolution[0] != resolution[1]:
            raise ValueError(
                f"{folder / 'config.json'}: image_resolution is {resolution}, the vision tower "
                f"takes {vision.image_size} x {vision.image_size}"
            )
        vision.image_size = resolution[0]  # as LeRobot builds its vision tower
    check_config(config)
    return config


def _load_model(
    folder: Path, config: PI0Config, dtype: torch.dtype | None
) -> PI0ForConditionalGeneration:
    """The weights, every one of them: transformers would fill gaps with random numbers."""
    if not list(folder.glob(WEIGHTS)):
        raise FileNotFoundError(f"{folder} has no {WEIGHTS}: not a whole checkpoint")
    model, info = PI0ForConditionalGeneration.from_pretrained(
        folder,
        config=config,
        dtype="auto" if dtype is None else dtype,
        attn_implementation="sdpa",
        output_loading_info=True,
    )
    problems = []
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(str(n) for n in info[kind] if not any(u in str(n) for u in _UNREAD))
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
            problems.append(f"{kind.replace('_', ' ')}: {shown}")
    if problems:
        raise ValueError(f"{folder}: the weights do not fit config.json; {'; '.join(problems)}")
    # A gigabyte in float32 that the expert never reads: its inputs are embeddings already.
    model.model.dit.embed_tokens = torch.nn.Identity()
    return model.eval().requires_grad_(False)


def _weights_of(model: torch.nn.Module) -> str:
    """SHA-256 (hex) over names, types, shapes and bytes of a model's tensors."""
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if any(unread in name for unread in _UNREAD):
            continue
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        total.update(content.numpy().data)
    return total.hexdigest()
