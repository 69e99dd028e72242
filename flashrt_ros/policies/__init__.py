# SPDX-License-Identifier: Apache-2.0
"""Observation in, action chunk out: the engine with its one replay thread, and motion rules.

Nothing in this layer knows ROS; `flashrt_ros.ros` converts messages to and from these types.
"""

from flashrt_ros.policies.assembler import ObservationAssembler
from flashrt_ros.policies.engine import PolicyEngine
from flashrt_ros.policies.execution import Execution, ExecutionOptions
from flashrt_ros.policies.motion import Motion
from flashrt_ros.policies.observation import Observation
from flashrt_ros.policies.output import ChunkOutput, CommandOutput, EngineEvent, EngineListener
from flashrt_ros.policies.safety import Safety, SafetyOptions
from flashrt_ros.policies.status import Ends, EngineOptions, EngineState, EngineStatus
from flashrt_ros.policies.trajectory import Trajectory

__all__ = [
    "ChunkOutput",
    "CommandOutput",
    "Ends",
    "EngineEvent",
    "EngineListener",
    "EngineOptions",
    "EngineState",
    "EngineStatus",
    "Execution",
    "ExecutionOptions",
    "Motion",
    "Observation",
    "ObservationAssembler",
    "PolicyEngine",
    "Safety",
    "SafetyOptions",
    "Trajectory",
]
