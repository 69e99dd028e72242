# SPDX-License-Identifier: Apache-2.0
"""The parts of a configured policy node."""

from __future__ import annotations

from dataclasses import dataclass

from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.policies import PolicyEngine
from flashrt_ros.policies.contract import Contract
from flashrt_ros.policies.execution import ExecutionOptions
from flashrt_ros.policies.safety import Safety
from flashrt_ros.ros.policy_inputs import PolicyInputs
from flashrt_ros.ros.policy_outputs import PolicyOutputs
from flashrt_ros.ros.robot_description import RobotDescriptionInput
from flashrt_ros.ros.run_info import RunInfoPublisher
from flashrt_ros.runtime import Session, Store


@dataclass
class Parts:
    """What configure makes and teardown frees, in the order in which it is made."""

    model: PolicyModel | None = None
    contract: Contract | None = None
    description: RobotDescriptionInput | None = None
    safety: Safety | None = None
    execution: ExecutionOptions = ExecutionOptions()
    store: Store | None = None
    session: Session | None = None
    engine: PolicyEngine | None = None
    outputs: PolicyOutputs | None = None
    inputs: PolicyInputs | None = None
    run_info: RunInfoPublisher | None = None
