# SPDX-License-Identifier: Apache-2.0
"""One MCAP file: by its index, or record by record where that is missing."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from mcap.exceptions import McapError
from mcap.reader import SeekingReader
from mcap.records import Channel, Message
from mcap.records import Schema as SchemaRecord
from mcap.stream_reader import StreamReader

from flashrt_ros.replay.definitions import Raw, Schema

# What a file that was cut or damaged makes the reader and its decompressors raise.
_DAMAGE: tuple[type[Exception], ...] = (
    McapError, ValueError, EOFError, RuntimeError, KeyError, struct.error, OSError,
)  # fmt: skip
try:
    import zstandard

    _DAMAGE += (zstandard.ZstdError,)
except ImportError:
    pass


class McapFile:
    """See `BagFile`. Chunks may be compressed with zstd or lz4; checksums are compared."""

    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        self._path = path
        self._indexed, self._topics = self._summary()

    def topics(self) -> dict[str, set[Schema]]:
        return self._topics

    def messages(self, topics: Collection[str], start_ns: int) -> Iterator[Raw]:
        wanted = set(topics)
        if not wanted & self._topics.keys():
            return
        records = self._by_index(wanted, start_ns) if self._indexed else self._in_file_order()
        for schema, channel, message in records:
            if channel.topic in wanted and message.log_time >= start_ns:
                yield Raw(channel.topic, _schema(schema), message.log_time, message.data)

    def _summary(self) -> tuple[bool, dict[str, set[Schema]]]:
        try:
            with self._path.open("rb") as stream:
                summary = SeekingReader(stream).get_summary()
        except _DAMAGE:
            summary = None
        found: dict[str, set[Schema]] = {}
        if summary is not None and (summary.chunk_indexes or not self._has_messages(summary)):
            for channel in summary.channels.values():
                schema = summary.schemas.get(channel.schema_id)
                found.setdefault(channel.topic, set()).add(_schema(schema))
            return True, found
        self.notes.append(
            f"{self._path.name} has no index: the recording was not ended in order, or it was "
            "written without one; it is read record by record"
        )
        for schema, channel, _ in self._in_file_order():
            found.setdefault(channel.topic, set()).add(_schema(schema))
        return False, found

    @staticmethod
    def _has_messages(summary: Any) -> bool:
        return summary.statistics is None or summary.statistics.message_count > 0

    def _by_index(self, topics: set[str], start_ns: int) -> Iterator[Any]:
        with self._path.open("rb") as stream:
            reader = SeekingReader(stream, validate_crcs=True)
            try:
                yield from reader.iter_messages(topics, starting_at=start_ns)
            except _DAMAGE as error:
                self._note(error)

    def _in_file_order(self) -> Iterator[Any]:
        schemas: dict[int, SchemaRecord] = {}
        channels: dict[int, Channel] = {}
        with self._path.open("rb") as stream:
            try:
                for record in StreamReader(stream, validate_crcs=True).records:
                    if isinstance(record, SchemaRecord):
                        schemas[record.id] = record
                    elif isinstance(record, Channel):
                        channels[record.id] = record
                    elif isinstance(record, Message):
                        channel = channels[record.channel_id]
                        yield schemas.get(channel.schema_id), channel, record
            except _DAMAGE as error:
                self._note(error)

    def _note(self, error: Exception) -> None:
        text = f"{self._path.name} is cut or damaged; what lies before that is read"
        detail = str(error) or type(error).__name__
        if not any(note.startswith(text) for note in self.notes):
            self.notes.append(f"{text} ({detail})")


def _schema(record: SchemaRecord | None) -> Schema:
    if record is None:
        return Schema("", "", "")
    return Schema(record.name, record.encoding, record.data.decode("utf-8", "replace"))
