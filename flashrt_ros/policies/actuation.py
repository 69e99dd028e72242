# SPDX-License-Identifier: Apache-2.0
"""From what the joints are commanded to what one output sends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashrt_ros.policies.contract import GripperOutput, Output


class Actuation:
    """The actions of one output, in its order, with the gripper's in the controller's values.

    Args:
        output: of a contract that was checked.
        joint_names: the policy's actions, in its order.

    Raises:
        ValueError: the output names an action that the policy has not.
    """

    def __init__(self, output: Output, joint_names: Sequence[str]) -> None:
        self.actions = output.actions or tuple(joint_names)
        unknown = [name for name in self.actions if name not in joint_names]
        if unknown:
            raise ValueError(
                f"output '{output.topic}' has the actions {', '.join(unknown)}, the policy has "
                f"{', '.join(joint_names)}"
            )
        self.names = tuple(output.names.get(name, name) for name in self.actions)
        self._columns = [list(joint_names).index(name) for name in self.actions]
        self._gripper = output.gripper
        self._finger = -1 if output.gripper is None else self.actions.index(output.gripper.action)

    def values(self, positions: np.ndarray) -> np.ndarray:
        """Of positions `[..., joints]`, those of this output `[..., actions]`."""
        chosen = np.asarray(positions, dtype=np.float64)[..., self._columns]
        if self._gripper is not None:
            finger = chosen[..., self._finger]
            chosen[..., self._finger] = gripper_values(self._gripper, finger)
        return chosen


def gripper_values(gripper: GripperOutput, actions: np.ndarray) -> np.ndarray:
    """A gripper's actions in the controller's values, never beyond closed and open."""
    width = gripper.policy_open - gripper.policy_closed
    share = np.clip((np.asarray(actions) - gripper.policy_closed) / width, 0.0, 1.0)
    if gripper.threshold is not None:
        share = (share > gripper.threshold).astype(np.float64)
    return np.asarray(gripper.closed + share * (gripper.open - gripper.closed))


def slopes(times: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Velocities at the points of a chunk `[points, joints]`: central differences, 0 at its end.

    The end is 0 because the joints stay there: joint_trajectory_controller refuses another value
    unless it is told to allow it (`allow_nonzero_velocity_at_trajectory_end`).
    """
    velocities = np.zeros_like(positions)
    if len(times) > 1:
        velocities[1:-1] = (positions[2:] - positions[:-2]) / (times[2:] - times[:-2])[:, None]
        velocities[0] = (positions[1] - positions[0]) / (times[1] - times[0])
    return velocities
