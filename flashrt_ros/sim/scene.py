# SPDX-License-Identifier: Apache-2.0
"""The scene's constants, its MuJoCo model, and what an episode's seed draws."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from importlib import resources

import mujoco
import numpy as np

JOINT_NAMES = ("waist", "shoulder", "elbow", "wrist_pitch", "wrist_roll")
COLOURS = ("red", "green", "blue", "yellow")
DARK = "dark"

BASE_FRAME = "arm_base"
SHOULDER_HEIGHT = 0.11  # m, of the shoulder's axis over the table
UPPER_ARM = 0.25  # m
FOREARM = 0.25  # m
HAND = 0.15  # m, from the wrist's pitch axis to the end of the fingertip
BLOCK_SIDE = 0.06  # m

TICK_PERIOD = 0.1  # s of sim time in a policy tick
TICK_NS = 100_000_000
CONTROL_NS = 20_000_000  # set points change at 50 Hz
PHYSICS_NS = 5_000_000
CUE_TICKS = 10  # for so long the lamp is lit after a reset

HOME = np.array([0.0, -0.6, 0.45, 1.72, 0.0])  # rad
MAX_SPEED = 1.2  # rad/s of the fastest joint in a synchronised motion

# Where blocks may stand: polar, around the waist's axis.
_RADIUS = (0.25, 0.40)  # m
_AZIMUTH = math.radians(52)
_MIN_DISTANCE = 0.115  # m between centres, 2.7 cm of air at the corners of turned neighbours
_START_SPREAD = np.array([0.5, 0.15, 0.15, 0.2, 0.4])  # rad, half range around HOME


@dataclass(frozen=True)
class Layout:
    """What a seed draws.

    blocks: float64 [4, 3], m, the centres of the blocks in COLOURS' order, in "arm_base".
    yaws: float64 [4], rad, their turn about the vertical.
    start: float64 [5], rad, the joints at the reset.
    cue: the colour that the lamp shows first.
    light: float64 [3], the light's direction, unit length; brightness: of the image as a whole.
    """

    blocks: np.ndarray
    yaws: np.ndarray
    start: np.ndarray
    cue: str
    light: np.ndarray
    brightness: float


@functools.cache
def load_model() -> mujoco.MjModel:
    """The compiled model. Shared and never changed: everything that varies is in MjData."""
    text = resources.files("flashrt_ros.sim").joinpath("assets/arm.xml").read_text()
    return mujoco.MjModel.from_xml_string(text)


def draw_layout(seed: int) -> Layout:
    """The layout of an episode: the same for a seed everywhere (Philox counter generator).

    Raises ValueError if seed is not in [0, 2**64).
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}, expected 0 <= seed < 2**64")
    draw = np.random.Generator(np.random.Philox(key=[seed, 0x5CE4E]))
    cue = COLOURS[int(draw.integers(4))]
    blocks = _draw_blocks(draw)
    yaws = draw.uniform(-0.4, 0.4, size=4)
    start = HOME + draw.uniform(-1.0, 1.0, size=5) * _START_SPREAD
    light = np.array([0.35, 0.25, 1.0]) + draw.uniform(-0.25, 0.25, size=3)
    brightness = draw.uniform(0.85, 1.1)
    return Layout(blocks, yaws, start, cue, light / np.linalg.norm(light), float(brightness))


def _draw_blocks(draw: np.random.Generator) -> np.ndarray:
    """Four centres, float64 [4, 3], drawn anew as a whole until all are far enough apart."""
    while True:
        radius = draw.uniform(*_RADIUS, size=4)
        azimuth = draw.uniform(-_AZIMUTH, _AZIMUTH, size=4)
        xy = np.stack([radius * np.cos(azimuth), radius * np.sin(azimuth)], axis=1)
        gaps = np.linalg.norm(xy[:, None] - xy[None], axis=2)[np.triu_indices(4, 1)]
        if gaps.min() >= _MIN_DISTANCE:
            return np.concatenate([xy, np.full((4, 1), BLOCK_SIDE / 2)], axis=1)
