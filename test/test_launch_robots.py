# SPDX-License-Identifier: Apache-2.0
"""Launch files for several robots and for a language model, run as `ros2 launch` runs them."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REASON = "launch is not on PyPI; this runs on a ROS installation"
launch_pytest = pytest.importorskip("launch_pytest", reason=REASON)

import rclpy  # noqa: E402
from launch import LaunchContext, LaunchDescription  # noqa: E402
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription  # noqa: E402
from launch.launch_description_sources import PythonLaunchDescriptionSource  # noqa: E402
from launch.utilities import perform_substitutions  # noqa: E402
from launch_pytest.actions import ReadyToTest  # noqa: E402
from lifecycle_msgs.msg import State  # noqa: E402
from lifecycle_msgs.srv import GetState  # noqa: E402
from rcl_interfaces.srv import GetParameters  # noqa: E402
from rclpy.node import Node  # noqa: E402

from flashrt_ros.ros import launching  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = ROOT / "launch"
PATIENCE = 180.0  # s until a test gives up waiting


def described(file: str, **arguments: str) -> LaunchDescription:
    source = PythonLaunchDescriptionSource(os.fspath(LAUNCH / file))
    return LaunchDescription(
        [
            IncludeLaunchDescription(source, launch_arguments=arguments.items()),
            ReadyToTest(),
        ]
    )


@launch_pytest.fixture
def processes() -> LaunchDescription:
    file = os.fspath(ROOT / "config" / "robots_example.yaml")
    return described("multi_robot.launch.py", robots_file=file, namespace="site")


@launch_pytest.fixture
def container() -> LaunchDescription:
    file = os.fspath(ROOT / "config" / "robots_example.yaml")
    return described("multi_robot.launch.py", robots_file=file, robots="spare", container="true")


@launch_pytest.fixture
def language() -> LaunchDescription:
    return described("language.launch.py", namespace="talk", autostart="false")


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


def wait_until_active(node: Node, name: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while call(node, GetState, f"{name}/get_state").current_state.id != State.PRIMARY_STATE_ACTIVE:
        assert time.monotonic() < deadline, f"{name} did not become active"
        time.sleep(0.5)


def seed_and_tolerance(node: Node, name: str) -> tuple[int, float]:
    names = ["seed", "continue_tolerance"]
    seed, tolerance = call(node, GetParameters, f"{name}/get_parameters", names=names).values
    return seed.integer_value, tolerance.double_value


@pytest.mark.launch(fixture=processes)
def test_each_robot_has_a_process_a_namespace_and_its_own_parameters(node: Node) -> None:
    left, right = (f"/site/{robot}/policy_node" for robot in ("left", "right"))
    wait_until_active(node, left)
    wait_until_active(node, right)
    assert seed_and_tolerance(node, left) == (1, 0.05)
    assert seed_and_tolerance(node, right) == (2, 0.1)


@pytest.mark.launch(fixture=container)
def test_a_container_has_all_of_them_with_the_same_names_and_parameters(node: Node) -> None:
    for robot in ("left", "right", "spare"):
        wait_until_active(node, f"/{robot}/policy_node")
    assert seed_and_tolerance(node, "/left/policy_node") == (1, 0.05)
    assert seed_and_tolerance(node, "/right/policy_node") == (2, 0.1)
    assert seed_and_tolerance(node, "/spare/policy_node") == (0, 0.05)


@pytest.mark.launch(fixture=language)
def test_a_language_node_has_the_shipped_model_where_it_is_installed(node: Node) -> None:
    names = ["model"]
    name = "/talk/language_node/get_parameters"
    (model,) = call(node, GetParameters, name, names=names).values
    assert model.string_value == launching.smollm2()


def module(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.partition(".")[0], LAUNCH / file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("file", sorted(path.name for path in LAUNCH.glob("*.launch.py")))
def test_every_argument_is_explained_and_has_a_default(file: str) -> None:
    context = LaunchContext()
    arguments = [
        action
        for action in module(file).generate_launch_description().entities
        if isinstance(action, DeclareLaunchArgument)
    ]
    assert {"params_file", "namespace", "autostart", "log_level"} <= {a.name for a in arguments}
    for argument in arguments:
        assert argument.description != "no description given", argument.name
        assert argument.default_value is not None, argument.name
        default = perform_substitutions(context, argument.default_value)
        assert argument.choices is None or default in argument.choices, argument.name


def test_robots_come_from_names_and_from_a_file(tmp_path: Path) -> None:
    robots_of = module("multi_robot.launch.py").robots_of
    assert robots_of("left, right", "") == {"left": {}, "right": {}}
    assert robots_of("[left]", "") == {"left": {}}
    file = tmp_path / "robots.yaml"
    file.write_text("left: {seed: 3}\nright:\n")
    assert robots_of("spare", str(file)) == {"spare": {}, "left": {"seed": 3}, "right": {}}
    with pytest.raises(ValueError, match="no robot is named"):
        robots_of("", "")
    file.write_text("[left, right]")
    with pytest.raises(ValueError, match="expected a mapping of robots"):
        robots_of("", str(file))
