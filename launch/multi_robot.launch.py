# SPDX-License-Identifier: Apache-2.0
"""Several robots in one domain, each with a policy node in a namespace of its own.

    ros2 launch flashrt_ros multi_robot.launch.py robots:="left, right" params_file:=arms.yaml
    ros2 launch flashrt_ros multi_robot.launch.py robots_file:=config/robots_example.yaml

The topics of robot `left` are `/left/joint_states`, `/left/joint_trajectory` and so on, its verbs
`/left/policy_node/capsule/snapshot` and so on. A `robots_file` gives each robot's own parameters.
`model`, `contract`, `limits` and so on are for every robot that has none of its own there.
container:=true runs all of them in one process, see docs/operation.md for what that costs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from launch import LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch_ros.actions import Node

from flashrt_ros.ros.launching import (
    PACKAGE,
    PATIENCE,
    POLICY_OVERRIDES,
    given,
    is_true,
    managed_node,
    overrides,
    policy_arguments,
    process_arguments,
    ros_arguments,
    shared,
    switch,
)


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "robots",
                default_value="",
                description="Names of the robots, separated by commas; each is a namespace.",
            ),
            DeclareLaunchArgument(
                "robots_file",
                default_value="",
                description="YAML: a mapping of each robot's name to its parameters.",
            ),
            DeclareLaunchArgument(
                "params_file",
                default_value=shared("config", "policy_node.yaml"),
                description="Parameters of every policy_node; those of robots_file go before.",
            ),
            DeclareLaunchArgument(
                "namespace", default_value="", description="Namespace around all robots."
            ),
            *policy_arguments("every robot"),
            switch("use_sim_time", False, "Take the time from /clock."),
            switch("container", False, "All policies in one process."),
            *process_arguments(),
            OpaqueFunction(function=start_robots),
        ]
    )


def robots_of(names: str, file: str) -> dict[str, dict[str, Any]]:
    """The parameters of each robot, by its name.

    Raises:
        ValueError: no robot is named, or the file is no mapping of mappings.
    """
    robots: dict[str, dict[str, Any]] = {
        name.strip(): {} for name in names.strip("[] ").split(",") if name.strip()
    }
    if file:
        content = yaml.safe_load(Path(file).read_text())
        if not isinstance(content, dict) or not all(
            isinstance(own, dict | None) for own in content.values()
        ):
            raise ValueError(f"{file}: expected a mapping of robots to their parameters")
        robots |= {str(name): own or {} for name, own in content.items()}
    if not robots:
        raise ValueError('no robot is named: give robots:="left, right" or robots_file:=FILE')
    return robots


def start_robots(context: LaunchContext) -> list[Action]:
    """One process each, or all in a container."""
    robots = robots_of(given(context, "robots"), given(context, "robots_file"))
    namespace = given(context, "namespace").strip("/")
    wanted = overrides(context, use_sim_time=bool, **POLICY_OVERRIDES)
    common = [given(context, "params_file"), wanted]
    if is_true(context, "container"):
        return [_container(context, robots, namespace, common)]
    return [
        action
        for robot, own in robots.items()
        for action in managed_node(
            context,
            "policy_node",
            [*common, own] if own else common,
            name="policy_node",
            namespace="/".join(filter(None, ("", namespace, robot))),
        )
    ]


def _container(
    context: LaunchContext, robots: dict[str, dict[str, Any]], namespace: str, common: list[Any]
) -> Node:
    prefix = f"/{namespace}" if namespace else ""
    everyone: dict[str, Any] = {"use_sim_time": is_true(context, "use_sim_time")}
    everyone |= {name: given(context, name) for name in POLICY_OVERRIDES if given(context, name)}
    files = [{"/**": {"ros__parameters": everyone}}]
    files += [
        {f"{prefix}/{robot}/policy_node": {"ros__parameters": own}}
        for robot, own in robots.items()
        if own
    ]
    # Parameters that launch passes itself are for the container alone.
    given_to_all = ["--params-file", common[0]]
    for content in files:
        given_to_all += ["--params-file", _written(content)]
    policies = [f"{robot}/policy_node" for robot in robots]
    return Node(
        package=PACKAGE,
        executable="policy_container",
        name="policy_container",
        namespace=prefix,
        parameters=[{"policies": policies, "autostart": is_true(context, "autostart")}],
        ros_arguments=[*ros_arguments(context), *given_to_all],
        output="screen",
        emulate_tty=True,
        sigterm_timeout=PATIENCE,
    )


def _written(content: dict[str, Any]) -> str:
    """A parameter file of this content; launch_ros leaves its own in the same place."""
    with tempfile.NamedTemporaryFile("w", prefix="launch_params_", delete=False) as file:
        yaml.safe_dump(content, file)
        return file.name
