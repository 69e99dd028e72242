# SPDX-License-Identifier: Apache-2.0
"""Trains the shipped policy from nothing: `python -m training.train [--out DIR]`.

Stages: (1) the image encoder on single scenes, (2) backbone and action head on the expert's
episodes, (3) rounds of DAgger: the policy acts, the expert labels, all data are trained on again.
Every stage leaves its result in training/data or training/runs and is not done twice; a stage
that was interrupted goes on where it was. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import torch
from tqdm import tqdm

from flashrt_ros.models.streaming_vla.checkpoint import Checkpoint
from training.episodes import EPISODE_SEEDS, Episodes, make_expert_episodes
from training.fresh import new_checkpoint
from training.pretrain_vision import pretrain_vision
from training.progress import load_state, save_state
from training.rollout import Sequences, encode_episodes, roll_out
from training.scenes import make_scenes
from training.train_policy import PolicyTrainer, Recipe

ROOT = Path(__file__).parent
SCENES, VISION_EPOCHS = 48_000, 10
EXPERT_EPISODES, ROUND_EPISODES = 1_000, 384
IMITATION = Recipe(steps=2_000, rate=1.5e-3)
ROUNDS = (Recipe(steps=600, rate=6e-4, seed=1),)


def train(out: Path, data: Path, runs: Path, processes: int) -> None:
    """All stages; the checkpoint ends up in out."""
    begin = time.monotonic()
    checkpoint = new_checkpoint(seed=0)
    scenes = make_scenes(SCENES, data / "scenes.npz", processes)
    vision = checkpoint.network.vision
    pretrain_vision(
        vision, scenes, checkpoint.normalisation, runs / "vision.pt", epochs=VISION_EPOCHS
    )
    vision.eval()
    del scenes
    trainer = PolicyTrainer(checkpoint)
    sequences = _expert_sequences(checkpoint, data, runs, processes)
    trainer.train(sequences, IMITATION, runs / "imitation.pt", "imitation")
    checkpoint.save(out)
    for number, recipe in enumerate(ROUNDS, start=1):
        more = _round_sequences(out, number, runs, processes)
        sequences = Sequences.joined([sequences, more])
        trainer.train(sequences, recipe, runs / f"round{number}.pt", f"round {number}")
        checkpoint.save(out)
    print(f"wrote {out} after {(time.monotonic() - begin) / 60:.0f} minutes")


def _expert_sequences(checkpoint: Checkpoint, data: Path, runs: Path, processes: int) -> Sequences:
    cache = runs / "expert_features.pt"
    if (stored := load_state(cache)) is None:
        shards = make_expert_episodes(EXPERT_EPISODES, data / "expert", processes)
        bar = tqdm(shards, desc="encoding episodes")
        parts = [encode_episodes(checkpoint, Episodes.load(shard)) for shard in bar]
        stored = vars(Sequences.joined(parts))
        save_state(cache, stored)
    return Sequences(**stored)


def _round_sequences(folder: Path, number: int, runs: Path, processes: int) -> Sequences:
    cache = runs / f"round{number}_features.pt"
    if (stored := load_state(cache)) is None:
        first = EPISODE_SEEDS + number * 100_000
        stored = vars(roll_out(folder, first, ROUND_EPISODES, processes=processes))
        save_state(cache, stored)
    return Sequences(**stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "checkpoint",
                        help="where the checkpoint is written")  # fmt: skip
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="generated data")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="resumable state")
    parser.add_argument("--processes", type=int, default=2, help="simulators at once")
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(arguments.processes)
    train(arguments.out, arguments.data, arguments.runs, arguments.processes)


if __name__ == "__main__":
    main()
