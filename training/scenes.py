# SPDX-License-Identifier: Apache-2.0
"""Single images of random scenes, for the image encoder: no physics, every layout another one."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import mujoco
import numpy as np
from tqdm import tqdm

from flashrt_ros.sim import camera, expert
from flashrt_ros.sim.scene import COLOURS, DARK, HOME, draw_layout, load_model

SCENE_SEEDS = 10_000_000  # layouts of images are drawn from here on, far from every episode's
PLACE_MEAN = np.array([0.27, 0.0])  # m
PLACE_SCALE = np.array([0.08, 0.17])


@dataclass(frozen=True)
class Scenes:
    """images: uint8 [n, 64, 64, 3]; places: float32 [n, 4, 2], m, the blocks' xy; goals: float32
    [n, 4, 5], rad, the joints that touch them; lamps: int64 [n], index into COLOURS, 4 is dark."""

    images: np.ndarray
    places: np.ndarray
    goals: np.ndarray
    lamps: np.ndarray


def _pose(draw: np.random.Generator, tops: np.ndarray) -> np.ndarray:
    """A pose that the arm may be seen in: near home, on a way, on a block, or anywhere."""
    kind = draw.random()
    aim = expert.touch_point(tops)[draw.integers(4)] + [0.0, 0.0, 0.01]
    if kind < 0.25:
        return HOME + draw.uniform(-1, 1, 5) * [0.7, 0.2, 0.2, 0.25, 0.5]
    if kind < 0.50:
        return expert.inverse_kinematics(aim) + draw.normal(0, 0.02, 5)
    if kind < 0.80:
        up = np.array([0.0, 0.0, draw.uniform(0, 0.1)])
        lifted = expert.inverse_kinematics(aim + up)
        over = expert.touch_point(tops)[draw.integers(4)] + np.array([0.0, 0.0, 0.08])
        other = expert.inverse_kinematics(over)
        begin = HOME if draw.random() < 0.6 else other
        return begin + draw.random() * (lifted - begin) + draw.normal(0, 0.05, 5)
    radius, azimuth = draw.uniform(0.15, 0.42), draw.uniform(-1.1, 1.1)
    point = [radius * np.cos(azimuth), radius * np.sin(azimuth), draw.uniform(0.06, 0.3)]
    return expert.inverse_kinematics(np.array(point)) + draw.normal(0, 0.1, 5)


def _draw(span: tuple[int, int]) -> Scenes:
    model = load_model()
    data = mujoco.MjData(model)
    count = span[1] - span[0]
    images = np.empty((count, camera.HEIGHT, camera.WIDTH, 3), dtype=np.uint8)
    places = np.empty((count, 4, 2), dtype=np.float32)
    goals = np.empty((count, 4, 5), dtype=np.float32)
    lamps = np.empty(count, dtype=np.int64)
    for row, index in enumerate(range(*span)):
        layout = draw_layout(SCENE_SEEDS + index)
        draw = np.random.Generator(np.random.Philox(key=[index, 0x5CE7E5]))
        tops = expert.top_faces(layout.blocks)
        data.qpos[:] = _pose(draw, tops)
        data.mocap_pos[:] = layout.blocks
        data.mocap_quat[:] = 0.0
        data.mocap_quat[:, 0] = np.cos(layout.yaws / 2)
        data.mocap_quat[:, 3] = np.sin(layout.yaws / 2)
        mujoco.mj_kinematics(model, data)
        lamps[row] = 4 if draw.random() < 0.4 else draw.integers(4)
        lamp = (*COLOURS, DARK)[lamps[row]]
        images[row] = camera.render(data, lamp, layout.light, layout.brightness, (index, 0))
        places[row] = layout.blocks[:, :2]
        goals[row] = expert.inverse_kinematics(expert.touch_point(tops))
    return Scenes(images, places, goals, lamps)


def make_scenes(count: int, cache: Path, processes: int = 2) -> Scenes:
    """`count` scenes, from the cache file if it has them."""
    if cache.exists():
        with np.load(cache) as stored:
            return Scenes(**{name: stored[name] for name in stored.files})
    spans = [(i, min(i + 1000, count)) for i in range(0, count, 1000)]
    with get_context("spawn").Pool(processes) as pool:
        parts = list(tqdm(pool.imap(_draw, spans), total=len(spans), desc="scenes (thousands)"))
    fields = ("images", "places", "goals", "lamps")
    scenes = Scenes(*(np.concatenate([getattr(part, f) for part in parts]) for f in fields))
    cache.parent.mkdir(parents=True, exist_ok=True)
    partial = cache.with_suffix(".partial.npz")
    np.savez(partial, **{f: getattr(scenes, f) for f in fields})
    partial.replace(cache)
    return scenes
