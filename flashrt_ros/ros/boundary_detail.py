# SPDX-License-Identifier: Apache-2.0
"""What a boundary event says of the verb behind it: its id, arguments and report.

`Boundary.detail` is a JSON object with these keys, each only where it applies:

- `verb`, `arguments`: where a service or an action caused it, its name and the request's fields;
- `capsule`: of an event about a capsule, its `boundary`, `step`, `session`, `parent` (a capsule's
  id), `tags` and `tier`;
- `origin`, `ablated`: of the root that a foreign or ablated restore makes, "<session>:<boundary>";
- `report`: of restore, rollback and reset, bytes and rows copied and shared, steps not recomputed.

What only the event's kind has (a run's id, an evaluation's branches) stands beside them.
"""

from __future__ import annotations

import json
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any

from flashrt_ros.msg import Boundary
from flashrt_ros.policies import EngineEvent

_APPLYING: ContextVar[Applying | None] = ContextVar("applying", default=None)
_LONGEST = 64  # items of a sequence that are written out


@dataclass
class Applying:
    """The verb that the replay thread is applying, for the events that it causes there.

    with Applying("restore", "id-7", {"capsule": "here"}):
        session.restore("here")
    """

    verb: str
    request_id: str
    arguments: dict[str, Any]
    _token: Token[Applying | None] | None = field(default=None, repr=False)

    def __enter__(self) -> Applying:
        self._token = _APPLYING.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _APPLYING.reset(self._token)


def arguments_of(request: Any) -> dict[str, Any]:
    """The fields of a request as JSON values, without its id. Times and durations in ns.

    Sequences of messages (images, say) and long ones are given by their length.
    """
    if request is None:
        return {}
    fields = request.get_fields_and_field_types()
    return {name: _value(getattr(request, name)) for name in fields if name != "request_id"}


def _value(value: Any) -> Any:
    if isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "sec"):
        return value.sec * 1_000_000_000 + value.nanosec
    if hasattr(value, "get_fields_and_field_types"):
        return arguments_of(value)
    items = list(value)
    if len(items) > _LONGEST or any(hasattr(item, "header") for item in items):
        return len(items)
    return [_value(item) for item in items]


def describe(message: Boundary, event: EngineEvent) -> Boundary:
    """Write `request_id` and `detail` of an event that is being told on the replay thread."""
    detail = dict(event.detail)
    message.request_id = event.request_id
    applying = _APPLYING.get()
    if applying is not None and not event.request_id:
        message.request_id = applying.request_id
        detail |= {"verb": applying.verb, "arguments": applying.arguments}
    source = event.source
    if source is not None and source.capsule is not None:
        capsule = source.capsule
        detail["capsule"] = {
            "boundary": capsule.boundary,
            "step": capsule.step,
            "session": capsule.session,
            "parent": capsule.parent,
            "tags": list(capsule.tags),
            "tier": str(capsule.tier),
        }
    if source is not None and source.report is not None:
        report, record = source.report, source.record
        detail["report"] = {
            "bytes_copied": report.bytes_copied,
            "bytes_shared": report.bytes_shared,
            "rows_copied": report.rows_copied,
            "rows_shared": report.rows_shared,
            "steps_not_recomputed": report.steps_not_recomputed,
        }
        if record.parent == -1 and record.origin:
            detail |= {"origin": record.origin, "ablated": record.ablated}
    message.detail = json.dumps(detail, sort_keys=True) if detail else ""
    return message
