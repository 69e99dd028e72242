# SPDX-License-Identifier: Apache-2.0
"""What is compared, and how a difference is named."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from flashrt_ros.replay.outcome import Difference
from flashrt_ros.replay.run import RunEvent
from flashrt_ros.ros.boundary_seal import combined, short

RAISING = ("RESTORE", "ROLLBACK", "RESET", "INTERRUPT", "CLOCK_JUMP")
"""Events that raise the epoch by one."""
QUIET = ("COMMIT", "SNAPSHOT", "INSTRUCTION", "DELETE", "FORK", "MOVE", "EVALUATE")
"""Events that leave it as it is."""


def actions_differ(
    event: RunEvent,
    joints: Sequence[str],
    expected: np.ndarray,
    actual: np.ndarray,
    tolerance: float,
) -> Difference | None:
    """The first point of a chunk that differs: bit for bit, or by more than a tolerance."""
    if expected.shape != actual.shape:
        return Difference(
            event.boundary, "action", "chunk", str(expected.shape), str(actual.shape),
            f"the chunk of boundary {event.boundary} has {len(actual)} points, recorded "
            f"{len(expected)}",
        )  # fmt: skip
    if tolerance > 0.0:
        differs = np.abs(actual - expected) > tolerance
    else:
        differs = actual.view(np.uint64) != expected.view(np.uint64)
    if not differs.any():
        return None
    point, joint = (int(each) for each in np.argwhere(differs)[0])
    there, here = expected[point, joint], actual[point, joint]
    return Difference(
        event.boundary, "action", joints[joint], repr(float(there)), repr(float(here)),
        f"boundary {event.boundary}: the action of '{joints[joint]}', point {point}, is "
        f"{here!r}, recorded {there!r} (difference {abs(here - there):.3g}); {int(differs.sum())} "
        f"of {differs.size} values differ",
    )  # fmt: skip


def chunk_digest(chunk: np.ndarray) -> str:
    """BLAKE2b-128 (hex) of a policy's chunk, as a COMMIT carries it."""
    return hashlib.blake2b(np.ascontiguousarray(chunk).data, digest_size=16).hexdigest()


def chunk_differs(event: RunEvent, expected: str, actual: str) -> Difference:
    """The policy's chunk is another, in points that the bag does not have one by one."""
    return Difference(
        event.boundary, "action", "chunk", expected, actual,
        f"boundary {event.boundary}: the policy's chunk is not the recorded one, by its digest",
    )  # fmt: skip


def states_differ(event: RunEvent, digests: Mapping[str, str]) -> Difference | None:
    """The first buffer that differs, where the event says what the buffers were."""
    recorded = event.detail.get("buffers", {})
    for name, digest in digests.items():
        if name in recorded and recorded[name] != short(digest):
            others = sum(
                other in recorded and recorded[other] != short(text)
                for other, text in digests.items()
            )
            return Difference(
                event.boundary, "buffer", name, recorded[name], short(digest),
                f"boundary {event.boundary}, after {event.kind}: buffer '{name}' differs from the "
                f"recorded state ({others} of {len(digests)} buffers do)",
            )  # fmt: skip
    if event.state_digest and recorded.keys() in (digests.keys(), set()):
        whole = combined(digests)
        if whole != event.state_digest:
            return Difference(
                event.boundary, "state", "state_digest", event.state_digest, whole,
                f"boundary {event.boundary}, after {event.kind}: the state differs from the "
                "recorded one",
            )  # fmt: skip
    return None


def verb_differs(event: RunEvent, what: str, expected: object, actual: object) -> Difference:
    """An event says something that the replay cannot come to."""
    name = f" '{event.name}'" if event.name else ""
    return Difference(
        event.boundary, "verb", event.kind, str(expected), str(actual),
        f"event {event.index}, {event.kind}{name}: {what} is {expected}, the replay has {actual}",
    )  # fmt: skip


def broken_seal(event: RunEvent) -> Difference:
    """An event is not as the node sent it, though the replay could not tell by its effect."""
    return Difference(
        event.boundary, "verb", event.kind, "the digest that it carries", "another",
        f"event {event.index}, {event.kind}, was changed after it was recorded: it does not have "
        "the digest that it carries",
    )  # fmt: skip


def lost(event: RunEvent, last: RunEvent, what: str) -> Difference:
    """Events are missing, and with them what led to this one."""
    name = f"events {last.index + 1} to {event.index - 1}"
    return Difference(
        event.boundary, "lost", name, f"event {last.index + 1}", f"event {event.index}",
        f"{name} are not in the bag, and with them what led from boundary {last.boundary} to event "
        f"{event.index} ({event.kind}, boundary {event.boundary}): {what}",
    )  # fmt: skip
