# SPDX-License-Identifier: Apache-2.0
"""Stage 1: the image encoder learns to read off a scene what a reach needs to know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from flashrt_ros.models.streaming_vla.normalisation import Normalisation
from flashrt_ros.models.streaming_vla.vision import GOAL_JOINTS, VisionEncoder
from training.progress import load_state, save_state
from training.scenes import PLACE_MEAN, PLACE_SCALE, Scenes

HELD_OUT = 2000  # scenes that are not trained on


def scene_targets(scenes: Scenes, normalisation: Normalisation) -> Tensor:
    """float32 [n, 4, 2 + 4]: normalised places and joint goals."""
    places = torch.from_numpy(((scenes.places - PLACE_MEAN) / PLACE_SCALE).astype(np.float32))
    goals = normalisation.state(torch.from_numpy(scenes.goals))[..., :GOAL_JOINTS]
    return torch.cat([places, goals], dim=-1)


def pretrain_vision(
    encoder: VisionEncoder, scenes: Scenes, normalisation: Normalisation, state_file: Path,
    *, epochs: int, batch: int = 256, peak_rate: float = 2e-3, seed: int = 0,
) -> None:  # fmt: skip
    """Train the encoder in place; goes on from state_file where it was interrupted."""
    images, lamps = torch.from_numpy(scenes.images), torch.from_numpy(scenes.lamps)
    targets = scene_targets(scenes, normalisation)
    count = len(images) - HELD_OUT
    steps = count // batch
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=peak_rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, peak_rate, total_steps=epochs * steps, pct_start=0.15
    )
    begin = 0
    if (state := load_state(state_file)) is not None:
        encoder.load_state_dict(state["encoder"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        begin = state["epoch"]
    for epoch in range(begin, epochs):
        encoder.mixed = epoch < epochs - 2
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
        bar = tqdm(range(steps), desc=f"vision, epoch {epoch + 1}/{epochs}", mininterval=5)
        for step in bar:
            rows = order[step * batch : (step + 1) * batch]
            _, scene, lamp = encoder.read(images[rows])
            error = F.smooth_l1_loss(scene, targets[rows], beta=0.1)
            loss = 5 * error + 0.2 * F.cross_entropy(lamp, lamps[rows])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 20 == 0:
                bar.set_postfix(loss=f"{loss.item():.4f}")
        encoder.mixed = False
        print(report_vision(encoder, scenes, normalisation), flush=True)
        save_state(state_file, {
            "encoder": encoder.state_dict(), "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(), "epoch": epoch + 1,
        })  # fmt: skip


@torch.inference_mode()
def report_vision(encoder: VisionEncoder, scenes: Scenes, normalisation: Normalisation) -> str:
    """Errors on the held-out scenes, in words."""
    images = torch.from_numpy(scenes.images[-HELD_OUT:])
    reads = [encoder.read(part) for part in images.split(250)]
    scene = torch.cat([r[1] for r in reads])
    lamps = torch.cat([r[2] for r in reads]).argmax(1).numpy()
    places = scene[..., :2].numpy() * PLACE_SCALE + PLACE_MEAN
    off = np.linalg.norm(places - scenes.places[-HELD_OUT:], axis=-1) * 1e3
    targets = scene_targets(scenes, normalisation)[-HELD_OUT:, :, 2:]
    joints = (scene[..., 2:] - targets).abs() * normalisation.state_std[:GOAL_JOINTS]
    joints = joints.flatten(0, 1)
    p95 = np.round(np.quantile(joints.numpy(), 0.95, axis=0), 4).tolist()
    return (
        f"held out: places off by {np.median(off):.1f} mm in the median, "
        f"{np.quantile(off, 0.95):.1f} mm at 95 %; joint goals at 95 %: {p95} rad; "
        f"lamp right {100 * (lamps == scenes.lamps[-HELD_OUT:]).mean():.2f} %"
    )
