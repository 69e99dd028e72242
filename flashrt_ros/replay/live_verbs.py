# SPDX-License-Identifier: Apache-2.0
"""Recorded verbs as calls to a policy node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lifecycle_msgs.msg import Transition

from flashrt_ros.replay.live_node import LiveNode
from flashrt_ros.replay.plan import goal_of, state_after
from flashrt_ros.replay.run import MOTIONS, CannotReplay, Run, RunEvent
from flashrt_ros.replay.shelf import StateKey
from flashrt_ros.ros.conversions import to_time
from flashrt_ros.srv import (
    DeleteCapsule,
    Fork,
    Restore,
    Rollback,
    SetInstruction,
    Snapshot,
    Verb,
)

QUIET_KINDS = frozenset({"HOLD", "RECOVER", "RUN_START", "RUN_END", "EVALUATE", "MOVE"})
"""Events that change neither state nor lineage, and that lockstep may have others of."""


class VerbCaller:
    """Calls the services that cause recorded events, with the arguments that the bag has.

    Capsules have other ids here than in the bag; they are told apart by the states that they hold.
    """

    def __init__(self, run: Run, node: LiveNode) -> None:
        self._session = run.info.session
        self._node = node
        self._ids: dict[str, str] = {}
        self._held: dict[StateKey, str] = {}
        self._branches = 0
        self._calls: dict[str, Callable[[RunEvent, dict[str, Any]], None]] = {
            "SNAPSHOT": self._snapshot,
            "RESTORE": self._restore,
            "ROLLBACK": self._rollback,
            "RESET": self._reset,
            "INTERRUPT": self._interrupt,
            "RESUME": self._resume,
            "INSTRUCTION": self._instruction,
            "DELETE": self._delete,
            "FORK": self._fork,
            "ACTIVATE": lambda event, given: node.change_state(Transition.TRANSITION_ACTIVATE),
            "DEACTIVATE": lambda event, given: node.change_state(Transition.TRANSITION_DEACTIVATE),
            "CLOCK_JUMP": lambda event, given: node.set_clock(event.stamp_ns),
        }

    def cause(self, event: RunEvent) -> None:
        """Do what the event says was done. Raises CannotReplay where the node refuses."""
        if self._is_automatic(event):
            return
        call = self._calls.get(event.kind)
        if call is None:
            raise CannotReplay(f"{event.kind} cannot be repeated through a node")
        call(event, dict(event.detail.get("arguments", {})))

    def learn(self, recorded: RunEvent, live: RunEvent) -> None:
        """Which capsule here is which one in the bag."""
        if recorded.kind == live.kind and recorded.kind in ("SNAPSHOT", "FORK"):
            self._ids[recorded.capsule] = live.capsule
            if recorded.kind == "SNAPSHOT":
                self._held[state_after(recorded)] = live.capsule

    @staticmethod
    def _is_automatic(event: RunEvent) -> bool:
        """The node does it by itself: its snapshots of boundaries, and their thinning."""
        if event.kind not in ("SNAPSHOT", "DELETE") or "verb" in event.detail:
            return False
        tags = event.detail.get("capsule", {}).get("tags")
        return "auto" in tags if tags is not None else not event.name

    def _snapshot(self, event: RunEvent, given: dict[str, Any]) -> None:
        request = Snapshot.Request(
            name=event.name,
            overwrite=bool(given.get("overwrite", bool(event.name))),
            tags=[str(tag) for tag in given.get("tags", [])],
            pin=bool(given.get("pin", False)),
        )
        self._node.call(Snapshot, "capsule/snapshot", request)

    def _restore(self, event: RunEvent, given: dict[str, Any]) -> None:
        roles = given.get("ablate_only_roles", [])
        if event.detail.get("restored") and not roles:
            raise CannotReplay("a partial restore in the bag does not say which roles it restored")
        request = Restore.Request(
            capsule=self._capsule(event, given),
            motion=_motion(event, given),
            ablate_only_roles=[str(role) for role in roles],
        )
        self._node.call(Restore, "capsule/restore", request)

    def _rollback(self, event: RunEvent, given: dict[str, Any]) -> None:
        request = Rollback.Request(motion=_motion(event, given))
        request.nearest = bool(given.get("nearest", False))
        request.count = int(given.get("count", 0))
        request.boundary = int(given.get("boundary", -1))
        request.name = str(given.get("name", ""))
        request.before = to_time(int(given.get("before", 0)))
        if not given:
            request.boundary = event.boundary
        self._node.call(Rollback, "capsule/rollback", request)

    def _reset(self, event: RunEvent, given: dict[str, Any]) -> None:
        request = Verb.Request(motion=_motion(event, given))
        self._node.call(Verb, "capsule/reset", request)

    def _interrupt(self, event: RunEvent, given: dict[str, Any]) -> None:
        self._node.call(Verb, "interrupt", Verb.Request(motion=MOTIONS.index("HOLD")))

    def _resume(self, event: RunEvent, given: dict[str, Any]) -> None:
        self._node.call(Verb, "resume", Verb.Request(motion=_motion(event, given)))

    def _instruction(self, event: RunEvent, given: dict[str, Any]) -> None:
        request = SetInstruction.Request(instruction=event.instruction)
        self._node.call(SetInstruction, "set_instruction", request)

    def _delete(self, event: RunEvent, given: dict[str, Any]) -> None:
        capsule = self._ids.get(event.capsule, event.name or event.capsule)
        self._node.call(DeleteCapsule, "capsule/delete", DeleteCapsule.Request(capsule=capsule))

    def _fork(self, event: RunEvent, given: dict[str, Any]) -> None:
        """One call causes an event for each branch."""
        if self._branches:
            self._branches -= 1
            return
        names = [str(name) for name in given.get("names", [])]
        if not names and event.name:
            names = [event.name]
        count = max(int(given.get("count", 1)), len(names))
        source = str(given.get("capsule", ""))
        request = Fork.Request(
            capsule=self._ids.get(source, source),
            count=count,
            names=names,
            tags=[str(tag) for tag in given.get("tags", [])],
        )
        self._node.call(Fork, "capsule/fork", request)
        self._branches = count - 1

    def _capsule(self, event: RunEvent, given: dict[str, Any]) -> str:
        known = self._ids.get(event.capsule)
        goal = goal_of(event, self._session)
        if known is None and goal is not None:
            known = self._held.get(goal)
        if known is None:
            raise CannotReplay(
                f"capsule {event.capsule} ('{event.name}') was made before the bag begins: replay "
                "it offline, with --capsules"
            )
        return known


def _motion(event: RunEvent, given: dict[str, Any]) -> int:
    return int(given.get("motion", MOTIONS.index(event.motion)))
