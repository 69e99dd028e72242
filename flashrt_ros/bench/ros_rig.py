# SPDX-License-Identifier: Apache-2.0
"""This process's part of `flashrt bench ros`: sensors, a controller's ear, a planner."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, Header
from trajectory_msgs.msg import JointTrajectory

from ..client import CapsuleClient, ServiceCaller, spinning
from ..models import load_policy
from ..msg import Boundary
from ..ros.conversions import to_time
from .ros_peer import NAME as PEER

POLICY = "policy_node"
PATIENCE = 60.0  # s until something is taken for broken
STREAM_PERIOD = 0.01  # s between observations, faster than the policy ticks on a CPU
_RELIABLE = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)


class Rig:
    """A node in a namespace of its own that publishes observations and receives commands."""

    def __init__(self) -> None:
        self._namespace = f"/bench_{secrets.token_hex(4)}"
        self._spinning = spinning("bench", namespace=self._namespace)
        node = self._spinning.__enter__()
        self.caller = ServiceCaller(node, timeout=PATIENCE)
        self.policy = CapsuleClient(node, POLICY, timeout=PATIENCE)
        self.boundaries = 0
        self._changed = threading.Condition()
        self._answered: set[tuple[int, int]] = set()
        self._echoed: set[tuple[int, int]] = set()
        self._moved = 0.0
        self._sent: dict[str, list[int]] = {"command": [], "beat": []}
        self._spec = load_policy("cued_reach").spec
        self._images = node.create_publisher(Image, "camera/image_raw", _RELIABLE)
        self._echo_images = node.create_publisher(Image, f"{PEER}/image", _RELIABLE)
        self._joints = node.create_publisher(JointState, "joint_states", _RELIABLE)
        for kind, topic, callback in (
            (JointTrajectory, "joint_trajectory", self._on_command),
            (Header, f"{PEER}/echo", self._on_echo),
            (Boundary, f"{POLICY}/boundary", self._on_boundary),
            (Float64MultiArray, "joint_commands", self._stamped("command")),
            (Float64MultiArray, f"{PEER}/beat", self._stamped("beat")),
        ):
            node.create_subscription(kind, topic, callback, _RELIABLE)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._spinning.__exit__(None, None, None)

    def arguments(self, parameters: Sequence[str]) -> list[str]:
        """Arguments of a node in the same namespace."""
        arguments = ["--ros-args", "-r", f"__ns:={self._namespace}"]
        for parameter in parameters:
            arguments += ["-p", parameter]
        return arguments

    def wait_until_connected(self) -> None:
        """Everything that this process publishes has its subscriber."""
        publishers = (self._images, self._echo_images, self._joints)
        self._until(lambda: all(p.get_subscription_count() for p in publishers), "a connection")

    # -- what it publishes

    def observe(self) -> float:
        """Seconds from an image being published to its command's arrival."""
        return self._answer_time(self._images, self._answered, "a command")

    def echo(self) -> float:
        """The same with the peer, which answers with the image's header."""
        return self._answer_time(self._echo_images, self._echoed, "an echo")

    def _answer_time(self, images: Any, answered: set[tuple[int, int]], what: str) -> float:
        """An image that overtakes its joint state, or is lost, is sent again and not counted."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            start = time.perf_counter()
            stamp = self._publish(images)
            with self._changed:
                if self._changed.wait_for(partial(answered.__contains__, stamp), 1.0):
                    return time.perf_counter() - start
        raise TimeoutError(f"{what} did not come within {PATIENCE} s")

    def tick(self, count: int) -> None:
        """Observations until the policy has committed that many more boundaries."""
        goal = self.boundaries + count
        deadline = time.monotonic() + PATIENCE
        while self.boundaries < goal:
            self._publish(self._images)
            time.sleep(0.05)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.boundaries} boundaries, expected {goal}")

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Observations all the time: the policy is nearly always in a tick."""
        stop = threading.Event()

        def stream() -> None:
            while not stop.wait(STREAM_PERIOD):
                self._publish(self._images)

        thread = threading.Thread(target=stream, name="stream", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _publish(self, images: Any) -> tuple[int, int]:
        stamp = to_time(time.time_ns())
        names = list(self._spec.joint_names)
        header = Header(stamp=stamp)
        self._joints.publish(JointState(header=header, name=names, position=[0.1] * len(names)))
        height, width, channels = self._spec.cameras["camera"]
        images.publish(
            Image(
                header=header,
                height=height,
                width=width,
                encoding="rgb8",
                step=channels * width,
                data=bytes(channels * width * height),
            )
        )
        return stamp.sec, stamp.nanosec

    # -- what it receives

    def tick_under_way(self) -> None:
        """Wait for a boundary: while observations stream, the next tick begins at once."""
        before = self.boundaries
        self._until(lambda: self.boundaries > before, "a boundary")

    def last_move(self) -> float:
        """When the last command that moves arrived, by `time.perf_counter`."""
        return self._moved

    def intervals(self, seconds: float) -> tuple[list[float], list[float]]:
        """Time between two commands, and between two beats of the peer, as their senders stamp."""
        for stamps in self._sent.values():
            stamps.clear()
        time.sleep(seconds)
        command, beat = (
            [(b - a) * 1e-9 for a, b in pairwise(stamps)]
            for stamps in (list(self._sent["command"]), list(self._sent["beat"]))
        )
        return command, beat

    def _on_command(self, message: JointTrajectory) -> None:
        with self._changed:
            self._answered.add((message.header.stamp.sec, message.header.stamp.nanosec))
            if len(message.points) > 1:
                self._moved = time.perf_counter()
            self._changed.notify_all()

    def _on_echo(self, message: Header) -> None:
        with self._changed:
            self._echoed.add((message.stamp.sec, message.stamp.nanosec))
            self._changed.notify_all()

    def _on_boundary(self, message: Boundary) -> None:
        if message.event == Boundary.COMMIT:
            with self._changed:
                self.boundaries += 1
                self._changed.notify_all()

    def _stamped(self, name: str) -> Any:
        sent = self._sent[name]

        def receive(message: Float64MultiArray, info: Any) -> None:
            sent.append(int(info["source_timestamp"]))

        return receive

    def _until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while not condition():
                self._changed.wait(0.2)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{what} did not come within {PATIENCE} s")
