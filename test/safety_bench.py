# SPDX-License-Identifier: Apache-2.0
"""A policy node with a toy policy in the test's process, and a robot around it, over DDS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros_host import PATIENCE, hosted, until
from ros_rig import Inbox
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Header
from toy_policy import JOINTS, ToyPolicy
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.client import CapsuleClient
from flashrt_ros.msg import ActionChunk, Boundary, RuntimeStatus
from flashrt_ros.policies import PolicyEngine
from flashrt_ros.ros import policy_node
from flashrt_ros.ros.conversions import to_time
from flashrt_ros.ros.policy_node import PolicyNode

LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)


class SafetyBench:
    """The node, its toy policy, a client, what the node sent, and sensors that a test moves."""

    def __init__(self, node: PolicyNode, other: Node, policy: ToyPolicy) -> None:
        self.node, self.other, self.policy = node, other, policy
        self.client = CapsuleClient(other, "policy_node", timeout=PATIENCE)
        self.commands = Inbox(other, JointTrajectory, "joint_trajectory")
        self.chunks = Inbox(other, ActionChunk, "policy_node/action_chunk")
        self.boundaries = Inbox(other, Boundary, "policy_node/boundary")
        self.diagnostics = Inbox(other, DiagnosticArray, "/diagnostics", QoSProfile(depth=50))
        self.statuses = Inbox(other, RuntimeStatus, "policy_node/status", LATCHED)
        self.positions = np.array([0.1, 0.2])
        self._images = other.create_publisher(Image, "camera/image_raw", 10)
        self._joints = other.create_publisher(JointState, "joint_states", 10)

    @property
    def engine(self) -> PolicyEngine:
        engine = self.node._parts.engine
        assert engine is not None
        return engine

    # -- sensors ---------------------------------------------------------------------------

    def stamp(self) -> Header:
        return Header(stamp=to_time(self.node._now_ns() or time.time_ns()))

    def show_joints(self) -> None:
        self._joints.publish(
            JointState(header=self.stamp(), name=list(JOINTS), position=self.positions.tolist())
        )

    def show_image(self, encoding: str = "rgb8") -> None:
        self._images.publish(
            Image(
                header=self.stamp(), height=4, width=4, encoding=encoding, step=12, data=bytes(48)
            )
        )

    def show(self) -> None:
        self.show_joints()
        time.sleep(0.02)  # two topics have no common order
        self.show_image()

    def show_at(self, stamp_ns: int) -> None:
        """Both with one stamp, as a simulator in lockstep sends them."""
        header = Header(stamp=to_time(stamp_ns))
        self._joints.publish(
            JointState(header=header, name=list(JOINTS), position=self.positions.tolist())
        )
        self._images.publish(
            Image(header=header, height=4, width=4, encoding="rgb8", step=12, data=bytes(48))
        )

    def show_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen"
            self.show()
            time.sleep(0.03)

    def tick(self) -> None:
        """Observations until one more tick was committed."""
        goal = self.engine.status.ticks + 1
        self.show_until(lambda: self.engine.status.ticks >= goal, "a tick")

    # -- what came out ---------------------------------------------------------------------

    def move(self) -> JointTrajectory:
        """Observations until the joints are told to move again; that command."""
        before = len(self.moves())
        self.show_until(lambda: len(self.moves()) > before, "a motion")
        return self.moves()[-1]

    def moves(self) -> list[JointTrajectory]:
        return [each for each in self.commands.all() if len(each.points) > 1]

    def held(self, reason: str) -> RuntimeStatus:
        """The status, once the arm is held for this reason."""
        return self.client.wait_for_status(
            lambda status: status.state == RuntimeStatus.HOLDING and reason in status.reason,
            PATIENCE,
        )

    def running(self) -> RuntimeStatus:
        return self.client.wait_for_status(
            lambda status: status.state == RuntimeStatus.RUNNING, PATIENCE
        )

    def event(self, kind: int, reason: str) -> Boundary:
        """The boundary event of this kind whose detail names the reason."""
        events = self.boundaries.wait(
            lambda sent: any(each.event == kind and reason in each.detail for each in sent),
            f"event {kind} with '{reason}'",
        )
        return next(each for each in events if each.event == kind and reason in each.detail)

    def settle(self) -> None:
        """Everything that the node had sent before this call has arrived."""
        self.client.list()
        time.sleep(0.2)


@contextmanager
def bench(
    *parameters: str, arguments: tuple[str, ...] = (), active: bool = True
) -> Iterator[SafetyBench]:
    """An active node, or one that is configured; `parameters` as `name:=value`.

    Nothing is ramped unless asked for.
    """
    policy = ToyPolicy()
    given = (
        "observation_timeout:=0.0",
        "tick_period:=0.0",
        "ramp_duration:=0.0",
        "evaluate:=false",
        *parameters,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_node, "load_policy", lambda name, device: policy)
        with hosted(PolicyNode, *given, arguments=arguments) as (node, other):
            made = SafetyBench(node, other, policy)
            try:
                on_executor(node, node.trigger_configure)
                if active:
                    on_executor(node, node.trigger_activate)
                yield made
            finally:
                policy.gate.set()
                made.client.close()


def on_executor(
    node: PolicyNode,
    transition: Callable[[], Any],
    expected: TransitionCallbackReturn = TransitionCallbackReturn.SUCCESS,
) -> None:
    """Run a transition on the thread that spins the node, as a service call would."""
    done = threading.Event()
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(transition())
        finally:
            done.set()

    assert node.executor is not None
    node.executor.create_task(run)
    assert done.wait(PATIENCE)
    assert results == [expected], node._last_error


class StopButton:
    """An emergency stop in a node of its own, so that it can go away."""

    def __init__(self, made: SafetyBench, profile: QoSProfile = LATCHED) -> None:
        self._node = Node(
            "stop_button", context=made.other.context, namespace=made.other.get_namespace()
        )
        self._publisher = self._node.create_publisher(Bool, "emergency_stop", profile)

    def press(self) -> None:
        self._publisher.publish(Bool(data=True))

    def release(self) -> None:
        self._publisher.publish(Bool(data=False))

    def wait_for_listeners(self) -> None:
        until(lambda: self._publisher.get_subscription_count() >= 2, "the node listens")

    def vanish(self) -> None:
        self._node.destroy_node()
