# SPDX-License-Identifier: Apache-2.0
"""Which processors the replay thread and its helpers run on."""

from __future__ import annotations

import os

from .errors import InvalidArgument

VARIABLE = "FLASHRT_CPUS"


def processors_of(text: str) -> frozenset[int]:
    """The processors of a list as taskset takes it: "2,3", "4-7", "0,4-6".

    Raises InvalidArgument for anything else.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            begin, end = int(first), int(last if dash else first)
        except ValueError:
            raise InvalidArgument(
                f"processors {text!r}: {part!r} is no number or range; expected '2,3' or '4-7'"
            ) from None
        if not 0 <= begin <= end:
            raise InvalidArgument(f"processors {text!r}: {part!r} is no range that rises from 0")
        found.update(range(begin, end + 1))
    return frozenset(found)


def pin(processors: frozenset[int]) -> None:
    """Let this thread, and every thread that it starts from now on, run there and nowhere else.

    Raises InvalidArgument where this process may not use one of them.
    """
    allowed = os.sched_getaffinity(0)
    if not processors <= allowed:
        raise InvalidArgument(
            f"processors {sorted(processors - allowed)} are not this process's to use; it has "
            f"{sorted(allowed)}"
        )
    os.sched_setaffinity(0, processors)


def pin_from_environment() -> frozenset[int] | None:
    """`pin` to `$FLASHRT_CPUS`; None where it is not set."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    processors = processors_of(text)
    pin(processors)
    return processors
