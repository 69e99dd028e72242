# SPDX-License-Identifier: Apache-2.0
"""policy_node on simulated time: before the clock, and when it jumps forward and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from ros_rig import PATIENCE, POLICY, RELIABLE, FakeCamera, Rig, rig, wait_for_readers
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Header

from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.msg import Boundary, RuntimeStatus
from flashrt_ros.ros.conversions import to_time

S = 1_000_000_000


class SimulatedRobot:
    """Sensors and a clock that stand still until the test says otherwise."""

    def __init__(self, made: Rig) -> None:
        self.rig = made
        self.camera = FakeCamera(made)
        self.clock = made.node.create_publisher(Clock, "clock", RELIABLE)

    def set_clock(self, seconds: float) -> None:
        self.clock.publish(Clock(clock=to_time(round(seconds * S))))

    def see(self, seconds: float) -> None:
        """A joint state and an image of that time."""
        header = Header(stamp=to_time(round(seconds * S)))
        self.camera.publish(self.camera.joint_state(header=header))
        time.sleep(0.05)
        self.camera.publish(self.camera.image(header=header))

    def tick(self, seconds: float) -> Any:
        """Observations from that time on, a ms apart, until a chunk answers one."""
        count = len(self.rig.chunks.all())
        deadline = time.monotonic() + PATIENCE
        while len(self.rig.chunks.all()) == count:
            assert time.monotonic() < deadline, self.rig.policy.status
            self.set_clock(seconds)
            self.see(seconds)
            self.rig.chunks.has_count(count + 1, within=2.0)
            seconds += 0.001
        return self.rig.chunks.all()[-1]

    def wait_for_hold(self, reason: str) -> None:
        self.rig.policy.wait_for_status(
            lambda status: status.state == RuntimeStatus.HOLDING and reason in status.reason
        )


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedRobot]:
    folder: Path = tmp_path_factory.mktemp("clock")
    with rig("/simulated", folder) as made:
        made.start_policy("use_sim_time:=true", "observation_timeout:=0.5")
        one = SimulatedRobot(made)
        bring_up(made.caller, POLICY)
        one.camera.wait_for_subscribers()
        wait_for_readers(one.clock)
        yield one


def test_nothing_is_taken_before_the_clock_and_each_jump_is_dealt_with(
    robot: SimulatedRobot,
) -> None:
    made = robot.rig
    for moment in (10.0, 10.1):
        robot.see(moment)
    made.settle()
    assert made.chunks.all() == []
    assert made.commands.all() == []

    first = robot.tick(100.0)
    assert first.header.stamp.sec == 100

    robot.set_clock(200.0)  # forward: what was seen is old
    robot.wait_for_hold("no complete observation for ")
    assert robot.tick(200.0).epoch == first.epoch
    made.policy.wait_for_status(lambda status: status.state == RuntimeStatus.RUNNING)

    robot.see(300.0)  # by a clock that is not ours
    robot.wait_for_hold("s in the future (300.000 against 200.")
    robot.tick(200.1)
    made.policy.wait_for_status(lambda status: status.state == RuntimeStatus.RUNNING)

    robot.set_clock(50.0)  # back: a bag in a loop
    made.boundaries.wait(
        lambda events: any(event.event == Boundary.CLOCK_JUMP for event in events), "the jump"
    )
    again = robot.tick(50.0)
    assert again.epoch > first.epoch
    assert again.header.stamp.sec == 50
