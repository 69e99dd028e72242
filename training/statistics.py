# SPDX-License-Identifier: Apache-2.0
"""Normalisation statistics, from layouts and the expert alone."""

from __future__ import annotations

import numpy as np
import torch

from flashrt_ros.models.streaming_vla.normalisation import Normalisation
from flashrt_ros.sim import expert
from flashrt_ros.sim.scene import draw_layout
from training.scenes import SCENE_SEEDS

_LAYOUTS = 2000


def measure_normalisation(chunk_length: int, chunk_dt: float) -> Normalisation:
    """States: the joints that touch blocks. Actions: chunks at uniformly drawn points of ways
    there. The wrist's roll, which no reach needs, is given the spread of its start."""
    draw = np.random.Generator(np.random.Philox(key=[1, 2]))
    layouts = [draw_layout(SCENE_SEEDS - 1 - i) for i in range(_LAYOUTS)]
    tops = expert.top_faces(np.stack([layout.blocks for layout in layouts]))[:, 0]
    starts = np.stack([layout.start for layout in layouts])
    goals = expert.inverse_kinematics(expert.touch_point(tops))
    where = starts + draw.random((_LAYOUTS, 1)) * (goals - starts)
    moves = expert.plan_reach(where, tops, chunk_length, chunk_dt) - where[:, None]
    std = goals.std(axis=0)
    std[4] = 0.2
    return Normalisation(
        torch.from_numpy(goals.mean(axis=0).astype(np.float32)),
        torch.from_numpy(std.astype(np.float32)),
        torch.from_numpy(np.sqrt((moves**2).mean(axis=0)).astype(np.float32)),
    )
