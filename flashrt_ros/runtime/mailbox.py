# SPDX-License-Identifier: Apache-2.0
"""Verbs from other threads, applied by the replay thread between replays."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from .errors import Cancelled

S = TypeVar("S")
T = TypeVar("T")


class Mailbox(Generic[S]):
    """A queue of verbs on a subject `S`; every verb is answered exactly once."""

    def __init__(self) -> None:
        self._letters: queue.SimpleQueue[Callable[[S | None], None]] = queue.SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()

    def submit(self, verb: Callable[[S], T]) -> Future[T]:
        """Queue a verb. Its future can be cancelled until the verb starts."""
        future: Future[T] = Future()

        def apply(subject: S | None) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if subject is None:
                    raise Cancelled("the session was closed before the verb was applied")
                future.set_result(verb(subject))
            except BaseException as error:
                future.set_exception(error)

        with self._closing:  # nothing slips in between closing and answering what is queued
            if not self._closed:
                self._letters.put(apply)
                return future
        apply(None)
        return future

    def serve(self, subject: S, timeout: float = 0.0) -> int:
        """Apply what is queued; wait up to `timeout` s for the first. Returns how many."""
        served = 0
        try:
            letter = self._letters.get(block=timeout > 0, timeout=timeout if timeout > 0 else None)
            while True:
                letter(subject)
                served += 1
                letter = self._letters.get_nowait()
        except queue.Empty:
            return served

    def close(self) -> None:
        """Answer what is queued, and all that comes, with Cancelled."""
        with self._closing:
            self._closed = True
        try:
            while True:
                self._letters.get_nowait()(None)
        except queue.Empty:
            pass
