# SPDX-License-Identifier: Apache-2.0
"""What an answer must be, from what a planner knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from flashrt_ros.client import Code, Motion
from flashrt_ros.demo.witness import Moment, Wrong
from flashrt_ros.msg import Branch


def target(
    request: Any,
    past: Sequence[tuple[int, int]],
    stored: Collection[int],
    named: int | None,
) -> int | Code:
    """The boundary that a rollback goes to, or why it is refused.

    past: number and stamp, ns, of each boundary of the live lineage, newest first; stored: those
    with a capsule; named: the boundary of the capsule that the request names, if it does.
    """
    before_ns = request.before.sec * 1_000_000_000 + request.before.nanosec
    given = (request.count > 0, request.boundary >= 0, before_ns > 0, bool(request.name))
    if sum(given) != 1:
        return Code.INVALID_ARGUMENT
    wanted = request.boundary if named is None else named
    for back, (number, stamp_ns) in enumerate(past):
        if number == wanted or 0 < back == request.count or 0 < before_ns >= stamp_ns:
            if request.name or number in stored:
                return number
            older = [each for each, _ in past[back:] if each in stored]
            return older[0] if request.nearest else Code.NOT_STORED
    return Code.INVALID_ARGUMENT


def judge_move(response: Any, motion: Motion, boundary: int, after: Moment) -> None:
    """A restore or rollback went to this boundary and did what was asked with motion.

    Raises:
        Wrong: it did not.
    """
    result = response.result
    if result.boundary != boundary or response.capsule.boundary != boundary:
        raise Wrong(f"went to {result} by {response.capsule}, expected boundary {boundary}")
    allowed = {motion, Motion.REPLAN} if motion is Motion.CONTINUE else {motion}
    if Motion(result.motion) not in allowed:
        raise Wrong(f"motion is {Motion(result.motion).name}, asked was {motion.name}")
    if after.held != (motion is Motion.HOLD):
        raise Wrong(f"motion {motion.name} was asked for: {after}")


def judge_branches(response: Any, asked: Sequence[Branch], ticks: int, begin: int | None) -> None:
    """Every branch is whole, counts on from its capsule, and is the same as one like it.

    begin: the capsule's boundary; None: not known.

    Raises:
        Wrong: one is not.
    """
    if [branch.label for branch in response.branches] != [branch.label for branch in asked]:
        raise Wrong(f"{len(asked)} branches were asked for, not {response.branches}")
    seen: dict[tuple[str, int], tuple[Any, ...]] = {}
    for branch, wanted in zip(response.branches, asked, strict=True):
        if not branch.complete or len(branch.chunks) != ticks:
            raise Wrong(f"branch {branch.label} has {len(branch.chunks)} chunks of {ticks}")
        if wanted.instruction not in ("", branch.instruction):
            raise Wrong(f"branch {wanted} ran under '{branch.instruction}'")
        if wanted.seed not in (-1, branch.seed):
            raise Wrong(f"branch {wanted} ran with seed {branch.seed}")
        begin = branch.chunks[0].boundary - 1 if begin is None else begin
        numbers = [(chunk.boundary, chunk.epoch, chunk.sequence) for chunk in branch.chunks]
        if numbers != [(begin + tick, 0, 0) for tick in range(1, ticks + 1)]:
            raise Wrong(f"chunks are numbered {numbers}, from boundary {begin}")
        points = tuple(tuple(point.positions) for chunk in branch.chunks for point in chunk.points)
        found = (branch.state_digest, points)
        if seen.setdefault((branch.instruction, branch.seed), found) != found:
            raise Wrong(f"two branches '{branch.instruction}', seed {branch.seed}, differ")
