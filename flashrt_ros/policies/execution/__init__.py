# SPDX-License-Identifier: Apache-2.0
"""From a policy's chunks to what the joints are told. See docs/execution.md."""

from flashrt_ros.policies.execution.executor import ChunkExecutor, Progress, nothing_under_way
from flashrt_ros.policies.execution.modes import Execution, ExecutionOptions

__all__ = ["ChunkExecutor", "Execution", "ExecutionOptions", "Progress", "nothing_under_way"]
