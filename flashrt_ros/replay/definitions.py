# SPDX-License-Identifier: Apache-2.0
"""Messages of a bag as objects, by the definitions that the bag itself carries.

A bag may be older or newer than this package. What decides is whether the fields that a replay
reads are there with the types that it expects: then it is read by their names, else refused with
the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

import flashrt_ros
from flashrt_ros.replay.run import CannotReplay

_TIME = "builtin_interfaces/msg/Time"
_HEADER = "std_msgs/msg/Header"

BOUNDARY = "flashrt_ros/msg/Boundary"
CHUNK = "flashrt_ros/msg/ActionChunk"
RUN_INFO = "flashrt_ros/msg/RunInfo"

REQUIRED: dict[str, dict[str, str]] = {
    BOUNDARY: {
        "header": _HEADER, "event": "uint8", "event_index": "uint64", "session": "string",
        "boundary": "uint64", "parent": "int64", "step": "uint64", "epoch": "uint64",
        "seed": "uint64", "instruction": "string", "capsule": "string", "name": "string",
        "motion": "uint8", "inputs_digest": "string", "input_names": "string[]",
        "input_stamps": f"{_TIME}[]", "input_digests": "string[]", "state_digest": "string",
        "request_id": "string", "detail": "string",
    },
    CHUNK: {
        "header": _HEADER, "epoch": "uint64", "sequence": "uint64", "boundary": "uint64",
        "step": "uint64", "instruction": "string", "joint_names": "string[]",
        "points": "trajectory_msgs/msg/JointTrajectoryPoint[]", "input_names": "string[]",
        "input_stamps": f"{_TIME}[]", "hold": "bool", "inference_duration": "float64",
        "execution": "string", "frozen_points": "uint32", "limited_points": "uint32",
    },
    RUN_INFO: {
        "session": "string", "seed": "uint64", "model": "string", "model_path": "string",
        "fingerprint_json": "string", "instruction": "string", "cameras": "string[]",
        "camera_heights": "uint32[]", "camera_widths": "uint32[]", "joint_names": "string[]",
        "chunk_length": "uint32", "chunk_dt": "float64", "tick_period": "float64",
        "input_names": "string[]", "input_topics": "string[]", "input_types": "string[]",
        "contract": "string", "parameters_json": "string", "software_json": "string",
    },
    "sensor_msgs/msg/Image": {
        "header": _HEADER, "height": "uint32", "width": "uint32", "encoding": "string",
        "is_bigendian": "uint8", "step": "uint32", "data": "uint8[]",
    },
    "sensor_msgs/msg/CompressedImage": {
        "header": _HEADER, "format": "string", "data": "uint8[]",
    },
    "sensor_msgs/msg/JointState": {
        "header": _HEADER, "name": "string[]", "position": "float64[]",
        "velocity": "float64[]", "effort": "float64[]",
    },
    "geometry_msgs/msg/WrenchStamped": {
        "header": _HEADER, "wrench": "geometry_msgs/msg/Wrench",
    },
    "std_msgs/msg/Float64MultiArray": {
        "layout": "std_msgs/msg/MultiArrayLayout", "data": "float64[]",
    },
}  # fmt: skip
"""The fields that a replay reads, by type."""


class Schema(NamedTuple):
    """A message type as one file of a bag defines it; `text` is empty in older SQLite bags."""

    type: str
    encoding: str
    text: str


class Raw(NamedTuple):
    """A message as it came over the wire (CDR), and when it was recorded, ns."""

    topic: str
    schema: Schema
    log_ns: int
    data: bytes


@dataclass(frozen=True)
class Definition:
    """A type's fields (name to type) and constants (name to value)."""

    fields: dict[str, str]
    constants: dict[str, str]


