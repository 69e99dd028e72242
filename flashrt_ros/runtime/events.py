# SPDX-License-Identifier: Apache-2.0
"""What a session tells its subscribers: every boundary committed, every verb applied."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from .capsule import CapsuleInfo
from .lineage import BoundaryRecord

_log = logging.getLogger(__name__)


class EventKind(str, Enum):
    COMMIT = "commit"
    SNAPSHOT = "snapshot"
    RESTORE = "restore"
    ROLLBACK = "rollback"
    RESET = "reset"
    EPOCH = "epoch"  # the epoch was raised, nothing else changed
    DROP = "drop"
    FORK = "fork"
    MOVE = "move"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class RestoreReport:
    """What restore, rollback and reset did."""

    capsule: CapsuleInfo
    boundary: int  # now live
    step: int
    epoch: int
    bytes_copied: int
    bytes_shared: int  # in the capsule but live already: not copied
    rows_copied: int
    rows_shared: int
    restored: tuple[str, ...]  # buffers, then registered state items
    state_digest: str = ""  # of the restored state, when asked for

    @property
    def steps_not_recomputed(self) -> int:
        """Commits that the restored state stands for."""
        return self.capsule.step


@dataclass(frozen=True)
class Event:
    """One thing that happened. `index` grows by one with every event of the session."""

    kind: EventKind
    index: int
    record: BoundaryRecord  # the boundary now live
    epoch: int
    capsule: CapsuleInfo | None = None
    report: RestoreReport | None = None


Listener = Callable[[Event], None]


class Subscribers:
    """Listeners, called on the replay thread in the order in which they subscribed."""

    def __init__(self) -> None:
        self.failures = 0  # calls that raised; a listener cannot break the session
        self._listeners: tuple[Listener, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Listener) -> Callable[[], None]:
        """Subscribe; the result unsubscribes."""
        self._listeners += (listener,)

        def remove() -> None:
            self._listeners = tuple(known for known in self._listeners if known is not listener)

        return remove

    def tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                self.failures += 1
                _log.exception("a subscriber failed on event %d (%s)", event.index, event.kind)
