# SPDX-License-Identifier: Apache-2.0
"""A node in the test's own process, spun by a thread: for what only its inside can tell."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import rclpy
from rclpy._rclpy_pybind11 import InvalidHandle
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header

from flashrt_ros.ros.conversions import to_time
from flashrt_ros.ros.policy_node import PolicyNode

N = TypeVar("N", bound=Node)
PATIENCE = 60.0
OK = TransitionCallbackReturn.SUCCESS
_numbers = itertools.count()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


@contextmanager
def hosted(
    make: Callable[..., N], *parameters: str, arguments: Sequence[str] = ()
) -> Iterator[tuple[N, Node]]:
    """A node in a namespace of its own, and another node beside it; a thread spins both."""
    context = rclpy.Context()
    rclpy.init(context=context)
    namespace = f"/hosted{next(_numbers)}"
    given = ["--ros-args", *arguments]
    for parameter in parameters:
        given += ["-p", parameter]
    node = make(context=context, namespace=namespace, cli_args=given)
    other = Node("test", context=context, namespace=namespace)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    executor.add_node(other)
    ending = threading.Event()

    def spin() -> None:
        while not ending.is_set():
            try:
                executor.spin_once(timeout_sec=0.1)
            except InvalidHandle:
                pass  # the test's thread destroyed what this one was about to wait for

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield node, other
    finally:
        ending.set()
        thread.join(PATIENCE)
        executor.shutdown()
        stop = getattr(node, "stop", None)
        if stop is not None:
            stop()
        node.destroy_node()
        other.destroy_node()
        rclpy.shutdown(context=context)


class Sensors:
    """Publishes what a policy sees, beside it."""

    def __init__(self, node: Node, policy: PolicyNode) -> None:
        self._policy = policy
        self._node = node
        self._images: dict[str, Any] = {}
        self._joints = node.create_publisher(JointState, "joint_states", 10)

    def show(self) -> None:
        """A joint state and an image of each camera, of now."""
        model = self._policy._parts.model
        assert model is not None
        stamp = Header(stamp=to_time(time.time_ns()))
        names = list(model.spec.joint_names)
        self._joints.publish(JointState(header=stamp, name=names, position=[0.1] * len(names)))
        time.sleep(0.02)  # two topics have no common order
        for camera, (height, width, _) in model.spec.cameras.items():
            if camera not in self._images:
                topic = f"{camera}/image_raw"
                self._images[camera] = self._node.create_publisher(Image, topic, 10)
            self._images[camera].publish(
                Image(
                    header=stamp,
                    height=height,
                    width=width,
                    encoding="rgb8",
                    step=3 * width,
                    data=bytes(3 * width * height),
                )
            )

    def tick(self, count: int = 1) -> None:
        """Show until the policy has ticked that often again."""

        def ticks() -> int:
            engine = self._policy._parts.engine
            assert engine is not None
            return engine.status.ticks

        goal = ticks() + count
        deadline = time.monotonic() + PATIENCE
        while ticks() < goal:
            assert time.monotonic() < deadline, f"{ticks()} ticks, expected {goal}"
            self.show()
            time.sleep(0.02)
