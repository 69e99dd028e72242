# SPDX-License-Identifier: Apache-2.0
"""The engine's events: those of its session, completed, and those that only it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flashrt_ros.policies.motion import Motion
from flashrt_ros.policies.observation import Observation
from flashrt_ros.policies.output import EngineEvent, EngineListener
from flashrt_ros.runtime import Event, Session


class EventTeller:
    """Numbers events and tells the listener, on the replay thread.

    Args:
        session: whose events are told too.
        listener: gets them.
        instruction: the one in force.
    """

    def __init__(
        self, session: Session, listener: EngineListener, instruction: Callable[[], str]
    ) -> None:
        self._session = session
        self._listener = listener
        self._instruction = instruction
        self._count = 0
        self._untold: Event | None = None
        self._read: Observation | None = None
        self._detail: Mapping[str, Any] = {}
        self._unsubscribe = session.subscribe(self._on_session_event)

    def close(self) -> None:
        """Tell no more of the session's events."""
        self._unsubscribe()

    def committing(self, read: Observation, detail: Mapping[str, Any]) -> None:
        """The next COMMIT is of a tick that has read this."""
        self._read, self._detail = read, detail

    def tell_restored(self, applied: Motion) -> None:
        """Tell of a restore, rollback or reset, with what was then done with motion."""
        event, self._untold = self._untold, None
        if event is not None:
            self.tell(event.kind.name, applied, source=event)

    def tell(
        self,
        kind: str,
        motion: Motion,
        source: Event | None = None,
        read: Observation | None = None,
        request_id: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell an event of this kind about the state now live; see `EngineEvent`."""
        live = self._session.live
        self._count += 1
        event = EngineEvent(
            kind=kind,
            index=self._count,
            boundary=live.number,
            parent=live.parent,
            step=live.step,
            epoch=self._session.epoch,
            instruction=self._instruction(),
            motion=motion,
            inputs_digest=live.inputs_digest,
            stamps=read.stamps if read is not None else {},
            digests=read.digests if read is not None else {},
            source=source,
            request_id=request_id,
            detail=detail or {},
        )
        self._listener.on_event(event)

    def _on_session_event(self, event: Event) -> None:
        kind = event.kind.name
        if kind in ("RESTORE", "ROLLBACK", "RESET"):
            self._untold = event  # told when it is known what was done with motion
        elif kind == "COMMIT":
            self.tell(kind, Motion.UNCHANGED, source=event, read=self._read, detail=self._detail)
        elif kind != "EPOCH":  # that one is told by the verb that raised it
            self.tell(kind, Motion.UNCHANGED, source=event)