class Decoder:
    """Decodes raw messages by the definitions in the bag, after checking them once."""

    def __init__(self) -> None:
        self._stores: dict[Schema, Typestore] = {}
        self._definitions: dict[Schema, Definition] = {}

    def decode(self, raw: Raw) -> Any:
        """The message, its fields by name.

        Raises:
            CannotReplay: the type's definition lacks what is read of it, or the bytes don't fit it.
        """
        store = self._store(raw.schema)
        try:
            return _deserialized(store, raw)
        except Exception as error:  # rosbags has no error of its own for every kind of nonsense
            raise CannotReplay(
                f"a message on {raw.topic} recorded at {raw.log_ns} ns is no "
                f"{raw.schema.type} as the bag defines it: {error}"
            ) from error

    def definition(self, schema: Schema) -> Definition:
        """Fields and constants of a type. Raises CannotReplay as `decode`."""
        self._store(schema)
        return self._definitions[schema]

    def _store(self, schema: Schema) -> Typestore:
        store = self._stores.get(schema)
        if store is None:
            store, definition = _typestore(schema)
            _check(schema.type, definition)
            self._stores[schema], self._definitions[schema] = store, definition
        return store


def _deserialized(store: Typestore, raw: Raw) -> Any:
    """As `Typestore.deserialize_cdr`, but bytes after the message are passed over, as DDS does.

    Fast DDS sizes a buffer before it knows that empty sequences need no alignment; rclpy's
    serialize_message hands out all of it.
    """
    if raw.data[:2] not in (b"\x00\x00", b"\x00\x01"):
        raise ValueError(f"encapsulation {raw.data[:2].hex()}, expected 0000 or 0001")
    kind = store.get_msgdef(raw.schema.type)
    read = kind.deserialize_cdr_le if raw.data[1] else kind.deserialize_cdr_be
    message, _ = read(raw.data[4:], 0, kind.cls, store)
    return message


@lru_cache(maxsize=64)  # parsing takes longer than reading a small bag
def _typestore(schema: Schema) -> tuple[Typestore, Definition]:
    if not schema.text:
        return _installed(schema.type)
    store = get_typestore(Stores.EMPTY)
    try:
        if schema.encoding == "ros2idl" or schema.text.startswith("=" * 80 + "\nIDL: "):
            types = get_types_from_idl(schema.text)
        else:
            types = get_types_from_msg(schema.text, schema.type)
        store.register(types)
        return store, _definition(store, schema.type)
    except Exception as error:  # the grammar's errors are of several kinds
        raise CannotReplay(
            f"the bag's definition of {schema.type} cannot be read: {error}"
        ) from None


def _installed(kind: str) -> tuple[Typestore, Definition]:
    """For bags without definitions: those of this package and the common interfaces."""
    store = get_typestore(Stores.LATEST)
    types: dict[str, Any] = {}
    for path in sorted(_message_folder().glob("*.msg")):
        types |= get_types_from_msg(path.read_text("utf-8"), f"flashrt_ros/msg/{path.stem}")
    store.register(types)
    if kind not in store.fielddefs:
        raise CannotReplay(f"the bag carries no definition of {kind}, and there is none here")
    return store, _definition(store, kind)


def _message_folder() -> Path:
    try:
        from ament_index_python.packages import get_package_share_directory

        return Path(get_package_share_directory("flashrt_ros")) / "msg"
    except (ImportError, LookupError):
        return Path(flashrt_ros.__file__).parent.parent / "msg"


def _definition(store: Typestore, kind: str) -> Definition:
    text, _ = store.generate_msgdef(kind, ros_version=2)
    fields: dict[str, str] = {}
    constants: dict[str, str] = {}
    for line in text.split("=" * 80)[0].splitlines():
        head, _, rest = line.strip().partition(" ")
        if not rest:
            continue
        name, equals, value = rest.partition("=")
        if equals:
            constants[name.strip()] = value.strip()
        else:
            fields[rest.split()[0]] = _full(head)
    return Definition(fields, constants)


def _full(kind: str) -> str:
    """`std_msgs/Header` as `std_msgs/msg/Header`."""
    package, slash, name = kind.partition("/")
    return f"{package}/msg/{name}" if slash and not name.startswith("msg/") else kind


def _check(kind: str, definition: Definition) -> None:
    problems = []
    for name, expected in REQUIRED.get(kind, {}).items():
        actual = definition.fields.get(name)
        if actual is None:
            problems.append(f"it has no field '{name}' ({expected})")
        elif actual != expected:
            problems.append(f"'{name}' is {actual}, expected {expected}")
    if problems:
        raise CannotReplay(
            f"the bag's {kind} is another message than this package's: {'; '.join(problems)}; "
            "replay it with the version that recorded it"
        )
