# SPDX-License-Identifier: Apache-2.0
"""How a node's parameters and contract say that chunks are executed."""

from __future__ import annotations

from rclpy.node import Node

from flashrt_ros.models.policy import PolicyModel, TakesConditioning
from flashrt_ros.policies.action_space import ActionSpaces
from flashrt_ros.policies.contract import Contract
from flashrt_ros.policies.execution import Execution, ExecutionOptions
from flashrt_ros.ros.command_outputs import check_rate
from flashrt_ros.ros.parameters import Parameter, read

PARAMETERS = (
    Parameter(
        "execution",
        "synchronous",
        "What is done with a new chunk while another is under way.",
        choices=tuple(str(mode) for mode in Execution),
    ),
    Parameter(
        "tick_period",
        -1.0,
        "Time between the stamps of two observations that are ticked on, s; 0: every one, "
        "-1: what the policy was trained at. In lockstep it is every one.",
        -1.0,
        60.0,
    ),
    Parameter(
        "ensemble_decay",
        0.01,
        "Execution ensemble: m of the weights exp(-m i), i = 0 for the oldest chunk.",
        0.0,
        100.0,
    ),
    Parameter(
        "blend_duration",
        0.1,
        "Time in which a new chunk takes over, s; not in execution synchronous.",
        0.0,
        10.0,
    ),
    Parameter(
        "simulated_delay",
        0.0,
        "Lockstep only: inference is taken to cost so much of the world's time, s.",
        0.0,
        60.0,
    ),
    Parameter("rtc_guidance", 5.0, "Execution rtc: the largest guidance weight.", 0.0, 1000.0),
    Parameter(
        "command_rate",
        50.0,
        "Rate of outputs whose messages hold one moment (arrays, twists), Hz; 0: there are none.",
        0.0,
        1000.0,
    ),
)


def prepare_execution(node: Node, model: PolicyModel, contract: Contract) -> ExecutionOptions:
    """Read the parameters and set the model up for them, before it is bound.

    Raises:
        ValueError: the model, the contract's outputs or lockstep do not go with them.
    """
    options = ExecutionOptions(
        mode=Execution(read(node, "execution")),
        ensemble_decay=read(node, "ensemble_decay"),
        blend_duration=read(node, "blend_duration"),
        simulated_delay=read(node, "simulated_delay"),
        guidance=read(node, "rtc_guidance"),
    )
    lockstep = read(node, "lockstep")
    check_rate(contract.outputs, read(node, "command_rate"), lockstep=lockstep)
    if options.mode is Execution.RTC and isinstance(model, TakesConditioning):
        model.guided = True
    spaces = spaces_of(contract, model)
    options.check(model, lockstep=lockstep, relative=spaces.any_relative)
    return options


def tick_period(node: Node, model: PolicyModel) -> float:
    """The parameter, s, or the policy's own where it is negative."""
    period: float = read(node, "tick_period")
    return model.spec.tick_period if period < 0.0 else period


def spaces_of(contract: Contract, model: PolicyModel) -> ActionSpaces:
    """What the policy's actions mean, as the contract's outputs say."""
    return ActionSpaces.of(contract.outputs, model.spec.joint_names)
