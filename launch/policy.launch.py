# SPDX-License-Identifier: Apache-2.0
"""One policy node, configured and activated unless autostart:=false.

    ros2 launch flashrt_ros policy.launch.py params_file:=my_robot.yaml namespace:=left_arm

`model` and `lockstep` override the parameter file only where they are given.
"""

from __future__ import annotations

from ament_index_python.packages import get_package_share_directory
from launch import LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.conditions import IfCondition
from launch.event_handlers import OnProcessStart
from launch.events import matches_action
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState
from launch_ros.parameter_descriptions import ParameterValue
from lifecycle_msgs.msg import Transition


def generate_launch_description() -> LaunchDescription:
    share = get_package_share_directory("flashrt_ros")
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "params_file",
                default_value=PathJoinSubstitution([share, "config", "policy_node.yaml"]),
                description="Parameters of policy_node.",
            ),
            DeclareLaunchArgument(
                "model",
                default_value="",
                description="Checkpoint folder or shipped name; empty: what params_file says.",
            ),
            DeclareLaunchArgument(
                "lockstep",
                default_value="",
                choices=["", "true", "false"],
                description="For a simulator in lockstep; empty: what params_file says.",
            ),
            DeclareLaunchArgument(
                "namespace", default_value="", description="Namespace of the node and its topics."
            ),
            DeclareLaunchArgument(
                "use_sim_time",
                default_value="false",
                choices=["true", "false"],
                description="Take the time from /clock.",
            ),
            DeclareLaunchArgument(
                "autostart",
                default_value="true",
                choices=["true", "false"],
                description="Configure and activate the node once it is up.",
            ),
            DeclareLaunchArgument("log_level", default_value="info", description="Logging."),
            OpaqueFunction(function=start_policy),
        ]
    )


def start_policy(context: LaunchContext) -> list[LifecycleNode | RegisterEventHandler]:
    """The node and what carries it to active; a function, as overrides may be empty."""
    overrides = {
        "use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool)
    }
    if model := LaunchConfiguration("model").perform(context):
        overrides["model"] = ParameterValue(model, value_type=str)
    if LaunchConfiguration("lockstep").perform(context):
        overrides["lockstep"] = ParameterValue(LaunchConfiguration("lockstep"), value_type=bool)

    node = LifecycleNode(
        package="flashrt_ros",
        executable="policy_node",
        name="policy_node",
        namespace=LaunchConfiguration("namespace"),
        parameters=[LaunchConfiguration("params_file"), overrides],
        ros_arguments=["--log-level", LaunchConfiguration("log_level")],
        output="screen",
        emulate_tty=True,
        # The node holds the arm and ends by itself on SIGINT; give it the time to.
        sigterm_timeout="10.0",
    )
    autostart = IfCondition(LaunchConfiguration("autostart"))
    configure = RegisterEventHandler(
        OnProcessStart(
            target_action=node,
            on_start=[change_state(node, Transition.TRANSITION_CONFIGURE)],
        ),
        condition=autostart,
    )
    activate = RegisterEventHandler(
        OnStateTransition(
            target_lifecycle_node=node,
            start_state="configuring",
            goal_state="inactive",
            entities=[change_state(node, Transition.TRANSITION_ACTIVATE)],
        ),
        condition=autostart,
    )
    # The handlers before the node: an event that comes before its handler is lost.
    return [configure, activate, node]


def change_state(node: LifecycleNode, transition: int) -> EmitEvent:
    return EmitEvent(
        event=ChangeState(lifecycle_node_matcher=matches_action(node), transition_id=transition)
    )
