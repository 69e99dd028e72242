# SPDX-License-Identifier: Apache-2.0
"""Which boundary descends from which."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import InvalidArgument


@dataclass(frozen=True)
class BoundaryRecord:
    """A committed boundary: a point between replays at which the state is complete.

    `number` is unique in its session and only grows. `step` counts the commits on the lineage.
    `rows` are the valid rows by row counter, sorted by the counter's name. `origin` names the
    foreign boundary ("<session>:<number>") that a root was restored from; `ablated` marks a root
    that only some roles were restored into.
    """

    number: int
    parent: int  # -1: a root
    step: int
    stamp_ns: int
    rows: tuple[tuple[str, int], ...]
    inputs_digest: str  # of every input committed on the lineage, hex
    origin: str = ""
    ablated: bool = False

    def rows_of(self, counter: str) -> int:
        """Valid rows of the append buffers counted by `counter`."""
        for name, rows in self.rows:
            if name == counter:
                return rows
        raise InvalidArgument(f"boundary {self.number} counts no rows by {counter!r}: {self.rows}")


def chained_digest(previous: str, inputs: bytes) -> str:
    """SHA-256 (hex) of the digest so far and the inputs of one more step."""
    return hashlib.sha256(previous.encode() + inputs).hexdigest()


class Lineage:
    """The boundaries of one session. Old ones are forgotten beyond `limit`, the live path last."""

    def __init__(self, root: BoundaryRecord, limit: int = 1 << 16) -> None:
        self.live = root
        self.next_number = root.number + 1
        self._limit = limit
        self._records = {root.number: root}

    def __contains__(self, number: int) -> bool:
        return number in self._records

    def __getitem__(self, number: int) -> BoundaryRecord:
        return self._records[number]

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: BoundaryRecord) -> None:
        """Make a new record the live one."""
        self._records[record.number] = record
        self.next_number = max(self.next_number, record.number + 1)
        self.live = record
        if len(self._records) > self._limit:
            for number in list(self._records)[: self._limit // 8]:
                if number != self.live.number:
                    del self._records[number]

    def go_to(self, record: BoundaryRecord) -> None:
        """Make an earlier record the live one."""
        self._records.setdefault(record.number, record)
        self.next_number = max(self.next_number, record.number + 1)
        self.live = record

    def ancestors(self) -> Iterator[BoundaryRecord]:
        """The live boundary, its parent, and so on to the root or to what was forgotten."""
        record: BoundaryRecord | None = self.live
        while record is not None:
            yield record
            record = self._records.get(record.parent)

    def target(
        self,
        *,
        count: int | None = None,
        boundary: int | None = None,
        before_ns: int | None = None,
    ) -> BoundaryRecord:
        """The ancestor that exactly one of these names. Raises InvalidArgument when none is."""
        given = [value for value in (count, boundary, before_ns) if value is not None]
        if len(given) != 1:
            raise InvalidArgument(
                "a rollback needs exactly one of count, boundary, before_ns and name; "
                f"got {len(given)}"
            )
        if count is not None and count < 1:
            raise InvalidArgument(f"rollback by {count} boundaries; expected 1 or more")
        for back, record in enumerate(self.ancestors()):
            if (
                back == count
                or record.number == boundary
                or (before_ns is not None and record.stamp_ns <= before_ns)
            ):
                return record
        raise InvalidArgument(
            f"rollback target (count={count}, boundary={boundary}, before_ns={before_ns}) is not "
            f"on the lineage of live boundary {self.live.number} (step {self.live.step}); "
            "use restore() for another branch"
        )
