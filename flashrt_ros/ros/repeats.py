# SPDX-License-Identifier: Apache-2.0
"""Answers to requests that carry an id, so that a caller who heard none may ask again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from flashrt_ros.runtime.errors import InvalidArgument


@dataclass(frozen=True)
class _Entry:
    verb: str
    request: Any
    future: Future[Any]


class AnswerRecord:
    """What each request id was answered, for the last `capacity` ids. Thread-safe.

    An id whose verb is under way is never forgotten. A refusal is an answer too: who wants to try
    again because something has changed takes a new id.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def claim(
        self, verb: str, request: Any, submit: Callable[[], Future[Any]]
    ) -> tuple[Future[Any], bool]:
        """The outcome of a request, and whether an earlier request had asked for it.

        `submit` starts the verb; it is called once for an id. Requests without an id are all
        different.

        Raises:
            InvalidArgument: the id belongs to another verb, or to a request with other fields.
        """
        request_id = getattr(request, "request_id", "")
        if not request_id:
            return submit(), False
        with self._lock:
            known = self._entries.get(request_id)
            if known is None:
                future = submit()
                self._entries[request_id] = _Entry(verb, request, future)
                self._trim()
                return future, False
        if known.verb != verb or known.request != request:
            what = f"another {verb}" if known.verb == verb else f"a {known.verb}"
            raise InvalidArgument(
                f"request id '{request_id}' was {what}; give each request an id of its own, and "
                "the same one only to the very same request"
            )
        return known.future, True

    def forget(self, request: Any) -> None:
        """The request was withdrawn: nothing was applied, and the id may come again."""
        with self._lock:
            self._entries.pop(getattr(request, "request_id", ""), None)

    def _trim(self) -> None:
        excess = len(self._entries) - self._capacity
        if excess > 0:
            done = [key for key, entry in self._entries.items() if entry.future.done()]
            for key in done[:excess]:
                del self._entries[key]
