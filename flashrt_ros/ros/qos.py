# SPDX-License-Identifier: Apache-2.0
"""Quality of service, one profile a purpose (REP-2003 for sensors)."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy, qos_profile_sensor_data

from flashrt_ros.policies.contract import Qos

SENSOR = qos_profile_sensor_data
"""Inputs of a real robot: best effort, so that both kinds of publisher match."""

LOCKSTEP_INPUT = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""Inputs where the sender waits for an answer to each: none may be lost."""

INSTRUCTION = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""Instructions come rarely, and each counts."""

COMMAND = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""Commands: a controller reads with depth 1 and takes the newest. The sender keeps a few, or one
that follows at once would overwrite another that a recorder has not got yet."""

STREAM = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
"""Chunks and boundaries: a recorder wants every one."""

LATCHED = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
"""Status: a late joiner gets the newest."""


def of_contract(asked: Qos) -> QoSProfile:
    """The profile that a contract asks for."""
    return QoSProfile(
        depth=asked.depth,
        reliability=ReliabilityPolicy[asked.reliability.upper()],
        durability=DurabilityPolicy[asked.durability.upper()],
    )
