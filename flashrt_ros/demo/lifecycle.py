# SPDX-License-Identifier: Apache-2.0
"""Brings a lifecycle node up and down, as `ros2 lifecycle set` does."""

from __future__ import annotations

from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState

from flashrt_ros.client import ServiceCaller


def change_state(caller: ServiceCaller, node: str, transition: int) -> None:
    """Trigger a transition, a constant of lifecycle_msgs/Transition.

    Raises:
        RuntimeError: the node refused it or the transition failed.
        TimeoutError: no answer.
    """
    request = ChangeState.Request(transition=Transition(id=transition))
    if not caller.call(ChangeState, f"{node}/change_state", request).success:
        raise RuntimeError(
            f"transition {transition} of {node} failed, it is in state "
            f"'{get_state(caller, node).label}'; see its log"
        )


def get_state(caller: ServiceCaller, node: str) -> State:
    """The state of a lifecycle node."""
    return caller.call(GetState, f"{node}/get_state", GetState.Request()).current_state


def bring_up(caller: ServiceCaller, node: str) -> None:
    """Configure and activate."""
    change_state(caller, node, Transition.TRANSITION_CONFIGURE)
    change_state(caller, node, Transition.TRANSITION_ACTIVATE)
