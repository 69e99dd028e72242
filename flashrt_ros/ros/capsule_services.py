# SPDX-License-Identifier: Apache-2.0
"""The capsule services: one component for every node that hosts a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from std_srvs.srv import Trigger

from flashrt_ros.policies import Motion
from flashrt_ros.ros.conversions import to_capsule_info, to_ns
from flashrt_ros.ros.verbs import Outcome, VerbRunner, answer, expectations, expected
from flashrt_ros.runtime import CapsuleInfo, Code, RestoreReport, Role, Session, Tier
from flashrt_ros.runtime.errors import InvalidArgument
from flashrt_ros.srv import (
    DeleteCapsule,
    Fork,
    ListCapsules,
    MoveCapsule,
    Restore,
    Rollback,
    Snapshot,
    Verb,
)


def motion_of(value: int) -> Motion:
    """A motion field.

    Raises:
        InvalidArgument: the number is no Motion.
    """
    try:
        return Motion(value)
    except ValueError:
        names = ", ".join(f"{motion.value} {motion.name}" for motion in Motion)
        raise InvalidArgument(f"motion is {value}, expected one of {names}") from None


def roles_of(names: Sequence[str]) -> frozenset[Role] | None:
    """The buffer roles of an ablation; None, for all, where there are no names.

    Raises:
        InvalidArgument: a name is no role.
    """
    known = {role.value: role for role in Role}
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise InvalidArgument(
            f"unknown buffer role {', '.join(unknown)}: expected some of {', '.join(known)}"
        )
    return frozenset(known[name] for name in names) or None


def tier_of(name: str) -> Tier:
    """A tier by its name.

    Raises:
        InvalidArgument: there is no such tier.
    """
    try:
        return Tier(name)
    except ValueError:
        names = ", ".join(tier.value for tier in Tier)
        raise InvalidArgument(f"tier is '{name}', expected one of {names}") from None


def target_of(request: Rollback.Request) -> dict[str, Any]:
    """The one target of a rollback, as `Session.rollback` takes it.

    Raises:
        InvalidArgument: none, or more than one.
    """
    where = {
        "count": request.count or None,
        "boundary": expected(request.boundary),
        "before_ns": to_ns(request.before) or None,
        "name": request.name or None,
    }
    given = {key: value for key, value in where.items() if value is not None}
    if len(given) != 1:
        names = ", ".join(given) or "none"
        raise InvalidArgument(
            f"rollback got {names}: set exactly one of count, boundary, before and name"
        )
    return given


class CapsuleServices:
    """`~/capsule/*` and `~/reset` of a node, there for its whole life.

    Args:
        node: the node that offers the services.
        runner: runs verbs for callbacks.
        group: lets its callbacks run while others wait.
    """

    def __init__(self, node: Node, runner: VerbRunner, group: CallbackGroup) -> None:
        self._runner = runner
        for kind, name, callback in (
            (Snapshot, "~/capsule/snapshot", self._snapshot),
            (Restore, "~/capsule/restore", self._restore),
            (Rollback, "~/capsule/rollback", self._rollback),
            (Fork, "~/capsule/fork", self._fork),
            (ListCapsules, "~/capsule/list", self._list),
            (DeleteCapsule, "~/capsule/delete", self._delete),
            (MoveCapsule, "~/capsule/move", self._move),
            (Verb, "~/capsule/reset", self._reset),
            (Trigger, "~/reset", self._reset_trigger),
        ):
            node.create_service(kind, name, callback, callback_group=group)

    async def _snapshot(self, request: Snapshot.Request, response: Snapshot.Response) -> Any:
        def verb(session: Session) -> tuple[CapsuleInfo, Motion]:
            session.require(**expectations(request))
            capsule = session.snapshot(
                request.name, overwrite=request.overwrite, tags=tuple(request.tags), pin=request.pin
            )
            return session.store.info(capsule), Motion.UNCHANGED

        outcome = await self._runner.run("snapshot", request, verb)
        if outcome.value is not None:
            response.capsule = to_capsule_info(outcome.value)
        return answer(response, outcome, f"snapshot of boundary {outcome.result.boundary}")

    async def _fork(self, request: Fork.Request, response: Fork.Response) -> Any:
        def verb(session: Session) -> tuple[list[CapsuleInfo], Motion]:
            session.require(**expectations(request))
            branches = session.fork(
                request.capsule or None,
                count=request.count,
                names=list(request.names),
                tags=tuple(request.tags),
            )
            return [session.store.info(branch) for branch in branches], Motion.UNCHANGED

        outcome = await self._runner.run("fork", request, verb)
        response.capsules = [to_capsule_info(info) for info in outcome.value or []]
        source = f"'{request.capsule}'" if request.capsule else "the live state"
        return answer(response, outcome, f"{len(response.capsules)} capsules share {source}")

    async def _restore(self, request: Restore.Request, response: Restore.Response) -> Any:
        def verb(session: Session) -> tuple[RestoreReport, Motion]:
            return self._runner.host.restore(
                request.capsule,
                motion_of(request.motion),
                roles=roles_of(request.ablate_only_roles),
                digest=self._runner.digests,
                **expectations(request),
            )

        outcome = await self._runner.run("restore", request, verb)
        return self._moved(response, outcome, "restored")

    async def _rollback(self, request: Rollback.Request, response: Rollback.Response) -> Any:
        def verb(session: Session) -> tuple[RestoreReport, Motion]:
            return self._runner.host.rollback(
                motion_of(request.motion),
                nearest=request.nearest,
                digest=self._runner.digests,
                **target_of(request),
                **expectations(request),
            )

        outcome = await self._runner.run("rollback", request, verb)
        return self._moved(response, outcome, "rolled back")

    def _moved(self, response: Any, outcome: Outcome, done: str) -> Any:
        report: RestoreReport | None = outcome.value
        if report is None:
            return answer(response, outcome)
        response.capsule = to_capsule_info(report.capsule)
        response.bytes_copied = report.bytes_copied
        response.bytes_shared = report.bytes_shared
        response.rows_copied = report.rows_copied
        response.rows_shared = report.rows_shared
        response.steps_not_recomputed = report.steps_not_recomputed
        response.restored = list(report.restored)
        response.state_digest = report.state_digest
        motion = Motion(outcome.result.motion).name
        return answer(
            response, outcome, f"{done} to boundary {outcome.result.boundary}, motion {motion}"
        )

    async def _list(self, request: ListCapsules.Request, response: ListCapsules.Response) -> Any:
        def verb(session: Session) -> tuple[list[CapsuleInfo], Motion]:
            return session.capsules(), Motion.UNCHANGED

        outcome = await self._runner.run("list", request, verb)
        matching = [
            info
            for info in outcome.value or []
            if info.name.startswith(request.name_prefix)
            and (not request.tag or request.tag in info.tags)
            and (info.name or request.include_unnamed)
        ]
        matching.sort(key=lambda info: (info.boundary, info.stamp_ns, info.id))
        end = request.offset + request.limit if request.limit else None
        response.total = len(matching)
        response.capsules = [to_capsule_info(info) for info in matching[request.offset : end]]
        return answer(response, outcome, f"{len(matching)} capsules")

    async def _delete(
        self, request: DeleteCapsule.Request, response: DeleteCapsule.Response
    ) -> Any:
        def verb(session: Session) -> tuple[int, Motion]:
            session.require(**expectations(request))
            return session.drop(request.capsule), Motion.UNCHANGED

        outcome = await self._runner.run("delete", request, verb)
        response.bytes_freed = outcome.value or 0
        return answer(response, outcome, f"deleted '{request.capsule}'")

    async def _move(self, request: MoveCapsule.Request, response: MoveCapsule.Response) -> Any:
        def verb(session: Session) -> tuple[CapsuleInfo, Motion]:
            session.require(**expectations(request))
            return session.move(request.capsule, tier_of(request.tier)), Motion.UNCHANGED

        outcome = await self._runner.run("move", request, verb)
        if outcome.value is not None:
            response.info = to_capsule_info(outcome.value)
        return answer(response, outcome, f"'{request.capsule}' is on {request.tier}")

    async def _reset(self, request: Verb.Request, response: Verb.Response) -> Any:
        def verb(session: Session) -> tuple[RestoreReport, Motion]:
            return self._runner.host.reset(motion_of(request.motion), **expectations(request))

        outcome = await self._runner.run("reset", request, verb)
        return answer(response, outcome, "reset to the first boundary")

    async def _reset_trigger(self, request: Trigger.Request, response: Trigger.Response) -> Any:
        def verb(session: Session) -> tuple[RestoreReport, Motion]:
            return self._runner.host.reset(Motion.REPLAN)

        outcome = await self._runner.run("reset", request, verb)
        response.success = outcome.code is Code.OK
        result = outcome.result
        response.message = outcome.message or (
            f"reset to the first boundary: boundary={result.boundary} epoch={result.epoch}"
        )
        return response
