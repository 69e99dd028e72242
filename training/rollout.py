# SPDX-License-Identifier: Apache-2.0
"""Closed loop: the policy acts in many worlds at once; the expert labels what it gets into."""

from __future__ import annotations

from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from flashrt_ros.models.streaming_vla.checkpoint import Checkpoint
from flashrt_ros.models.streaming_vla.state import TickCache, state_shapes
from training.episodes import CHUNK_LENGTH, Episode, Episodes
from training.scripts import EPISODE_TICKS, PHRASES

WORLDS = 32  # stepped together


@dataclass(frozen=True)
class Sequences:
    """What the backbone and the head are trained on, [episodes, ticks, ...]: features float32
    [..., feature_size]; the others as in Episodes."""

    features: Tensor
    joints: Tensor
    phrases: Tensor
    chunks: Tensor
    goals: Tensor
    cues: Tensor

    def __len__(self) -> int:
        return len(self.features)

    @staticmethod
    def joined(parts: list[Sequences]) -> Sequences:
        return Sequences(
            *(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Sequences))
        )


@torch.inference_mode()
def encode_episodes(checkpoint: Checkpoint, episodes: Episodes) -> Sequences:
    """Run the encoder over every image."""
    encoder = checkpoint.network.vision
    features = [encoder(torch.from_numpy(np.array(images))) for images in episodes.images]
    rest = (torch.from_numpy(np.array(getattr(episodes, f.name))) for f in fields(Sequences)[1:])
    return Sequences(torch.stack(features), *rest)


class BatchPolicy:
    """A checkpoint over `batch` streams in step, for training; deployment uses the adapter."""

    def __init__(self, checkpoint: Checkpoint, batch: int, seed: int) -> None:
        config, self._network = checkpoint.config, checkpoint.network
        self._normalisation = checkpoint.normalisation
        self._ids = torch.tensor([checkpoint.tokenizer.encode(p) for p in PHRASES])
        shapes = state_shapes(config, batch)
        self._tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
        self._step = torch.zeros((), dtype=torch.int64)
        self._cache = TickCache(config, self._tensors, self._step, self._network.rotary)
        self._noise = torch.Generator().manual_seed(seed)
        self._shape = (batch, config.chunk_length, len(config.joint_names))

    @torch.inference_mode()
    def tick(
        self, images: np.ndarray, joints: np.ndarray, phrases: np.ndarray
    ) -> tuple[np.ndarray, Tensor]:
        """Absolute chunks [batch, 8, 5] rad, and the image features [batch, feature_size]."""
        network, normalisation = self._network, self._normalisation
        positions = torch.from_numpy(joints.astype(np.float32))
        state = normalisation.state(positions)
        features = network.vision(torch.from_numpy(images))
        said = self._ids[torch.from_numpy(phrases)]
        hidden = network.tick(features, said, state, self._cache)
        self._step += 1
        noise = torch.randn(self._shape, generator=self._noise)
        chunk = normalisation.chunk(network.act(hidden, state, noise), positions)
        return chunk.numpy(), features


@dataclass(frozen=True)
class _Job:
    folder: Path
    seeds: tuple[int, ...]
    expert_share: float


def _roll_out(job: _Job) -> Sequences:
    torch.set_num_threads(1)
    checkpoint = Checkpoint.load(job.folder)
    draw = np.random.Generator(np.random.Philox(key=[job.seeds[0], 0xDA66E5]))
    episodes = [Episode(s, disturb=bool(draw.random() < 0.4)) for s in job.seeds]
    by_expert = draw.random(len(episodes)) < job.expert_share
    policy = BatchPolicy(checkpoint, len(episodes), seed=job.seeds[0])
    columns: list[list[Tensor]] = [[] for _ in fields(Sequences)]
    for _ in range(EPISODE_TICKS):
        seen = [episode.world.observe() for episode in episodes]
        joints = np.stack([s.positions for s in seen])
        phrases = np.array([episode.phrase for episode in episodes])
        chunks, features = policy.tick(np.stack([s.image for s in seen]), joints, phrases)
        labels = [e.label(j) for e, j in zip(episodes, joints, strict=True)]
        rows = (
            features,
            torch.from_numpy(joints.astype(np.float32)),
            torch.from_numpy(phrases),
            torch.from_numpy(np.stack([label[0] for label in labels]).astype(np.float32)),
            torch.from_numpy(np.stack([label[1] for label in labels]).astype(np.float32)),
            torch.tensor([episode.seen_cue for episode in episodes]),
        )
        for column, row in zip(columns, rows, strict=True):
            column.append(row)
        for index, episode in enumerate(episodes):
            episode.act(labels[index][0] if by_expert[index] else chunks[index])
    assert chunks.shape[1] == CHUNK_LENGTH
    return Sequences(*(torch.stack(column, dim=1) for column in columns))


def roll_out(
    folder: Path, first_seed: int, count: int, *, expert_share: float = 0.0, processes: int = 2
) -> Sequences:
    """`count` (a multiple of WORLDS) episodes of the checkpoint in folder, labelled."""
    jobs = [
        _Job(folder, tuple(range(s, s + WORLDS)), expert_share)
        for s in range(first_seed, first_seed + count, WORLDS)
    ]
    with get_context("spawn").Pool(processes) as pool:
        parts = list(tqdm(pool.imap(_roll_out, jobs), total=len(jobs), desc="rolling out"))
    return Sequences.joined(parts)
