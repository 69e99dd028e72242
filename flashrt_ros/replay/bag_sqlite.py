# SPDX-License-Identifier: Apache-2.0
"""One SQLite3 file of a rosbag2 bag."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

from flashrt_ros.replay.definitions import Raw, Schema
from flashrt_ros.replay.run import CannotReplay


class SqliteFile:
    """See `BagFile`. Of a file that was cut the rows before the first missing page are read."""

    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        self._path = path
        self._cut = self._is_cut()
        if self._cut:
            self.notes.append(
                f"{path.name} is cut or damaged; what lies before that is read (the file is "
                "shorter than its header says)"
            )
        try:
            self._topics = self._read_topics()
        except sqlite3.DatabaseError as error:
            raise CannotReplay(f"{path} cannot be read as a rosbag2 database: {error}") from error

    def topics(self) -> dict[str, set[Schema]]:
        found: dict[str, set[Schema]] = {}
        for name, schema in self._topics.values():
            found.setdefault(name, set()).add(schema)
        return found

    def messages(self, topics: Collection[str], start_ns: int) -> Iterator[Raw]:
        ids = [key for key, (name, _) in self._topics.items() if name in topics]
        if not ids:
            return
        # The index on timestamp may be what is missing: a cut file is read in the rows' order.
        order = "id" if self._cut else "timestamp, id"
        marks = ", ".join("?" * len(ids))
        query = (
            f"SELECT topic_id, timestamp, data FROM messages NOT INDEXED "
            f"WHERE topic_id IN ({marks}) AND timestamp >= ? ORDER BY {order}"
            if self._cut
            else f"SELECT topic_id, timestamp, data FROM messages "
            f"WHERE topic_id IN ({marks}) AND timestamp >= ? ORDER BY {order}"
        )
        with closing(self._connect()) as database:
            try:
                for key, stamp, data in database.execute(query, (*ids, start_ns)):
                    name, schema = self._topics[key]
                    yield Raw(name, schema, stamp, data)
            except sqlite3.DatabaseError as error:
                text = f"{self._path.name} is cut or damaged; what lies before that is read"
                if not any(note.startswith(text) for note in self.notes):
                    self.notes.append(f"{text} ({error})")

    def _read_topics(self) -> dict[int, tuple[str, Schema]]:
        with closing(self._connect()) as database:
            definitions = {}
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
            if "message_definitions" in tables:  # rosbag2 writes them since Iron
                rows = database.execute(
                    "SELECT topic_type, encoding, encoded_message_definition "
                    "FROM message_definitions"
                )
                definitions = {kind: (encoding, text) for kind, encoding, text in rows}
            topics = database.execute("SELECT id, name, type FROM topics").fetchall()
        return {
            key: (name, Schema(kind, *definitions.get(kind, ("", ""))))
            for key, name, kind in topics
        }

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(f"file:{self._path.resolve()}?mode=ro", uri=True)
        # SQLite refuses a file that is shorter than its header says, except for repair.
        database.execute("PRAGMA writable_schema=ON")
        return database

    def _is_cut(self) -> bool:
        with self._path.open("rb") as stream:
            header = stream.read(100)
        if header[:16] != b"SQLite format 3\0":
            raise CannotReplay(f"{self._path} is no SQLite database")
        page = int.from_bytes(header[16:18], "big")
        pages = int.from_bytes(header[28:32], "big")
        return self._path.stat().st_size < pages * (65536 if page == 1 else page)
