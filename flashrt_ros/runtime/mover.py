# SPDX-License-Identifier: Apache-2.0
"""A thread that moves capsules between tiers, so that no replay waits for it."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


_IDLE = 30.0  # s after which the thread ends; the next job starts another
_movers: weakref.WeakSet[Mover] = weakref.WeakSet()


class Mover:
    """Runs jobs one after another on a thread of its own, which lives while there are jobs."""

    def __init__(self, name: str) -> None:
        self.failures = 0
        self._name = name
        self._jobs: deque[Callable[[], object]] = deque()
        self._running = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        _movers.add(self)

    def submit(self, job: Callable[[], object]) -> None:
        """Queue a job; its failure is logged and counted. After `close` it does nothing."""
        with self._changed:
            if self._closed:
                return
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is queued or running. Returns whether that came to be."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._running, timeout)

    def close(self) -> None:
        """Finish the job under way, forget the others, end the thread."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed, _IDLE)
                if self._closed or not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
                self._running = True
            try:
                job()
            except Exception:
                self.failures += 1
                _log.exception("moving a capsule failed; it stays where it was")
            finally:
                del job  # it may hold a store alive
                with self._changed:
                    self._running = False
                    self._changed.notify_all()


@atexit.register
def _close_all() -> None:
    """A thread that is in a copy when the interpreter ends would take the process down."""
    for mover in list(_movers):
        mover.close()
