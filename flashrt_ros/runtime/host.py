# SPDX-License-Identifier: Apache-2.0
"""What hosts a session on a thread of its own: how other threads reach it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from .session import Session

T = TypeVar("T")


class SessionHost:
    """Verbs from any thread, applied by the replay thread between replays."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def submit(self, verb: Callable[[Session], T]) -> Future[T]:
        """Queue a verb for the next gap between replays."""

        def apply(session: Session) -> T:
            try:
                return verb(session)
            finally:
                self._after_verb()

        return self.session.submit(apply)

    def call(self, verb: Callable[[Session], T], timeout: float | None = None) -> T:
        """`submit` and wait."""
        return self.submit(verb).result(timeout)

    def _wake(self) -> None:
        """Make the replay thread look around, if it waits."""
        self.session.submit(lambda session: None)

    def _after_verb(self) -> None:
        """A verb was applied or refused. On the replay thread."""
