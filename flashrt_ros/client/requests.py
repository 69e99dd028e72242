# SPDX-License-Identifier: Apache-2.0
"""Every verb as a request: written once, for the client that waits and for the one that does not.

A name without a node is relative to the policy node: `interrupt` becomes `policy_node/interrupt`.
`expected_boundary` and `expected_epoch` (-1: any) make a verb a compare-and-swap; with a
`request_id` it may be asked for again and is still applied once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from builtin_interfaces.msg import Duration, Time

from flashrt_ros.action import RunPolicy
from flashrt_ros.msg import Branch, RecordedObservation
from flashrt_ros.policies.motion import Motion
from flashrt_ros.srv import (
    CancelEvaluation,
    CancelRun,
    DeleteCapsule,
    Evaluate,
    Fork,
    ListCapsules,
    MoveCapsule,
    Restore,
    Rollback,
    SetInstruction,
    Snapshot,
    StartRun,
    Verb,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request and the service that takes it; `T` is the type of the response."""

    kind: Any
    name: str
    request: Any


def snapshot(
    name: str = "",
    *,
    overwrite: bool = False,
    tags: Sequence[str] = (),
    pin: bool = False,
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> Call[Snapshot.Response]:
    """Freeze the state at the live boundary."""
    request = Snapshot.Request(
        name=name,
        overwrite=overwrite,
        tags=list(tags),
        pin=pin,
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )
    return Call(Snapshot, "capsule/snapshot", request)


def restore(
    capsule: str,
    *,
    motion: Motion = Motion.REPLAN,
    ablate_only_roles: Sequence[str] = (),
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> Call[Restore.Response]:
    """Make a capsule's state the live state."""
    request = Restore.Request(
        capsule=capsule,
        motion=int(motion),
        ablate_only_roles=list(ablate_only_roles),
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )
    return Call(Restore, "capsule/restore", request)


def rollback(
    *,
    count: int = 0,
    boundary: int = -1,
    before_ns: int = 0,
    name: str = "",
    nearest: bool = False,
    motion: Motion = Motion.REPLAN,
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> Call[Rollback.Response]:
    """Go back along the lineage, to exactly one of: a count of boundaries, a boundary's number, the
    newest boundary at or before a stamp (ns), a capsule's name."""
    request = Rollback.Request(
        count=count,
        boundary=boundary,
        before=Time(sec=before_ns // 1_000_000_000, nanosec=before_ns % 1_000_000_000),
        name=name,
        nearest=nearest,
        motion=int(motion),
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )
    return Call(Rollback, "capsule/rollback", request)


def fork(
    capsule: str = "",
    *,
    count: int = 1,
    names: Sequence[str] = (),
    tags: Sequence[str] = (),
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> Call[Fork.Response]:
    """Capsules of their own that share every byte of one, or of the live state (empty)."""
    request = Fork.Request(
        capsule=capsule,
        count=len(names) or count,
        names=list(names),
        tags=list(tags),
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )
    return Call(Fork, "capsule/fork", request)


def evaluate(
    branches: Sequence[Branch | str],
    *,
    capsule: str = "",
    ticks: int = 1,
    observations: Sequence[RecordedObservation] = (),
    keep: bool = False,
    deadline: float = 0.0,
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> Call[Evaluate.Response]:
    """Run branches of a capsule (empty: of the live state) forward beside the live state.

    A branch that is a text is an instruction. `deadline`: s, 0: none. What was done comes in
    `branches` of the answer also where it is refused as DEADLINE_EXCEEDED or CANCELLED.
    """
    request = Evaluate.Request(
        capsule=capsule,
        branches=[
            Branch(label=branch, instruction=branch) if isinstance(branch, str) else branch
            for branch in branches
        ],
        ticks=ticks,
        observations=list(observations),
        keep=keep,
        deadline=deadline,
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )
    return Call(Evaluate, "capsule/evaluate", request)


def cancel_evaluation(evaluation: str = "") -> Call[CancelEvaluation.Response]:
    """End an evaluation by its request id; empty: the one under way."""
    request = CancelEvaluation.Request(request_id=evaluation)
    return Call(CancelEvaluation, "capsule/cancel_evaluation", request)


def capsules(
    *,
    name_prefix: str = "",
    tag: str = "",
    unnamed: bool = False,
    offset: int = 0,
    limit: int = 0,
) -> Call[ListCapsules.Response]:
    """List capsules, oldest boundary first; `limit` 0: all. `total` counts before offset and limit.

    unnamed: automatic boundary snapshots too.
    """
    request = ListCapsules.Request(
        name_prefix=name_prefix, tag=tag, include_unnamed=unnamed, offset=offset, limit=limit
    )
    return Call(ListCapsules, "capsule/list", request)


def delete(
    capsule: str,
    *,
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> Call[DeleteCapsule.Response]:
    """Delete a capsule."""
    request = DeleteCapsule.Request(
        capsule=capsule,
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )
    return Call(DeleteCapsule, "capsule/delete", request)


def move(
    capsule: str,
    tier: str,
    *,
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> Call[MoveCapsule.Response]:
    """Move a capsule to a tier: device, host or disk."""
    request = MoveCapsule.Request(
        capsule=capsule,
        tier=tier,
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )
    return Call(MoveCapsule, "capsule/move", request)


def interrupt(
    *, expected_boundary: int = -1, expected_epoch: int = -1, request_id: str = ""
) -> Call[Verb.Response]:
    """Stop ticking and hold the arm."""
    return _verb("interrupt", Motion.HOLD, expected_boundary, expected_epoch, request_id)


def resume(
    motion: Motion = Motion.UNCHANGED,
    *,
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> Call[Verb.Response]:
    """End a hold."""
    return _verb("resume", motion, expected_boundary, expected_epoch, request_id)


def reset(
    motion: Motion = Motion.REPLAN,
    *,
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> Call[Verb.Response]:
    """Back to the first boundary."""
    return _verb("capsule/reset", motion, expected_boundary, expected_epoch, request_id)


def set_instruction(
    instruction: str, *, expected_boundary: int = -1, expected_epoch: int = -1, request_id: str = ""
) -> Call[SetInstruction.Response]:
    """Change the instruction from the next tick on."""
    request = SetInstruction.Request(
        instruction=instruction,
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )
    return Call(SetInstruction, "set_instruction", request)


def start_run(
    instruction: str = "",
    *,
    duration: float = 0.0,
    at_end: Motion = Motion.HOLD,
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> Call[StartRun.Response]:
    """Run under an instruction (empty: the one in force) for `duration` s (0: until cancelled).

    Answered when the run has begun.
    """
    request = StartRun.Request(
        instruction=instruction,
        duration=_duration(duration),
        at_end=int(at_end),
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )
    return Call(StartRun, "start_run", request)


def cancel_run(run: str = "") -> Call[CancelRun.Response]:
    """End a run by its request id; empty: the one under way. Also before it has come."""
    return Call(CancelRun, "cancel_run", CancelRun.Request(request_id=run))


def run_goal(
    instruction: str = "",
    *,
    duration: float = 0.0,
    at_end: Motion = Motion.HOLD,
    expected_boundary: int = -1,
    expected_epoch: int = -1,
    request_id: str = "",
) -> RunPolicy.Goal:
    """The goal of the action `run`; see `start_run`."""
    return RunPolicy.Goal(
        instruction=instruction,
        duration=_duration(duration),
        at_end=int(at_end),
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )


def _verb(
    name: str, motion: Motion, expected_boundary: int, expected_epoch: int, request_id: str
) -> Call[Verb.Response]:
    request = Verb.Request(
        motion=int(motion),
        expected_boundary=expected_boundary,
        expected_epoch=expected_epoch,
        request_id=request_id,
    )
    return Call(Verb, name, request)


def _duration(seconds: float) -> Duration:
    ns = round(seconds * 1e9)
    return Duration(sec=ns // 1_000_000_000, nanosec=ns % 1_000_000_000)
