# SPDX-License-Identifier: Apache-2.0
"""From a policy's chunks to what the joints are told. See docs/execution.md."""

from flashrt_ros.policies.execution.executor import (
    LEAD_SHARE,
    ChunkExecutor,
    Progress,
    nothing_under_way,
)
from flashrt_ros.policies.execution.modes import Execution, ExecutionOptions

__all__ = [
    "LEAD_SHARE",
    "ChunkExecutor",
    "Execution",
    "ExecutionOptions",
    "Progress",
    "nothing_under_way",
]
