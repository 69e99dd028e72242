# SPDX-License-Identifier: Apache-2.0
"""What a π0 checkpoint does not say about the robot that it was trained on.

LeRobot's and transformers' checkpoints name neither joints nor rates. They stand beside the
weights in `robot.json`:

    {
      "cameras": {"base_0_rgb": [480, 640], "left_wrist_0_rgb": [480, 640]},
      "joint_names": ["shoulder", "elbow", "wrist", "gripper"],
      "joint_unit": "rad",
      "chunk_dt": 0.02,
      "tick_period": 0.5
    }

The order of the cameras is the order in which the network sees them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "robot.json"
_IMAGES = "observation.images."
_UNITS = ("rad", "deg")


@dataclass(frozen=True)
class Robot:
    """The robot that a checkpoint was trained on.

    cameras: name to (height, width) of its rgb images, as they come; joint_names: order of the
    state vector and of the actions; chunk_dt: s between the actions of a chunk; tick_period: s
    between observations; joint_unit: of the checkpoint's statistics, "rad" or "deg" (prismatic
    joints in m go with "rad"). Raises ValueError naming a field with a value that cannot be.
    """

    cameras: Mapping[str, tuple[int, int]]
    joint_names: tuple[str, ...]
    chunk_dt: float
    tick_period: float
    joint_unit: str = "rad"

    def __post_init__(self) -> None:
        if not self.cameras:
            raise ValueError("robot: cameras is empty, expected name to (height, width)")
        for name, size in self.cameras.items():
            if len(size) != 2 or min(size) < 1:
                raise ValueError(f"robot: camera {name!r} is {size}, expected (height, width)")
        if not self.joint_names or len(set(self.joint_names)) != len(self.joint_names):
            raise ValueError(
                f"robot: joint_names is {list(self.joint_names)}, expected one or more names, "
                "each once"
            )
        if self.joint_unit not in _UNITS:
            raise ValueError(
                f"robot: joint_unit is {self.joint_unit!r}, expected {' or '.join(_UNITS)}: the "
                "unit of state and actions in the data that the policy was trained on"
            )
        for field in ("chunk_dt", "tick_period"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"robot: {field} is {value}, expected seconds above 0")

    @staticmethod
    def load(folder: Path) -> Robot:
        """Read `robot.json` of a checkpoint.

        Raises FileNotFoundError without it, ValueError naming fields that are missing or unknown.
        """
        path = folder / FILE_NAME
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} has no {FILE_NAME}: write cameras, joint_names, joint_unit, chunk_dt "
                "and tick_period of the robot that the policy was trained on, see docs/pi0.md"
            )
        content = json.loads(path.read_text())
        fields = ("cameras", "joint_names", "joint_unit", "chunk_dt", "tick_period")
        missing = [name for name in fields if name not in content]
        unknown = [name for name in content if name not in fields]
        if missing or unknown:
            raise ValueError(
                f"{path}: missing {', '.join(missing) or 'nothing'}, "
                f"unknown {', '.join(unknown) or 'nothing'}; expected {', '.join(fields)}"
            )
        try:
            return Robot(
                cameras={name: tuple(size) for name, size in content["cameras"].items()},
                joint_names=tuple(content["joint_names"]),
                chunk_dt=float(content["chunk_dt"]),
                tick_period=float(content["tick_period"]),
                joint_unit=content["joint_unit"],
            )
        except (TypeError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from error

    def check_features(self, features: Mapping[str, object], source: str) -> None:
        """Raise ValueError unless these are the cameras of LeRobot's `input_features`, in order.

        `empty_camera_<n>` there stands for no camera: its tokens are masked out.
        """
        trained = [
            name.removeprefix(_IMAGES)
            for name in features
            if name.startswith(_IMAGES) and not name.startswith(f"{_IMAGES}empty_camera_")
        ]
        if trained != list(self.cameras):
            raise ValueError(
                f"{source}: the policy was trained with cameras {', '.join(trained) or 'none'}, "
                f"in this order; robot.json has {', '.join(self.cameras)}"
            )
