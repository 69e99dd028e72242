# SPDX-License-Identifier: Apache-2.0
"""Everything that a policy node offers to planners, as one part of the node."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node

from flashrt_ros.policies import PolicyEngine
from flashrt_ros.policies.contract import Contract
from flashrt_ros.policies.evaluation import Evaluator
from flashrt_ros.policies.run import TimedRuns
from flashrt_ros.ros.capsule_services import CapsuleServices
from flashrt_ros.ros.evaluation_services import EvaluationServices
from flashrt_ros.ros.policy_services import PolicyServices
from flashrt_ros.ros.runs import RunServices
from flashrt_ros.ros.verbs import VerbRunner
from flashrt_ros.runtime.errors import Unsupported


class PlannerSurface:
    """Services and the action, there for the node's whole life; see docs/planners.md.

    So a call is answered at any time, with NOT_READY while the node is not configured.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._runner = VerbRunner(node)
        group = ReentrantCallbackGroup()
        self._capsules = CapsuleServices(node, self._runner, group)
        self._verbs = PolicyServices(node, self._runner, group)
        self._evaluations = EvaluationServices(node, self._runner, group)
        self._run_services = RunServices(node, self._runner, group)
        self._evaluator: Evaluator | None = None
        self._runs: TimedRuns | None = None
        self._timeout = 0.0

    @property
    def answering(self) -> int:
        """Calls that wait for their answer."""
        return self._runner.answering

    def attach(
        self,
        engine: PolicyEngine,
        clock: Callable[[], int],
        contract: Contract,
        *,
        timeout: float,
        backend: str,
        evaluate: bool = True,
        digests: bool = False,
    ) -> None:
        """Serve an engine that has not ticked yet.

        contract: how observations that callers give are read; timeout: longest wait of a verb for
        the replay thread, s; evaluate: keep a second arena; digests: answer with the digest of a
        state that was restored.
        """
        if evaluate:
            try:
                self._evaluator = Evaluator(engine, backend)
            except Unsupported as fault:
                self._node.get_logger().info(f"evaluate is not offered: {fault}")
        self._timeout = timeout
        self._runs = TimedRuns(engine, clock)
        self._evaluations.attach(self._evaluator, engine.model.spec, contract)
        self._verbs.attach(engine)
        self._run_services.attach(self._runs)
        self._runner.attach(engine, timeout, digests=digests)

    def pause(self) -> None:
        """The node is deactivated: end the run under way. The engine holds the arm."""
        if self._runs is not None:
            self._runs.end_all("the node was deactivated")

    def detach(self) -> None:
        """Before the engine is closed, which answers every verb that waits. Idempotent."""
        self._runner.detach()
        self._run_services.attach(None)
        self._verbs.attach(None)
        self._evaluations.attach(None, None, Contract())
        evaluator, self._evaluator = self._evaluator, None
        if evaluator is not None:
            evaluator.close(self._timeout)

    def close(self) -> None:
        """After the engine was closed: answer who waits for the end of a run. Idempotent."""
        runs, self._runs = self._runs, None
        if runs is not None:
            runs.close()
