# SPDX-License-Identifier: Apache-2.0
"""What a Boundary message says beyond its fields, so that a bag can be replayed and trusted.

Reads messages of rclpy and of the rosbags library alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flashrt_ros.runtime import Event, Session
from flashrt_ros.runtime.transfer import buffer_digests

_MOVES = ("RESTORE", "ROLLBACK", "RESET")
_SEAL = "seal"
_FIELDS = (
    "event", "event_index", "session", "boundary", "parent", "step", "epoch", "seed",
    "instruction", "capsule", "name", "motion", "inputs_digest", "state_digest", "request_id",
)  # fmt: skip
_LISTS = ("input_names", "input_digests")


def capsule_detail(source: Event | None) -> dict[str, Any]:
    """Which state a verb put back or branched from; for restores, also what was left out.

    `capsule`: session, boundary, step, instruction, parent of the capsule. `ablated`: the buffers
    that a partial restore put back, and only there.
    """
    if source is None or source.capsule is None or source.kind.name not in (*_MOVES, "FORK"):
        return {}
    info = source.capsule
    detail: dict[str, Any] = {
        "capsule": {
            "session": info.session,
            "boundary": info.boundary,
            "step": info.step,
            "instruction": str(info.state("instruction", "")),
            "parent": info.parent,
        }
    }
    if source.record.ablated and source.report is not None:
        detail["ablated"] = list(source.report.restored)
    return detail


def state_detail(kind: str, step: int, session: Session, every: int) -> tuple[str, dict[str, Any]]:
    """SHA-256 of the live state (hex) and, by buffer, the first 16 digits of its own.

    Every `every` ticks and after each verb that changed the state; else, and with 0, empty.
    """
    asked = kind in (*_MOVES, "INSTRUCTION") or (kind == "COMMIT" and step % max(every, 1) == 0)
    if every == 0 or not asked:
        return "", {}
    digests = buffer_digests(session.arena, dict(session.live.rows))
    return combined(digests), {"buffers": {name: short(text) for name, text in digests.items()}}


def combined(digests: Mapping[str, str]) -> str:
    """`Session.digest` from the digests of its buffers, SHA-256 hex each."""
    lines = "".join(f"{name} {digest}\n" for name, digest in digests.items())
    return hashlib.sha256(lines.encode()).hexdigest()


def short(digest: str) -> str:
    """As much of a digest as a message carries."""
    return digest[:16]


def seal(message: Any) -> Any:
    """Put a digest over all of the message into its `detail`; returns the message.

    A bit that changes afterwards, in a bag say, is so found even where the replay would not
    notice.
    """
    detail = json.loads(message.detail) if message.detail else {}
    message.detail = json.dumps(
        detail | {_SEAL: _digest(message, _canonical(detail))}, sort_keys=True
    )
    return message


def is_sound(message: Any) -> bool | None:
    """Whether the message is as it was sealed; None where it carries no seal."""
    try:
        detail = json.loads(message.detail) if message.detail else {}
        carried = detail.pop(_SEAL, None) if isinstance(detail, dict) else None
    except ValueError:
        return False
    if carried is None:
        return None
    return bool(carried == _digest(message, _canonical(detail)))


def _canonical(detail: dict[str, Any]) -> str:
    return json.dumps(detail, sort_keys=True)


def _digest(message: Any, detail: str) -> str:
    stamps = [(message.header.stamp.sec, message.header.stamp.nanosec)]
    stamps += [(stamp.sec, stamp.nanosec) for stamp in message.input_stamps]
    parts = [str(getattr(message, name)) for name in _FIELDS]
    parts += ["\x1f".join(getattr(message, name)) for name in _LISTS]
    parts += [message.header.frame_id, repr([(int(s), int(n)) for s, n in stamps]), detail]
    return hashlib.blake2b("\x1e".join(parts).encode(), digest_size=8).hexdigest()
