# SPDX-License-Identifier: Apache-2.0
"""A camera that casts one ray a pixel: no graphics library, the same bytes on every machine.

It stands on the far side of the table, looks back at the robot and down: the arm comes from
behind the blocks and hides little of them.
"""

from __future__ import annotations

import functools
import math

import mujoco
import numpy as np

from flashrt_ros.sim.scene import DARK, load_model

HEIGHT = 64
WIDTH = 64
CAMERA_FRAME = "camera_optical"

_EYE = np.array([0.86, 0.0, 0.62])  # m, in "arm_base"
_TARGET = np.array([0.24, 0.0, 0.04])
_FIELD_OF_VIEW = math.radians(47)
_AMBIENT = 0.45
_DIFFUSE = 0.60
_BACKGROUND = np.array([0.20, 0.21, 0.24])
LAMP_RGB = {
    "red": (1.0, 0.16, 0.12),
    "green": (0.15, 1.0, 0.25),
    "blue": (0.2, 0.35, 1.0),
    "yellow": (1.0, 0.95, 0.1),
}


@functools.cache
def _rays() -> np.ndarray:
    """Unit directions in "arm_base", float64 [HEIGHT * WIDTH, 3], row by row from the top left."""
    forward = (_TARGET - _EYE) / np.linalg.norm(_TARGET - _EYE)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    down = np.cross(forward, right)
    half = math.tan(_FIELD_OF_VIEW / 2)
    u = ((np.arange(WIDTH) + 0.5) / WIDTH * 2 - 1) * half
    v = ((np.arange(HEIGHT) + 0.5) / HEIGHT * 2 - 1) * half * HEIGHT / WIDTH
    rays = forward + u[None, :, None] * right + v[:, None, None] * down
    rays /= np.linalg.norm(rays, axis=2, keepdims=True)
    return np.ascontiguousarray(rays.reshape(-1, 3))


@functools.cache
def _colours() -> tuple[np.ndarray, int]:
    """Albedo of each geom, float64 [ngeom + 1, 3] (last row: nothing hit), and the bulb's id."""
    model = load_model()
    table = np.concatenate([model.geom_rgba[:, :3].astype(np.float64), _BACKGROUND[None]])
    return table, model.geom("lamp_bulb").id


def render(
    data: mujoco.MjData, lamp: str, light: np.ndarray, brightness: float, noise: tuple[int, int]
) -> np.ndarray:
    """The camera image of a world whose kinematics are up to date.

    lamp: "dark" or the colour that the bulb glows in; light: float64 [3], unit, towards the light;
    noise: (key, counter) of the pixel noise, integers, so that a frame is noised the same way
    whenever it is taken. Returns uint8 [HEIGHT, WIDTH, 3], rgb.
    """
    rays = _rays()
    count = rays.shape[0]
    geom = np.empty(count, dtype=np.int32)
    distance = np.empty(count)
    normal = np.empty((count, 3))
    mujoco.mj_multiRay(
        load_model(), data, _EYE, rays.reshape(-1), None, True, -1,
        geom, distance, normal.reshape(-1), count, 10.0,
    )  # fmt: skip
    table, bulb = _colours()
    facing = np.clip(normal @ light, 0.0, 1.0)
    shade = np.where(geom < 0, 1.0, _AMBIENT + _DIFFUSE * facing) * brightness
    image = table[geom] * shade[:, None]
    if lamp != DARK:
        image[geom == bulb] = LAMP_RGB[lamp]
    levels = np.rint(image * 255.0).astype(np.int16) + _noise(count * 3, noise).reshape(-1, 3)
    return np.clip(levels, 0, 255).astype(np.uint8).reshape(HEIGHT, WIDTH, 3)


def _noise(count: int, key: tuple[int, int]) -> np.ndarray:
    """Integers in [-3, 3], triangular, int16 [count]: the difference of two 2-bit numbers."""
    bits = np.random.Philox(key=[key[0], 0xCA3E4A], counter=[0, key[1], 0, 0])
    draws = bits.random_raw((count + 7) // 8).view(np.uint8)[:count]
    return (draws & 3).astype(np.int16) - ((draws >> 2) & 3)
