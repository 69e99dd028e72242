# SPDX-License-Identifier: Apache-2.0
"""What a Boundary message says beyond its fields, so that a bag can be replayed and trusted.

Reads messages of rclpy and of the rosbags library alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flashrt_ros.policies.output import EngineEvent
from flashrt_ros.runtime import Session
from flashrt_ros.runtime.transfer import buffer_digests

_MOVES = ("RESTORE", "ROLLBACK", "RESET")
_SEAL = "seal"
_FIELDS = (
    "event", "event_index", "session", "boundary", "parent", "step", "epoch", "seed",
    "instruction", "capsule", "name", "motion", "inputs_digest", "state_digest", "request_id",
)  # fmt: skip
_LISTS = ("input_names", "input_digests")


def complete(message: Any, event: EngineEvent, session: Session, every: int) -> Any:
    """Add what only a replay reads, then seal the message: nothing of it may change afterwards.

    `detail` gets, beside what it has: `capsule.instruction` of the capsule that a verb restored or
    branched from, `restored` (the buffers that a partial restore put back), and where a state
    digest is asked for `buffers`, the first 16 digits of each buffer's SHA-256.

    Args:
        message: a msg/Boundary of the event.
        session: the engine's, at the boundary of the event.
        every: state digests every so many ticks and after verbs that changed the state; 0: never.
    """
    detail = json.loads(message.detail) if message.detail else {}
    source = event.source
    if source is not None and source.capsule is not None and event.kind in (*_MOVES, "FORK"):
        info = source.capsule
        detail["capsule"] = {
            "session": info.session,
            "boundary": info.boundary,
            "step": info.step,
            "parent": info.parent,
            **detail.get("capsule", {}),
            "instruction": str(info.state("instruction", "")),
        }
    if source is not None and source.report is not None and source.record.ablated:
        detail["restored"] = list(source.report.restored)
    if _digest_is_asked(event.kind, event.step, every):
        digests = buffer_digests(session.arena, dict(session.live.rows))
        message.state_digest = combined(digests)
        detail["buffers"] = {name: short(text) for name, text in digests.items()}
    message.detail = json.dumps(detail, sort_keys=True) if detail else ""
    return seal(message)


def _digest_is_asked(kind: str, step: int, every: int) -> bool:
    if every == 0:
        return False
    return kind in (*_MOVES, "INSTRUCTION") or (kind == "COMMIT" and step % every == 0)


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
