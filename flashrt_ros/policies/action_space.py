# SPDX-License-Identifier: Apache-2.0
"""What the numbers of a chunk mean, and how they become positions that joints can be told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flashrt_ros.policies.contract import ActionSpace, Output


@dataclass(frozen=True)
class ActionSpaces:
    """The meaning of each action of a policy, by its index.

    Attributes:
        relative: actions that are differences to the position that was measured at the
            observation, the same for every point of a chunk. They become absolute before anything
            else: limits, blending and holds know positions only.
        velocity: actions that are velocities (a twist). They have no position to stay at: their
            hold is 0, which is what not moving means in that space, and so is the time after the
            last point of a chunk.
    """

    relative: tuple[int, ...] = ()
    velocity: tuple[int, ...] = ()

    @property
    def any_relative(self) -> bool:
        """Whether some action is a difference."""
        return bool(self.relative)

    def absolute(self, actions: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """A chunk [points, actions] as positions (or velocities), float64."""
        positions = np.array(actions, dtype=np.float64)
        for index in self.relative:
            positions[:, index] += measured[index]
        return positions

    def at_rest(self, position: np.ndarray) -> np.ndarray:
        """A position with its velocities at 0."""
        still = np.array(position, dtype=np.float64)
        still[list(self.velocity)] = 0.0
        return still

    @staticmethod
    def of(outputs: Iterable[Output], joint_names: tuple[str, ...]) -> ActionSpaces:
        """Read them from a contract's outputs."""
        relative: set[int] = set()
        velocity: set[int] = set()
        for output in outputs:
            indices = [joint_names.index(name) for name in output.actions or joint_names]
            if output.type.is_twist:
                velocity.update(indices)
            elif output.space is ActionSpace.RELATIVE:
                relative.update(indices)
        return ActionSpaces(tuple(sorted(relative)), tuple(sorted(velocity)))
