# SPDX-License-Identifier: Apache-2.0
"""From a π0 model of transformers, or its checkpoint, to a policy over buffers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PI0ForConditionalGeneration

from flashrt_ros.models.pi0 import checkpoint
from flashrt_ros.models.pi0.images import ImagePreprocessing
from flashrt_ros.models.pi0.normalisation import Normalisation
from flashrt_ros.models.pi0.policy import Pi0Policy
from flashrt_ros.models.pi0.prompt import PromptTokenizer
from flashrt_ros.models.pi0.robot import Robot

_BUCKETS = (16, 32)


def adopt_pi0(
    model_or_path: PI0ForConditionalGeneration | str | Path,
    *,
    robot: Robot | None = None,
    images: ImagePreprocessing | None = None,
    normalisation: Normalisation | None = None,
    prompt: PromptTokenizer | None = None,
    steps: int | None = None,
    prompt_buckets: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> Pi0Policy:
    """Make a policy of a checkpoint directory or of a model in memory.

    Args:
        model_or_path: a directory as transformers or LeRobot saves it, or a model, which is used
            as it is, on its device and in its dtype; it must not be changed afterwards.
        robot: cameras, joints and rates; default: the directory's `robot.json`.
        images, normalisation, prompt: default: what the directory says, see `docs/pi0.md`.
        steps: Euler steps from noise to actions; default: the config's `num_inference_steps`.
        prompt_buckets: prompt lengths that plans are made for, the longest prompt among them.
        dtype: of weights and buffers; default: the checkpoint's.
        device: of weights and buffers.

    Raises:
        FileNotFoundError: a file of the checkpoint is missing; it is named.
        ValueError: something is not supported, not known or does not fit; it is named.
    """
    given = checkpoint.Given(robot, images, normalisation, prompt)
    if isinstance(model_or_path, (str, Path)):
        parts = checkpoint.load(Path(model_or_path), given, dtype, device)
    else:
        parts = checkpoint.of_model(model_or_path, given)
    longest = parts.prompt.max_length
    buckets = prompt_buckets or [n for n in _BUCKETS if n < longest] + [longest]
    default = int(parts.model.config.num_inference_steps)
    return Pi0Policy(parts, steps=default if steps is None else steps, buckets=buckets)
