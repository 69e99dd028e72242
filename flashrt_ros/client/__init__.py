# SPDX-License-Identifier: Apache-2.0
"""A planner's view of a policy node: its verbs as methods, its newest status.

    with spinning("planner") as node, CapsuleClient(node, "policy_node") as policy:
        policy.interrupt()
        policy.snapshot("before_errand")
        policy.run("go home", duration=3.0).result()
        policy.restore("before_errand", motion=Motion.REPLAN)

The node must be spun by another thread; `spinning` does that. See docs/planners.md.
"""

from flashrt_ros.client.calls import Answer, ServiceCaller, VerbRefused, spinning
from flashrt_ros.client.clients import AsyncCapsuleClient, CapsuleClient
from flashrt_ros.client.lineage_view import LineageView
from flashrt_ros.client.runs import RunHandle
from flashrt_ros.policies.motion import Motion
from flashrt_ros.runtime.errors import Code

__all__ = [
    "Answer",
    "AsyncCapsuleClient",
    "CapsuleClient",
    "Code",
    "LineageView",
    "Motion",
    "RunHandle",
    "ServiceCaller",
    "VerbRefused",
    "spinning",
]
