# SPDX-License-Identifier: Apache-2.0
"""Joint limits from files: a YAML file as MoveIt and ros2_control have it, a URDF, or both.

The YAML is a `joint_limits.yaml`: `joint_limits:` maps a joint to `has_position_limits`,
`min_position`, `max_position`, `has_velocity_limits`, `max_velocity`, `has_acceleration_limits`
and `max_acceleration`; ours are `has_jump_limits` and `max_jump` beside them. Source:
https://github.com/ros-controls/ros2_control/blob/master/joint_limits/README.md and MoveIt's
joint_limits.yaml. A limit counts where its `has_...` is true or left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flashrt_ros.policies.limits import JointLimit, JointLimits
from flashrt_ros.policies.urdf import joint_limits

_KEYS = {
    "min_position": ("has_position_limits", "lower"),
    "max_position": ("has_position_limits", "upper"),
    "max_velocity": ("has_velocity_limits", "velocity"),
    "max_acceleration": ("has_acceleration_limits", "acceleration"),
    "max_jump": ("has_jump_limits", "jump"),
}
_SWITCHES = {switch for switch, _ in _KEYS.values()}
# Other keys of the format: told, not refused, as the file serves other programs too.
_IGNORED = {
    "angle_wraparound",
    "has_deceleration_limits",
    "has_effort_limits",
    "has_jerk_limits",
    "has_soft_limits",
    "k_position",
    "k_velocity",
    "max_deceleration",
    "max_effort",
    "max_jerk",
    "soft_lower_limit",
    "soft_upper_limit",
}


@dataclass(frozen=True)
class LoadedLimits:
    """Limits; which keys of the file are not enforced; which actions have no limits by right."""

    limits: JointLimits
    ignored: tuple[str, ...] = ()
    unlimited: tuple[str, ...] = ()


def load_limits(
    names: Sequence[str], *, path: str = "", urdf: str = "", velocities: Sequence[int] = ()
) -> LoadedLimits:
    """The limits of a policy's joints; of both files, the narrower ones count.

    Args:
        names: the policy's joints, in order. Each must be in the URDF, where one is given, else in
            the YAML file.
        path: a YAML file; empty: none.
        urdf: a URDF file, or its XML itself; empty: none.
        velocities: columns that are velocities, of a twist say, which no URDF has: they must be in
            the YAML file, and are not limited where there is none.

    Raises:
        OSError: a file can't be read.
        ValueError: a file can't be meant; the message names it, and the joint.
    """
    found: dict[str, JointLimit] = {}
    ignored: tuple[str, ...] = ()
    unlimited: tuple[str, ...] = ()
    if urdf:
        found = _from_urdf([n for i, n in enumerate(names) if i not in velocities], urdf)
        unlimited = () if path else tuple(names[column] for column in velocities)
        found |= dict.fromkeys(unlimited, JointLimit())
    elif not path:
        return LoadedLimits(JointLimits.unlimited(names))
    if path:
        given, ignored = _from_yaml(names, Path(path))
        for name, values in given.items():
            found[name] = found.get(name, JointLimit()).narrowed(**values)
    try:
        return LoadedLimits(JointLimits.of(names, found), ignored, unlimited)
    except ValueError as error:
        raise ValueError(f"{path or 'the URDF'}: {error}") from error


def _from_urdf(names: Sequence[str], urdf: str) -> dict[str, JointLimit]:
    if urdf.lstrip().startswith("<"):
        return joint_limits(urdf, names)
    try:
        return joint_limits(Path(urdf).read_text(), names)
    except ValueError as error:
        raise ValueError(f"{urdf}: {error}") from error


def _from_yaml(
    names: Sequence[str], path: Path
) -> tuple[dict[str, dict[str, float]], tuple[str, ...]]:
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    joints = content.get("joint_limits") if isinstance(content, dict) else None
    if not isinstance(joints, dict):
        raise ValueError(f"{path} has no 'joint_limits', expected it to map joints to their limits")
    ignored = [str(key) for key in content if key != "joint_limits"]
    limits = {}
    for name, entry in joints.items():
        if name not in names:
            continue  # the whole robot's file serves a policy of one arm
        if not isinstance(entry, dict):
            raise ValueError(f"{path}: joint '{name}' is {entry!r}, expected a map of limits")
        unknown = set(entry) - set(_KEYS) - _SWITCHES - _IGNORED
        if unknown:
            raise ValueError(
                f"{path}: joint '{name}' has {', '.join(sorted(map(str, unknown)))}, expected "
                f"{', '.join(_KEYS)}"
            )
        ignored += [f"{name}.{key}" for key in entry if key in _IGNORED and entry[key] is not False]
        limits[str(name)] = _entry(path, name, entry)
    return limits, tuple(ignored)


def _entry(path: Path, name: str, entry: Mapping[str, Any]) -> dict[str, float]:
    values = {}
    for key, (switch, field) in _KEYS.items():
        if entry.get(switch) is False:
            continue
        if key not in entry:
            if entry.get(switch):
                raise ValueError(f"{path}: joint '{name}' has {switch}: true and no {key}")
            continue
        value = entry[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{path}: joint '{name}' has {key}: {value!r}, expected a number")
        values[field] = float(value)
    return values
