# SPDX-License-Identifier: Apache-2.0
"""The simulated arm and the policy that drives it.

    ros2 launch flashrt_ros demo_sim.launch.py seed:=7
    ros2 topic pub --once /instruction std_msgs/msg/String "{data: reach}"

mode:=lockstep makes the run reproducible bit for bit; it then starts paused:

    ros2 service call /sim_arm_node/grant flashrt_ros/srv/SimGrant "{ticks: -1}"
"""

from __future__ import annotations

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import EqualsSubstitution, IfElseSubstitution, LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from flashrt_ros.ros.launching import PACKAGE, process_arguments, shared


def generate_launch_description() -> LaunchDescription:
    mode = LaunchConfiguration("mode")
    passed_on = ("params_file", "model", "namespace", "autostart", "log_level", "enclave")
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "mode",
                default_value="realtime",
                choices=["realtime", "lockstep"],
                description="What lets the simulated time pass: the wall clock or the commands.",
            ),
            DeclareLaunchArgument("seed", default_value="0", description="Seed of the episode."),
            DeclareLaunchArgument(
                "sim_params_file",
                default_value=shared("config", "sim_arm_node.yaml"),
                description="Parameters of sim_arm_node.",
            ),
            DeclareLaunchArgument(
                "params_file",
                default_value=shared("config", "policy_node.yaml"),
                description="Parameters of policy_node.",
            ),
            DeclareLaunchArgument(
                "model",
                default_value="",
                description="Checkpoint folder or shipped name; empty: what params_file says.",
            ),
            DeclareLaunchArgument(
                "namespace", default_value="", description="Namespace of both nodes."
            ),
            *process_arguments(),
            Node(
                package=PACKAGE,
                executable="sim_arm_node",
                name="sim_arm_node",
                namespace=LaunchConfiguration("namespace"),
                parameters=[
                    LaunchConfiguration("sim_params_file"),
                    {
                        "mode": mode,
                        "seed": ParameterValue(LaunchConfiguration("seed"), value_type=int),
                    },
                ],
                output="screen",
                emulate_tty=True,
            ),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(shared("launch", "policy.launch.py")),
                launch_arguments={
                    **{name: LaunchConfiguration(name) for name in passed_on},
                    "use_sim_time": "true",
                    "lockstep": IfElseSubstitution(
                        EqualsSubstitution(mode, "lockstep"), "true", "false"
                    ),
                }.items(),
            ),
        ]
    )
