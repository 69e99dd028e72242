# SPDX-License-Identifier: Apache-2.0
"""Messages from and to the types below: images, joints, commands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from sensor_msgs.msg import Image, JointState

from flashrt_ros.policies import CommandOutput, Motion, Trajectory
from flashrt_ros.ros import conversions, images

ROOT = Path(__file__).parent.parent


def picture(encoding: str, pixels: np.ndarray, padding: int = 0) -> Image:
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, -1)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=99)
    return Image(
        height=height,
        width=width,
        encoding=encoding,
        step=padded.shape[1],
        data=padded.tobytes(),
    )


RGB = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
ALPHA = np.full((2, 3, 1), 255, dtype=np.uint8)


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize(
    ("encoding", "pixels"),
    [
        ("rgb8", RGB),
        ("bgr8", RGB[:, :, ::-1]),
        ("rgba8", np.concatenate((RGB, ALPHA), axis=2)),
        ("bgra8", np.concatenate((RGB[:, :, ::-1], ALPHA), axis=2)),
    ],
)
def test_colour_encodings_and_padded_rows_decode_to_the_same_rgb(
    encoding: str, pixels: np.ndarray, padding: int
) -> None:
    decoded = images.to_rgb(picture(encoding, np.ascontiguousarray(pixels), padding))
    np.testing.assert_array_equal(decoded, RGB)
    assert decoded.flags.c_contiguous


def test_grey_becomes_three_equal_channels() -> None:
    decoded = images.to_rgb(picture("mono8", RGB[:, :, :1]))
    np.testing.assert_array_equal(decoded, np.repeat(RGB[:, :, :1], 3, axis=2))


def test_unknown_encoding_is_named() -> None:
    with pytest.raises(ValueError, match="'nv24', expected one of bayer_bggr8"):
        images.to_rgb(picture("nv24", RGB))


def test_step_and_length_that_do_not_fit_are_refused() -> None:
    short = picture("rgb8", RGB)
    short.step = 4
    with pytest.raises(ValueError, match="step is 4 bytes, expected at least 9"):
        images.to_rgb(short)
    cut = picture("rgb8", RGB)
    cut.data = cut.data[:-1]
    with pytest.raises(ValueError, match="17 bytes, expected 18"):
        images.to_rgb(cut)


def test_joints_are_taken_by_name_in_any_order() -> None:
    message = JointState(name=["c", "a", "b"], position=[3.0, 1.0, 2.0])
    assert conversions.joint_positions(message, ("a", "b")).tolist() == [1.0, 2.0]


def test_missing_joint_is_named_and_never_zero() -> None:
    message = JointState(name=["a"], position=[1.0])
    with pytest.raises(ValueError, match="lacks b, c; it has a"):
        conversions.joint_positions(message, ("a", "b", "c"))


def test_joint_value_that_is_not_finite_is_named() -> None:
    message = JointState(name=["a", "b"], position=[1.0, float("nan")])
    with pytest.raises(ValueError, match="nan for 'b'"):
        conversions.joint_positions(message, ("a", "b"))


def test_names_without_positions_are_refused() -> None:
    message = JointState(name=["a", "b"], velocity=[1.0, 2.0])
    with pytest.raises(ValueError, match="2 names and 0 positions"):
        conversions.joint_positions(message, ("a", "b"))


def test_command_carries_its_commit_id_where_the_controller_does_not_look() -> None:
    trajectory = Trajectory(
        1_500_000_000, np.array([0.05, 0.1]), np.array([[0.1, 0.2], [0.3, 0.4]]), np.zeros(2)
    )
    command = CommandOutput(3, 120, 57, 60, trajectory, is_hold=False)
    message = conversions.to_joint_trajectory(command, ("a", "b"))
    assert conversions.commit_id(message) == {"epoch": 3, "boundary": 120, "sequence": 60}
    assert conversions.to_ns(message.header.stamp) == 1_500_000_000
    assert message.joint_names == ["a", "b"]
    times = [point.time_from_start for point in message.points]
    assert [(time.sec, time.nanosec) for time in times] == [(0, 50_000_000), (0, 100_000_000)]
    message.header.frame_id = "world"
    with pytest.raises(ValueError, match="'world' is no commit id"):
        conversions.commit_id(message)


def test_hold_that_is_immediate_has_the_stamp_that_means_now() -> None:
    trajectory = Trajectory(5, np.array([0.1]), np.zeros((1, 2)), np.zeros(2))
    for immediate, stamp_ns in ((True, 0), (False, 5)):
        command = CommandOutput(0, 0, 0, 1, trajectory, is_hold=True, immediate=immediate)
        message = conversions.to_joint_trajectory(command, ("a", "b"))
        assert conversions.to_ns(message.header.stamp) == stamp_ns


def test_motion_has_the_numbers_of_its_message() -> None:
    text = (ROOT / "msg" / "Motion.msg").read_text()
    constants = dict(re.findall(r"^uint8 ([A-Z]+)=(\d+)", text, re.MULTILINE))
    assert {motion.name: str(motion.value) for motion in Motion} == constants
