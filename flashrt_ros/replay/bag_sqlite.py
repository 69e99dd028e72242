# SPDX-License-Identifier: Apache-2.0
"""One SQLite3 file of a rosbag2 bag."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

from flashrt_ros.replay.definitions import Raw, Schema
from flashrt_ros.replay.run import CannotReplay


class SqliteFile:
    """See `BagFile`. Of a file that was cut the rows before the first missing page are read."""

    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        self._name = path.name
        self._path = path
        self._missing = b""
        size = _size_by_header(path)
        self._cut = path.stat().st_size < size
        if self._cut:
            self.notes.append(
                f"{path.name} is cut or damaged; what lies before that is read (it has "
                f"{path.stat().st_size} of {size} bytes)"
            )
            self._fill(size)
        elif _journal(path).exists():
            self._copy(_journal(path))
            self.notes.append(f"{path.name} was not closed: its write-ahead log is read with it")
        try:
            self._topics = self._read_topics()
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:  # text that is none, too
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
        hint, order = ("NOT INDEXED", "id") if self._cut else ("", "timestamp, id")
        marks = ", ".join("?" * len(ids))
        query = (
            f"SELECT topic_id, timestamp, data FROM messages {hint} "
            f"WHERE topic_id IN ({marks}) AND timestamp >= ? ORDER BY {order}"
        )
        with closing(self._connect()) as database:
            try:
                for key, stamp, data in database.execute(query, (*ids, start_ns)):
                    if self._missing and self._missing in data:
                        return  # the rest of this row is not there
                    name, schema = self._topics[key]
                    yield Raw(name, schema, stamp, data)
            except (sqlite3.DatabaseError, ValueError, TypeError, KeyError) as error:
                text = f"{self._name} is cut or damaged; what lies before that is read"
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
        # A name may have what a URI gives a meaning to: '?', '#', '%'.
        return sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True)

    def _fill(self, size: int) -> None:
        """Work on a copy whose missing pages say so.

        SQLite refuses a file that is shorter than its header says, and with the pragma for repair
        it takes missing pages for zeros: the end of an image would be black and nobody would know.
        """
        self._missing = secrets.token_bytes(16)
        self._copy()
        with self._path.open("ab") as stream:
            while (left := size - stream.tell()) > 0:
                stream.write((self._missing * 4096)[:left])

    def _copy(self, *others: Path) -> None:
        """Work on a copy: SQLite writes beside a database that was not closed."""
        folder = Path(tempfile.mkdtemp(prefix="flashrt-bag-"))
        weakref.finalize(self, shutil.rmtree, folder, True)
        for path in (self._path, *others):
            shutil.copyfile(path, folder / path.name)
        self._path = folder / self._path.name


def _journal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _size_by_header(path: Path) -> int:
    """Bytes that a database should have (source: sqlite.org/fileformat2.html, section 1.3).

    Raises:
        CannotReplay: it is no SQLite database.
    """
    with path.open("rb") as stream:
        header = stream.read(100)
    if header[:16] != b"SQLite format 3\0" or len(header) < 100:
        raise CannotReplay(f"{path} is no SQLite database")
    page = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
