# SPDX-License-Identifier: Apache-2.0
"""A fresh checkpoint to train: configuration, tokenizer, statistics, initial weights."""

from __future__ import annotations

import torch

from flashrt_ros.models.streaming_vla.checkpoint import Checkpoint
from flashrt_ros.models.streaming_vla.configuration import StreamingVLAConfig
from flashrt_ros.models.streaming_vla.instruction import InstructionTokenizer
from flashrt_ros.models.streaming_vla.modeling import StreamingVLA
from flashrt_ros.sim.scene import JOINT_NAMES, TICK_PERIOD
from training.episodes import CHUNK_DT, CHUNK_LENGTH
from training.scripts import PHRASES
from training.statistics import measure_normalisation

INSTRUCTION_LENGTH = 8


def new_checkpoint(seed: int) -> Checkpoint:
    """Initial weights from the seed."""
    torch.manual_seed(seed)
    tokenizer = InstructionTokenizer.of_phrases(PHRASES, INSTRUCTION_LENGTH)
    config = StreamingVLAConfig(
        joint_names=JOINT_NAMES,
        tick_period=TICK_PERIOD,
        chunk_length=CHUNK_LENGTH,
        chunk_dt=CHUNK_DT,
        vocab_size=tokenizer.vocab_size,
        instruction_length=INSTRUCTION_LENGTH,
    )
    normalisation = measure_normalisation(CHUNK_LENGTH, CHUNK_DT)
    return Checkpoint(config, StreamingVLA(config).eval(), normalisation, tokenizer)
