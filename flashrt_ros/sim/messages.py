# SPDX-License-Identifier: Apache-2.0
"""The simulated world's observations as messages, and a JointTrajectory as its command."""

from __future__ import annotations

import array
import itertools
from dataclasses import dataclass

import numpy as np
from geometry_msgs.msg import Point
from rclpy.time import Time
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.msg import SimState
from flashrt_ros.sim.scene import BASE_FRAME
from flashrt_ros.sim.world import SimObservation, SimTruth

CAMERA_FRAME = "camera_optical_frame"
MAX_LEAD_NS = 10_000_000_000  # a start later than this is another clock's time, not a plan


@dataclass(frozen=True)
class ArmCommand:
    """A joint trajectory in the world's terms.

    stamp_ns: the header's stamp, sim time, 0 for "now"; start_ns: when the trajectory starts;
    times: float64 [n], s after the start, strictly increasing; positions: float64 [n, joints], rad,
    in the world's order of joints.
    """

    stamp_ns: int
    start_ns: int
    times: np.ndarray
    positions: np.ndarray


def _header(stamp_ns: int, frame: str = "") -> Header:
    return Header(stamp=Time(nanoseconds=stamp_ns).to_msg(), frame_id=frame)


def to_image(observation: SimObservation) -> Image:
    """The camera image, rgb8, stamped with the time at which it was taken."""
    height, width, channels = observation.image.shape
    return Image(
        header=_header(observation.stamp_ns, CAMERA_FRAME),
        height=height,
        width=width,
        encoding="rgb8",
        is_bigendian=0,
        step=width * channels,
        # An array is taken as it is; rclpy would check bytes one by one.
        data=array.array("B", observation.image.tobytes()),
    )


def to_joint_state(
    stamp_ns: int, names: tuple[str, ...], positions: np.ndarray, velocities: np.ndarray
) -> JointState:
    """Positions, rad, and velocities, rad/s, in the order of names."""
    return JointState(
        header=_header(stamp_ns),
        name=list(names),
        position=positions.tolist(),
        velocity=velocities.tolist(),
    )


def to_state(truth: SimTruth, stamp_ns: int, granted: int) -> SimState:
    """Ground truth; granted: ticks still granted, -1 without limit."""
    return SimState(
        header=_header(stamp_ns, BASE_FRAME),
        seed=truth.seed,
        tick=truth.tick,
        ticks_granted=granted,
        lamp=truth.lamp,
        last_cue=truth.last_cue,
        touching=truth.touching,
        touching_for=truth.touching_for,
        joint_names=list(truth.joint_names),
        joint_positions=truth.joint_positions.tolist(),
        tip=_point(truth.tip),
        block_colours=list(truth.block_colours),
        block_positions=[_point(position) for position in truth.block_positions],
    )


def _point(xyz: np.ndarray) -> Point:
    return Point(x=float(xyz[0]), y=float(xyz[1]), z=float(xyz[2]))


def read_command(message: JointTrajectory, joint_names: tuple[str, ...], now_ns: int) -> ArmCommand:
    """Check a JointTrajectory as strictly as a controller should, and put its joints in order.

    Joints are taken by name, in any order. A zero stamp means now. Only positions are read.

    Raises:
        ValueError: joints missing, unknown or twice; no point; a point without a position for
            each joint; a position that is not finite; times that are negative or do not increase
            strictly; a trajectory that is over already, or starts more than 10 s from now.
    """
    order = _joint_order(list(message.joint_names), joint_names)
    if not message.points:
        raise ValueError("the trajectory has no points")
    for index, point in enumerate(message.points):
        if len(point.positions) != len(joint_names):
            raise ValueError(
                f"point {index} has {len(point.positions)} positions, "
                f"expected {len(joint_names)}, one for each joint"
            )
    positions = np.array([point.positions for point in message.points], dtype=np.float64)[:, order]
    if not np.isfinite(positions).all():
        index, joint = np.argwhere(~np.isfinite(positions))[0]
        raise ValueError(
            f"point {index} has {positions[index, joint]} for {joint_names[joint]!r}, "
            "expected a finite position in rad"
        )
    times_ns = _times_ns(message)
    stamp_ns = Time.from_msg(message.header.stamp).nanoseconds
    _check_schedule(stamp_ns, times_ns[-1], now_ns)
    return ArmCommand(stamp_ns, stamp_ns or now_ns, np.array(times_ns) * 1e-9, positions)


def _joint_order(given: list[str], expected: tuple[str, ...]) -> list[int]:
    if sorted(given) != sorted(expected):
        raise ValueError(
            f"joint names are {', '.join(given) or 'none'}, expected each once of "
            f"{', '.join(expected)}, in any order"
        )
    return [given.index(name) for name in expected]


def _times_ns(message: JointTrajectory) -> list[int]:
    times = [
        point.time_from_start.sec * 1_000_000_000 + point.time_from_start.nanosec
        for point in message.points
    ]
    if times[0] < 0:
        raise ValueError(f"time_from_start of point 0 is {times[0] * 1e-9} s, expected 0 or more")
    for index, (before, after) in enumerate(itertools.pairwise(times), start=1):
        if after <= before:
            raise ValueError(
                f"time_from_start must increase strictly, but point {index} is at "
                f"{after * 1e-9} s after {before * 1e-9} s"
            )
    return times


def _check_schedule(stamp_ns: int, last_ns: int, now_ns: int) -> None:
    if stamp_ns == 0:
        return
    if stamp_ns + last_ns < now_ns:
        raise ValueError(
            f"the trajectory ended {(now_ns - stamp_ns - last_ns) * 1e-9:.3f} s before now "
            f"({now_ns * 1e-9:.3f} s of sim time)"
        )
    if stamp_ns > now_ns + MAX_LEAD_NS:
        raise ValueError(
            f"the trajectory starts {(stamp_ns - now_ns) * 1e-9:.3f} s from now, expected at most "
            f"{MAX_LEAD_NS * 1e-9:.0f} s: does its sender use sim time (use_sim_time)?"
        )
