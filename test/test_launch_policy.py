# SPDX-License-Identifier: Apache-2.0
"""The launch files, run as `ros2 launch` runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REASON = "launch is not on PyPI; this runs on a ROS installation"
launch_pytest = pytest.importorskip("launch_pytest", reason=REASON)

import rclpy  # noqa: E402
from launch import LaunchDescription  # noqa: E402
from launch.actions import IncludeLaunchDescription  # noqa: E402
from launch.launch_description_sources import PythonLaunchDescriptionSource  # noqa: E402
from launch_pytest.actions import ReadyToTest  # noqa: E402
from lifecycle_msgs.msg import State  # noqa: E402
from lifecycle_msgs.srv import GetState  # noqa: E402
from rcl_interfaces.srv import GetParameters  # noqa: E402
from rclpy.node import Node  # noqa: E402

LAUNCH = Path(__file__).resolve().parents[1] / "launch"
PATIENCE = 120.0  # s until a test gives up waiting


def described(file: str, **arguments: str) -> LaunchDescription:
    source = PythonLaunchDescriptionSource(os.fspath(LAUNCH / file))
    return LaunchDescription(
        [
            IncludeLaunchDescription(source, launch_arguments=arguments.items()),
            ReadyToTest(),
        ]
    )


@launch_pytest.fixture
def started() -> LaunchDescription:
    return described("policy.launch.py", namespace="started", use_sim_time="true")


@launch_pytest.fixture
def waiting() -> LaunchDescription:
    return described(
        "policy.launch.py",
        namespace="waiting",
        autostart="false",
        model="elsewhere",
        lockstep="true",
        contract="topics.yaml",
        robot_description_topic="robot_description",
    )


@launch_pytest.fixture
def with_sim() -> LaunchDescription:
    return described("demo_sim.launch.py", namespace="with_sim", seed="12", mode="lockstep")


@pytest.fixture
def node() -> Iterator[Node]:
    rclpy.init()
    node = rclpy.create_node("observer")
    yield node
    node.destroy_node()
    rclpy.try_shutdown()


def call(node: Node, kind: Any, name: str, **fields: Any) -> Any:
    client = node.create_client(kind, name)
    assert client.wait_for_service(PATIENCE), f"no service {name}"
    future = client.call_async(kind.Request(**fields))
    rclpy.spin_until_future_complete(node, future, timeout_sec=PATIENCE)
    assert future.done(), f"no answer of {name}"
    return future.result()


def lifecycle_state(node: Node, namespace: str) -> int:
    answer = call(node, GetState, f"/{namespace}/policy_node/get_state")
    return int(answer.current_state.id)


def wait_until_active(node: Node, namespace: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while lifecycle_state(node, namespace) != State.PRIMARY_STATE_ACTIVE:
        assert time.monotonic() < deadline, "the policy did not become active"
        time.sleep(0.5)


def parameters(node: Node, name: str, *names: str) -> list[Any]:
    values = call(node, GetParameters, f"{name}/get_parameters", names=list(names)).values
    return [
        {1: value.bool_value, 2: value.integer_value, 4: value.string_value}[value.type]
        for value in values
    ]


@pytest.mark.launch(fixture=started)
def test_the_policy_becomes_active_by_itself(node: Node) -> None:
    wait_until_active(node, "started")
    assert parameters(node, "/started/policy_node", "model", "use_sim_time") == ["cued_reach", True]


@pytest.mark.launch(fixture=waiting)
def test_without_autostart_it_waits_unconfigured_with_the_overrides(node: Node) -> None:
    assert lifecycle_state(node, "waiting") == State.PRIMARY_STATE_UNCONFIGURED
    values = parameters(node, "/waiting/policy_node", "model", "lockstep", "use_sim_time")
    assert values == ["elsewhere", True, False]
    names = ("contract", "limits", "robot_description_topic")
    values = parameters(node, "/waiting/policy_node", *names)
    assert values == ["topics.yaml", "", "robot_description"]


@pytest.mark.launch(fixture=with_sim)
def test_sim_and_policy_start_together_in_one_mode(node: Node) -> None:
    assert parameters(node, "/with_sim/sim_arm_node", "mode", "seed") == ["lockstep", 12]
    assert parameters(node, "/with_sim/policy_node", "lockstep", "use_sim_time") == [True, True]
    wait_until_active(node, "with_sim")
