# SPDX-License-Identifier: Apache-2.0
"""The verbs of a policy node that are not about capsules: interrupt, resume, set_instruction."""

from __future__ import annotations

from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node

from flashrt_ros.policies import Motion, PolicyEngine
from flashrt_ros.ros.capsule_services import expected, motion_of
from flashrt_ros.ros.verbs import VerbRunner, answer
from flashrt_ros.runtime import Session
from flashrt_ros.srv import SetInstruction, Verb


class PolicyServices:
    """`~/interrupt`, `~/resume` and `~/set_instruction` of a policy node.

    Args:
        node: the node that offers the services.
        engine: hosts the policy.
        runner: runs verbs for callbacks.
        group: its callbacks wait for the replay thread, which needs no callback.
    """

    def __init__(
        self, node: Node, engine: PolicyEngine, runner: VerbRunner, group: CallbackGroup
    ) -> None:
        self._node = node
        self._engine = engine
        self._runner = runner
        self._services = [
            node.create_service(kind, name, callback, callback_group=group)
            for kind, name, callback in (
                (Verb, "~/interrupt", self._interrupt),
                (Verb, "~/resume", self._resume),
                (SetInstruction, "~/set_instruction", self._set_instruction),
            )
        ]

    def destroy(self) -> None:
        """Remove the services from the node."""
        for service in self._services:
            self._node.destroy_service(service)
        self._services = []

    def _interrupt(self, request: Verb.Request, response: Verb.Response) -> Any:
        engine = self._engine

        def verb(session: Session) -> tuple[None, Motion]:
            return None, engine.interrupt(
                expected_boundary=expected(request.expected_boundary),
                expected_epoch=expected(request.expected_epoch),
            )

        outcome = self._runner.run("interrupt", verb)
        return answer(response, outcome, "holding")

    def _resume(self, request: Verb.Request, response: Verb.Response) -> Any:
        engine = self._engine

        def verb(session: Session) -> tuple[None, Motion]:
            return None, engine.resume(
                motion_of(request.motion),
                expected_boundary=expected(request.expected_boundary),
                expected_epoch=expected(request.expected_epoch),
            )

        outcome = self._runner.run("resume", verb)
        return answer(response, outcome, f"resumed, motion {Motion(outcome.result.motion).name}")

    def _set_instruction(
        self, request: SetInstruction.Request, response: SetInstruction.Response
    ) -> Any:
        engine = self._engine

        def verb(session: Session) -> tuple[None, Motion]:
            engine.set_instruction(
                request.instruction, expected_boundary=expected(request.expected_boundary)
            )
            return None, Motion.UNCHANGED

        outcome = self._runner.run("set_instruction", verb)
        return answer(response, outcome, f"instruction is '{request.instruction}'")
