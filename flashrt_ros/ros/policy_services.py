# SPDX-License-Identifier: Apache-2.0
"""The verbs of a policy node that are not about capsules: interrupt, resume, set_instruction."""

from __future__ import annotations

from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node

from flashrt_ros.policies import Motion, PolicyEngine
from flashrt_ros.ros.capsule_services import motion_of
from flashrt_ros.ros.verbs import VerbRunner, answer, expectations
from flashrt_ros.runtime import Session
from flashrt_ros.runtime.errors import Cancelled
from flashrt_ros.srv import SetInstruction, Verb


class PolicyServices:
    """`~/interrupt`, `~/resume` and `~/set_instruction` of a policy node.

    Args:
        node: the node that offers the services, for its whole life.
        runner: runs verbs for callbacks.
        group: lets its callbacks run while others wait.
    """

    def __init__(self, node: Node, runner: VerbRunner, group: CallbackGroup) -> None:
        self._runner = runner
        self._engine: PolicyEngine | None = None
        for kind, name, callback in (
            (Verb, "~/interrupt", self._interrupt),
            (Verb, "~/resume", self._resume),
            (SetInstruction, "~/set_instruction", self._set_instruction),
        ):
            node.create_service(kind, name, callback, callback_group=group)

    def attach(self, engine: PolicyEngine | None) -> None:
        """Serve an engine; None: none any more."""
        self._engine = engine

    def _hosting(self) -> PolicyEngine:
        if self._engine is None:
            raise Cancelled("the node was cleaned up meanwhile")
        return self._engine

    async def _interrupt(self, request: Verb.Request, response: Verb.Response) -> Any:
        def verb(session: Session) -> tuple[None, Motion]:
            return None, self._hosting().interrupt(**expectations(request))

        outcome = await self._runner.run("interrupt", request, verb)
        return answer(response, outcome, "holding")

    async def _resume(self, request: Verb.Request, response: Verb.Response) -> Any:
        def verb(session: Session) -> tuple[None, Motion]:
            motion = motion_of(request.motion)
            return None, self._hosting().resume(motion, **expectations(request))

        outcome = await self._runner.run("resume", request, verb)
        return answer(response, outcome, f"resumed, motion {Motion(outcome.result.motion).name}")

    async def _set_instruction(
        self, request: SetInstruction.Request, response: SetInstruction.Response
    ) -> Any:
        def verb(session: Session) -> tuple[None, Motion]:
            self._hosting().set_instruction(request.instruction, **expectations(request))
            return None, Motion.UNCHANGED

        outcome = await self._runner.run("set_instruction", request, verb)
        return answer(response, outcome, f"instruction is '{request.instruction}'")
