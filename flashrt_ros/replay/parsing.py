# SPDX-License-Identifier: Apache-2.0
"""Bags to runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.replay.bag import Bag
from flashrt_ros.replay.definitions import BOUNDARY, CHUNK, RUN_INFO, Decoder, Schema
from flashrt_ros.replay.run import (
    MOTIONS,
    CannotReplay,
    ReadInput,
    Run,
    RunChunk,
    RunEvent,
    RunInfo,
)
from flashrt_ros.ros import boundary_seal

_TOPICS = {"run_info": RUN_INFO, "boundary": BOUNDARY, "action_chunk": CHUNK}


def open_run(path: str | Path, node: str | None = None, session: str | None = None) -> Run:
    """The run of a bag: a folder with metadata.yaml, or one .mcap or .db3 file.

    Args:
        path: of the bag.
        node: name of the policy node; needed where a bag has several.
        session: id, or its beginning; needed where the node had several.

    Raises:
        CannotReplay: what is missing, or which nodes or sessions there are to choose from.
    """
    bag, decoder = Bag(path), Decoder()
    topics = bag.topics()
    name = _choose_node(topics, node, bag.path)
    _check_topics(topics, name, bag.path)
    infos: dict[str, RunInfo] = {}
    events: dict[str, dict[int, RunEvent]] = {}
    chunks: list[RunChunk] = []
    names = {f"{name}/{topic}": kind for topic, kind in _TOPICS.items()}
    for raw in bag.messages(names):
        if raw.schema.type != names[raw.topic]:
            raise CannotReplay(
                f"{raw.topic} is of type {raw.schema.type}, expected {names[raw.topic]}"
            )
        message = decoder.decode(raw)
        try:
            if raw.schema.type == RUN_INFO:
                infos[message.session] = _info(message)
            elif raw.schema.type == BOUNDARY:
                event = to_event(message, raw.log_ns, decoder.definition(raw.schema).constants)
                events.setdefault(message.session, {}).setdefault(event.index, event)
            else:
                chunks.append(to_chunk(message, raw.log_ns))
        except ValueError as error:  # arrays that belong together and differ in length, say
            raise CannotReplay(
                f"a message on {raw.topic} recorded at {raw.log_ns} ns makes no sense: {error}"
            ) from error
    chosen = _choose_session(infos, events, session, name)
    ordered = tuple(events[chosen][index] for index in sorted(events[chosen]))
    notes = [*bag.notes, *_gaps(ordered)]
    return Run(
        path=bag.path,
        node=name,
        info=infos[chosen],
        events=ordered,
        chunks=_matched(ordered, chunks),
        duration_s=_duration(ordered),
        notes=tuple(notes),
    )


def policy_nodes(topics: dict[str, set[Schema]]) -> list[str]:
    """Full names of the nodes that said of themselves what a replay needs."""
    return sorted(
        name.removesuffix("/run_info")
        for name, schemas in topics.items()
        if name.endswith("/run_info") and any(schema.type == RUN_INFO for schema in schemas)
    )


def _choose_node(topics: dict[str, set[Schema]], node: str | None, path: Path) -> str:
    names = policy_nodes(topics)
    if not names:
        raise CannotReplay(
            f"{path} has no topic of type {RUN_INFO}: record ~/run_info of the policy node too; "
            f"it has {', '.join(sorted(topics)) or 'no topics'}"
        )
    if node is None:
        matching = names
    else:
        full = node if node.startswith("/") else f"/{node}"
        matching = [name for name in names if name == full] or [
            name for name in names if name.endswith(full)
        ]
    if len(matching) == 1:
        return matching[0]
    asked = "none is chosen" if node is None else f"{len(matching)} are called '{node}'"
    raise CannotReplay(
        f"{path} has {len(names)} policy nodes ({', '.join(names)}) and {asked}: name one (--node)"
    )


def _check_topics(topics: dict[str, set[Schema]], node: str, path: Path) -> None:
    missing = [f"{node}/{topic}" for topic in _TOPICS if f"{node}/{topic}" not in topics]
    if missing:
        raise CannotReplay(
            f"{path} lacks {', '.join(missing)}; it has {', '.join(sorted(topics))}: "
            "see docs/replay.md for what must be recorded"
        )


def _choose_session(
    infos: dict[str, RunInfo],
    events: dict[str, dict[int, RunEvent]],
    session: str | None,
    node: str,
) -> str:
    known = [each for each in events if each in infos]
    nameless = [each for each in events if each not in infos]
    if session is not None:
        matching = [each for each in events if each.startswith(session)]
    else:
        matching = known or nameless
    if not events:
        raise CannotReplay(f"the bag has no boundary event of {node}: the policy never ticked")
    if len(matching) != 1:
        listed = ", ".join(f"{each} ({len(events[each])} events)" for each in events)
        raise CannotReplay(
            f"{node} had {len(events)} sessions ({listed}) and {len(matching)} of them are meant: "
            "name one (--session)"
        )
    if matching[0] not in infos:
        raise CannotReplay(
            f"the bag has no run info of session {matching[0]} of {node}: it is latched, so record "
            f"{node}/run_info with durability transient_local"
        )
    return matching[0]


def _gaps(events: Iterable[RunEvent]) -> Iterator[str]:
    last: RunEvent | None = None
    for event in events:
        if last is not None and event.index != last.index + 1:
            yield (
                f"events {last.index + 1} to {event.index - 1} are lost (between boundaries "
                f"{last.boundary} and {event.boundary})"
            )
        last = event


def _duration(events: tuple[RunEvent, ...]) -> float:
    stamps = np.array([event.stamp_ns for event in events], dtype=np.int64)
    steps = np.diff(stamps)
    return float(steps[steps > 0].sum() * 1e-9)


def _matched(events: tuple[RunEvent, ...], chunks: list[RunChunk]) -> dict[int, RunChunk]:
    """Boundary to its chunk. A bag may have another session's chunks with the same numbers: what
    they were computed from tells them apart."""
    commits = {
        (event.boundary, event.step, tuple(item.stamp_ns for item in event.inputs)): event.boundary
        for event in events
        if event.kind == "COMMIT"
    }
    logged = {event.boundary: event.log_ns for event in events if event.kind == "COMMIT"}
    found: dict[int, RunChunk] = {}
    for chunk in chunks:
        number = commits.get((chunk.boundary, chunk.step, tuple(chunk.input_stamps.values())))
        if number is None:
            continue
        older = found.get(number)
        if older is None or _distance(chunk, logged[number]) < _distance(older, logged[number]):
            found[number] = chunk
    return found


def _distance(chunk: RunChunk, log_ns: int) -> int:
    return abs(chunk.log_ns - log_ns)


def _ns(stamp: Any) -> int:
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def _json(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise CannotReplay(f"{what} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CannotReplay(f"{what} is {text!r}, expected a JSON object")
    return value


def _info(message: Any) -> RunInfo:
    sizes = zip(message.camera_heights, message.camera_widths, strict=True)
    return RunInfo(
        session=message.session,
        seed=int(message.seed),
        model=message.model,
        model_path=message.model_path,
        fingerprint={
            name: str(value)
            for name, value in _json(message.fingerprint_json, "fingerprint_json").items()
        },
        instruction=message.instruction,
        cameras={
            name: (int(height), int(width))
            for name, (height, width) in zip(message.cameras, sizes, strict=True)
        },
        joint_names=tuple(message.joint_names),
        chunk_length=int(message.chunk_length),
        chunk_dt=float(message.chunk_dt),
        tick_period=float(message.tick_period),
        input_topics=dict(zip(message.input_names, message.input_topics, strict=True)),
        input_types=dict(zip(message.input_names, message.input_types, strict=True)),
        contract=message.contract,
        parameters=_json(message.parameters_json, "parameters_json"),
        software=_json(message.software_json, "software_json"),
    )


def to_event(message: Any, log_ns: int, constants: dict[str, str]) -> RunEvent:
    """A msg/Boundary; constants: those of its definition, name to number."""
    kinds = {int(value): name for name, value in constants.items()}
    motion = int(message.motion)
    try:
        detail = _json(message.detail, "detail")
    except CannotReplay:
        detail = {}  # the seal will tell
    return RunEvent(
        kind=kinds.get(int(message.event), f"EVENT_{message.event}"),
        index=int(message.event_index),
        stamp_ns=_ns(message.header.stamp),
        log_ns=log_ns,
        boundary=int(message.boundary),
        parent=int(message.parent),
        step=int(message.step),
        epoch=int(message.epoch),
        seed=int(message.seed),
        instruction=message.instruction,
        capsule=message.capsule,
        name=message.name,
        motion=MOTIONS[motion] if motion < len(MOTIONS) else f"MOTION_{motion}",
        inputs_digest=message.inputs_digest,
        inputs=tuple(
            ReadInput(name, _ns(stamp), digest)
            for name, stamp, digest in zip(
                message.input_names, message.input_stamps, message.input_digests, strict=False
            )
        ),
        state_digest=message.state_digest,
        request_id=message.request_id,
        detail=detail,
        sealed=boundary_seal.is_sound(message),
    )


def to_chunk(message: Any, log_ns: int) -> RunChunk:
    """A msg/ActionChunk."""
    points = message.points
    starts = [point.time_from_start for point in points]
    return RunChunk(
        boundary=int(message.boundary),
        step=int(message.step),
        epoch=int(message.epoch),
        sequence=int(message.sequence),
        stamp_ns=_ns(message.header.stamp),
        log_ns=log_ns,
        instruction=message.instruction,
        positions=np.array([point.positions for point in points], dtype=np.float64),
        times=np.array([_ns(start) * 1e-9 for start in starts], dtype=np.float64),
        hold=bool(message.hold),
        inference_s=float(message.inference_duration),
        execution=message.execution,
        frozen_points=int(message.frozen_points),
        limited_points=int(message.limited_points),
        input_stamps={
            name: _ns(stamp)
            for name, stamp in zip(message.input_names, message.input_stamps, strict=True)
        },
    )
