# SPDX-License-Identifier: Apache-2.0
"""One message to one input of a policy, as its contract says.

Nothing here needs ROS or a node: messages are read by their fields' names, so that those of rclpy
and those that `rosbags` reads from a bag both do, and a replay gets the very arrays that the node
got.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from flashrt_ros.policies.contract import (
    CameraInput,
    Crop,
    Filter,
    Fit,
    JointField,
    JointsInput,
    MessageType,
    Resize,
    SensorInput,
    StampSource,
    VectorInput,
)
from flashrt_ros.ros import compressed, images


def decode(source: SensorInput, message: Any, received_ns: int) -> tuple[int, np.ndarray]:
    """The stamp, ns, and the array of one message.

    Args:
        source: of a contract that was checked against a policy (`contract_check.resolve`).
        message: of the type that `source` names.
        received_ns: when it came, the node's clock, ns: the stamp of inputs that have none of
            their own.

    Returns:
        The stamp, and uint8 `[height, width, 3]` for a camera, float64 `[n]` for others.

    Raises:
        ValueError: the message cannot be this input; says why. Of the stamp nothing is checked.
    """
    return stamp_of(source, message, received_ns), decode_array(source, message)


def stamp_of(source: SensorInput, message: Any, received_ns: int) -> int:
    """The stamp of a message, ns."""
    if source.timing.stamp is StampSource.RECEIPT or not source.type.stamped:
        return received_ns
    stamp = message.header.stamp
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def decode_array(source: SensorInput, message: Any) -> np.ndarray:
    """The array of a message, see `decode`."""
    if isinstance(source, CameraInput):
        return _camera(source, message)
    if isinstance(source, JointsInput):
        return joint_values(message, source.joints, source.names, JointField.POSITION)
    return _vector(source, message)


def joint_values(
    message: Any, joints: Sequence[str], names: Mapping[str, str], field: JointField
) -> np.ndarray:
    """One field of the named joints of a JointState, in that order: float64 `[joints]`.

    A message may have them in any order and have other joints too. `names` maps ours to the
    message's where they differ.

    Raises:
        ValueError: a joint is missing or named twice, the arrays differ in length, or a value is
            not finite.
    """
    values, given = getattr(message, field.value), list(message.name)
    if len(values) != len(given):
        raise ValueError(f"joint state has {len(given)} names and {len(values)} {_plural(field)}")
    wanted = [names.get(joint, joint) for joint in joints]
    index = {name: i for i, name in enumerate(given)}
    missing = [name for name in wanted if name not in index]
    if missing:
        raise ValueError(
            f"joint state lacks {', '.join(missing)}; it has {', '.join(given) or 'none'}"
        )
    if len(index) != len(given):
        twice = sorted({name for name in wanted if given.count(name) > 1})
        if twice:
            raise ValueError(f"joint state names {', '.join(twice)} more than once")
    array = np.array([values[index[name]] for name in wanted], dtype=np.float64)
    for name, value in zip(wanted, array, strict=True):
        if not np.isfinite(value):
            raise ValueError(f"joint state has {value} for '{name}', expected a finite {field}")
    return array


def _plural(field: JointField) -> str:
    return {"velocity": "velocities"}.get(field.value, f"{field.value}s")


def _camera(source: CameraInput, message: Any) -> np.ndarray:
    to_rgb = compressed.to_rgb if source.type is MessageType.COMPRESSED_IMAGE else images.to_rgb
    image = to_rgb(message, source.max_pixels)
    if source.crop is not None:
        image = _crop(image, source.crop)
    if source.size is None or image.shape[:2] == source.size:
        return np.ascontiguousarray(image)
    if source.resize is None:
        raise ValueError(
            f"image of camera '{source.name}' is uint8 {image.shape}, expected uint8 "
            f"{(*source.size, 3)}; the contract may ask for a crop or resize"
        )
    return resize(image, source.size, source.resize)


def _crop(image: np.ndarray, crop: Crop) -> np.ndarray:
    height, width = image.shape[:2]
    if crop.y + crop.height > height or crop.x + crop.width > width:
        raise ValueError(
            f"image is {width} x {height} pixels, too small for the crop of {crop.width} x "
            f"{crop.height} at ({crop.x}, {crop.y})"
        )
    return image[crop.y : crop.y + crop.height, crop.x : crop.x + crop.width]


def resize(image: np.ndarray, size: tuple[int, int], how: Resize) -> np.ndarray:
    """Resize uint8 `[height, width, 3]` to `size`, (height, width)."""
    if how.fit is Fit.STRETCH:
        return _scale(image, size, how.filter)
    factor = min(size[0] / image.shape[0], size[1] / image.shape[1])
    inner = [
        max(1, min(limit, round(side * factor)))
        for side, limit in zip(image.shape[:2], size, strict=True)
    ]
    top, left = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    padded = np.zeros((*size, 3), dtype=np.uint8)
    scaled = _scale(image, (inner[0], inner[1]), how.filter)
    padded[top : top + inner[0], left : left + inner[1]] = scaled
    return padded


def _scale(image: np.ndarray, size: tuple[int, int], how: Filter) -> np.ndarray:
    # torch warns of arrays that are read-only, as those out of bytes are.
    planes = torch.from_numpy(np.require(image, requirements=["C", "W"])).permute(2, 0, 1)[None]
    if how is Filter.NEAREST:
        scaled = interpolate(planes, size=size, mode="nearest-exact")
    elif how is Filter.AREA:
        scaled = interpolate(planes.float(), size=size, mode="area").round().to(torch.uint8)
    else:
        scaled = interpolate(planes, size=size, mode=how.value, align_corners=False, antialias=True)
    return np.ascontiguousarray(scaled[0].permute(1, 2, 0).numpy())


def _vector(source: VectorInput, message: Any) -> np.ndarray:
    if source.type is MessageType.JOINT_STATE:
        return joint_values(message, source.joints, source.names, source.values)
    if source.type is MessageType.WRENCH:
        force, torque = message.wrench.force, message.wrench.torque
        values = [force.x, force.y, force.z, torque.x, torque.y, torque.z]
    else:
        values = message.data[message.layout.data_offset :]
    array = np.array(values, dtype=np.float64)
    if source.length is not None and array.shape != (source.length,):
        raise ValueError(
            f"'{source.name}' has {array.size} numbers, expected {source.length} as the policy "
            "was trained with"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"'{source.name}' is {array.tolist()}, expected finite numbers")
    return array
