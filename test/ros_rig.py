# SPDX-License-Identifier: Apache-2.0
"""Nodes in processes of their own and a planner's view of them: for tests over real DDS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header, String
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.client import CapsuleClient, ServiceCaller, spinning
from flashrt_ros.demo.processes import Processes
from flashrt_ros.demo.simulator import SimClient
from flashrt_ros.msg import ActionChunk, Boundary
from flashrt_ros.ros.conversions import commit_id, joint_positions, to_ns, to_time

POLICY, SIM = "policy_node", "sim_arm_node"
RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
PATIENCE = 60.0  # s until a test gives up waiting; no test measures time by it
JOINTS = ("waist", "shoulder", "elbow", "wrist_pitch", "wrist_roll")


class Inbox:
    """Messages of one topic, in order of arrival."""

    def __init__(self, node: Node, kind: Any, topic: str, profile: QoSProfile = RELIABLE) -> None:
        self._changed = threading.Condition()
        self._messages: list[Any] = []
        node.create_subscription(kind, topic, self._receive, profile)

    def _receive(self, message: Any) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def all(self) -> list[Any]:
        with self._changed:
            return list(self._messages)

    def clear(self) -> None:
        with self._changed:
            self._messages.clear()

    def wait(self, condition: Callable[[list[Any]], bool], what: str) -> list[Any]:
        with self._changed:
            fulfilled = self._changed.wait_for(lambda: condition(self._messages), PATIENCE)
            assert fulfilled, f"{what} did not come; got {len(self._messages)} messages"
            return list(self._messages)

    def has_count(self, count: int, within: float) -> bool:
        """Whether that many have come, waiting for them at most `within` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._messages) >= count, within)

    def wait_count(self, count: int, what: str) -> list[Any]:
        return self.wait(lambda messages: len(messages) >= count, what)


class Rig:
    """One namespace with a policy node, perhaps a simulator, and the test as the third party."""

    def __init__(self, namespace: str, log_dir: Path) -> None:
        self.namespace = namespace
        self.processes = Processes(log_dir)
        self._spinning = spinning("test", namespace=namespace)
        self.node = self._spinning.__enter__()
        self.caller = ServiceCaller(self.node, timeout=PATIENCE)
        self.policy = CapsuleClient(self.node, POLICY, timeout=PATIENCE)
        self.sim = SimClient(self.node, SIM, timeout=PATIENCE)
        self.chunks = Inbox(self.node, ActionChunk, f"{POLICY}/action_chunk")
        self.commands = Inbox(self.node, JointTrajectory, "joint_trajectory")
        self.boundaries = Inbox(self.node, Boundary, f"{POLICY}/boundary")
        self.diagnostics = Inbox(self.node, DiagnosticArray, "/diagnostics", QoSProfile(depth=50))

    def close(self) -> dict[str, int]:
        statuses = self.processes.stop(patience=30.0)
        self._spinning.__exit__(None, None, None)
        return statuses

    def _arguments(self, parameters: Sequence[str]) -> list[str]:
        arguments = ["--ros-args", "-r", f"__ns:={self.namespace}"]
        arguments += ["-r", f"/clock:={self.namespace}/clock"]
        for parameter in parameters:
            arguments += ["-p", parameter]
        return arguments

    def start_policy(self, *parameters: str) -> None:
        """A node that ticks on every observation: tests send them as fast as they are answered."""
        arguments = self._arguments(("tick_period:=0.0", *parameters))
        self.processes.start(POLICY, "flashrt_ros.ros.policy_node", arguments)

    def start_language(self, *parameters: str) -> None:
        self.processes.start(
            "language_node", "flashrt_ros.ros.language_node", self._arguments(parameters)
        )

    def start_sim(self, *parameters: str) -> None:
        self.processes.start(SIM, "flashrt_ros.sim.node", self._arguments(parameters))

    def settle(self) -> None:
        """Every message that the policy node sent before this call has arrived after it.

        The answer of a verb is sent after them, but by another DDS writer, so wait a little too.
        """
        self.policy.list()
        time.sleep(0.2)


@contextmanager
def rig(namespace: str, log_dir: Path) -> Iterator[Rig]:
    made = Rig(namespace, log_dir)
    try:
        yield made
    finally:
        made.close()


class FakeCamera:
    """A robot's sensors, as far as the policy sees them: an image and a joint state."""

    def __init__(self, rig: Rig, prefix: str = "") -> None:
        self._rig = rig
        node = rig.node
        self._images = node.create_publisher(Image, f"{prefix}camera/image_raw", RELIABLE)
        self._joints = node.create_publisher(JointState, f"{prefix}joint_states", RELIABLE)
        self._instructions = node.create_publisher(String, f"{prefix}instruction", RELIABLE)

    def stamp(self) -> Time:
        return to_time(time.time_ns())

    def image(self, **changes: Any) -> Image:
        message = Image(
            header=Header(stamp=self.stamp()),
            height=64,
            width=64,
            encoding="rgb8",
            step=192,
            data=bytes(64 * 192),
        )
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    def joint_state(self, **changes: Any) -> JointState:
        message = JointState(
            header=Header(stamp=self.stamp()), name=list(JOINTS), position=[0.1] * len(JOINTS)
        )
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    def publish(self, message: Image | JointState) -> None:
        """Publish one message alone."""
        (self._images if isinstance(message, Image) else self._joints).publish(message)

    def show(self, joints: JointState | None = None) -> None:
        """A joint state, then an image: what makes a policy tick.

        Two topics have no common order, and an image that overtakes its joint state is paired
        with an older one, or with none: so the image waits a little.
        """
        self.publish(joints if joints is not None else self.joint_state())
        time.sleep(0.05)
        self.publish(self.image())

    def say(self, text: str) -> None:
        self._instructions.publish(String(data=text))

    def wait_for_subscribers(self) -> None:
        wait_for_readers(self._images, self._joints, self._instructions)


def wait_for_readers(*publishers: Publisher) -> None:
    """Wait until each publisher knows of a subscription: what it sends before is lost."""
    deadline = time.monotonic() + PATIENCE
    while not all(publisher.get_subscription_count() for publisher in publishers):
        assert time.monotonic() < deadline, "the policy node does not subscribe"
        time.sleep(0.02)


def moves(commands: list[JointTrajectory]) -> list[JointTrajectory]:
    """The commands that are chunks, not holds."""
    return [command for command in commands if len(command.points) > 1]


def bits(chunk: ActionChunk) -> bytes:
    """The joint targets of a chunk, byte for byte."""
    return np.array([point.positions for point in chunk.points]).tobytes()


__all__ = [
    "JOINTS",
    "POLICY",
    "SIM",
    "FakeCamera",
    "Inbox",
    "Rig",
    "bits",
    "commit_id",
    "joint_positions",
    "moves",
    "rig",
    "to_ns",
]
