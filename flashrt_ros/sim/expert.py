# SPDX-License-Identifier: Apache-2.0
"""A scripted expert with privileged sight: what the policy is taught.

It is a function of the joints and the task alone, without memory, so it can label any state that
a learner gets into (DAgger, Ross et al. 2011, arXiv 1011.0686). All functions work on batches.
"""

from __future__ import annotations

import numpy as np

from flashrt_ros.sim.scene import (
    BLOCK_SIDE,
    FOREARM,
    HAND,
    HOME,
    MAX_SPEED,
    SHOULDER_HEIGHT,
    UPPER_ARM,
)

PRESS = 0.012  # m, how far inside the top face the reach aims: the fingertip presses, softly
_CLEARANCE = 0.09  # m above that, when far from the block sideways
_NEAR = 0.015  # m sideways, from here on straight down


def inverse_kinematics(points: np.ndarray) -> np.ndarray:
    """Joints that put the fingertip on points, the hand straight down.

    points: [..., 3] m in "arm_base". Returns [..., 5] rad. Points out of reach give the joints of
    the stretched arm in their direction. (Two-link planar inverse kinematics, elbow up.)
    """
    radius = np.hypot(points[..., 0], points[..., 1])
    height = points[..., 2] + HAND - SHOULDER_HEIGHT
    span = np.minimum(np.hypot(radius, height), 0.999 * (UPPER_ARM + FOREARM))
    cosine = (UPPER_ARM**2 + span**2 - FOREARM**2) / (2 * UPPER_ARM * span)
    elevation = np.arctan2(height, radius) + np.arccos(np.clip(cosine, -1.0, 1.0))
    shoulder = np.pi / 2 - elevation
    down = -np.arctan2(height - UPPER_ARM * np.cos(shoulder), radius - UPPER_ARM * np.sin(shoulder))
    waist = np.arctan2(points[..., 1], points[..., 0])
    return np.stack(
        [waist, shoulder, down - shoulder, np.pi / 2 - down, np.zeros_like(waist)], axis=-1
    )


def forward_kinematics(joints: np.ndarray) -> np.ndarray:
    """The fingertip's end, [..., 3] m in "arm_base", of joints [..., 5] rad."""
    waist, shoulder, elbow, wrist = (joints[..., i] for i in range(4))
    down = shoulder + elbow
    tool = down + wrist
    radius = UPPER_ARM * np.sin(shoulder) + FOREARM * np.cos(down) + HAND * np.cos(tool)
    height = (
        SHOULDER_HEIGHT
        + UPPER_ARM * np.cos(shoulder)
        - FOREARM * np.sin(down)
        - HAND * np.sin(tool)
    )
    return np.stack([radius * np.cos(waist), radius * np.sin(waist), height], axis=-1)


def touch_point(block_tops: np.ndarray) -> np.ndarray:
    """Where the reach aims: [..., 3] m, a little inside the middle of the top faces [..., 3]."""
    return block_tops - np.array([0.0, 0.0, PRESS])


def reach_goal(joints: np.ndarray, block_tops: np.ndarray) -> np.ndarray:
    """The joints to move towards now, [..., 5]: over the block first, then down onto it."""
    aim = touch_point(block_tops)
    offset = forward_kinematics(joints)[..., :2] - aim[..., :2]
    distance = np.hypot(offset[..., 0], offset[..., 1])
    aim = aim.copy()
    aim[..., 2] += np.clip(distance - _NEAR, 0.0, _CLEARANCE)
    return inverse_kinematics(aim)


def step_towards(joints: np.ndarray, goal: np.ndarray, seconds: float) -> np.ndarray:
    """Joints after a synchronised motion towards goal: the longest way at MAX_SPEED."""
    way = goal - joints
    longest = np.abs(way).max(axis=-1, keepdims=True)
    return joints + way * np.minimum(1.0, MAX_SPEED * seconds / np.maximum(longest, 1e-9))


def plan_reach(joints: np.ndarray, block_tops: np.ndarray, length: int, dt: float) -> np.ndarray:
    """A chunk that reaches for blocks: [..., length, 5] rad, point i at (i + 1) * dt seconds.

    joints: [..., 5] rad; block_tops: [..., 3] m, the centres of the top faces.
    """
    chunk = []
    for _ in range(length):
        joints = step_towards(joints, reach_goal(joints, block_tops), dt)
        chunk.append(joints)
    return np.stack(chunk, axis=-2)


def plan_home(joints: np.ndarray, length: int, dt: float) -> np.ndarray:
    """A chunk that goes home, [..., length, 5] rad."""
    chunk = []
    for _ in range(length):
        joints = step_towards(joints, HOME, dt)
        chunk.append(joints)
    return np.stack(chunk, axis=-2)


def plan_wait(joints: np.ndarray, length: int) -> np.ndarray:
    """A chunk that stays, [..., length, 5] rad."""
    return np.repeat(joints[..., None, :], length, axis=-2)


def top_faces(block_centres: np.ndarray) -> np.ndarray:
    """Centres of the top faces, [..., 3], of blocks with these centres."""
    return block_centres + np.array([0.0, 0.0, BLOCK_SIDE / 2])
