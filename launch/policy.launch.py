# SPDX-License-Identifier: Apache-2.0
"""One policy node, configured and activated unless autostart:=false.

    ros2 launch flashrt_ros policy.launch.py params_file:=my_robot.yaml namespace:=left_arm

Arguments that are parameters (`model`, `contract`, `limits`, …) override the parameter file only
where they are given.
"""

from __future__ import annotations

from launch import LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import DeclareLaunchArgument, OpaqueFunction

from flashrt_ros.ros.launching import (
    POLICY_OVERRIDES,
    given,
    managed_node,
    node_arguments,
    overrides,
    policy_arguments,
    shared,
)


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            *node_arguments(shared("config", "policy_node.yaml"), "policy_node"),
            *policy_arguments("the policy"),
            DeclareLaunchArgument(
                "instruction",
                default_value="",
                description="Instruction at the start; empty: what params_file says.",
            ),
            DeclareLaunchArgument(
                "lockstep",
                default_value="",
                choices=["", "true", "false"],
                description="For a simulator in lockstep; empty: what params_file says.",
            ),
            OpaqueFunction(function=start_policy),
        ]
    )


def start_policy(context: LaunchContext) -> list[Action]:
    """A function, as overrides may be empty."""
    kinds = {"use_sim_time": bool, "instruction": str, "lockstep": bool, **POLICY_OVERRIDES}
    wanted = overrides(context, **kinds)
    return managed_node(
        context,
        "policy_node",
        [given(context, "params_file"), wanted],
        name="policy_node",
        namespace=given(context, "namespace"),
    )
