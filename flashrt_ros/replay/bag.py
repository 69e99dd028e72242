# SPDX-License-Identifier: Apache-2.0
"""Reads bags, also those that were never finished: MCAP and SQLite3, split, compressed, cut.

rosbag2's own reader and that of `rosbags` want metadata.yaml and an index. After an incident there
is neither: the machine lost power. What is there is read up to where it ends, and `notes` says so.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml
import zstandard

from flashrt_ros.replay.bag_mcap import McapFile
from flashrt_ros.replay.bag_sqlite import SqliteFile
from flashrt_ros.replay.definitions import Raw, Schema
from flashrt_ros.replay.run import CannotReplay

_METADATA = "metadata.yaml"
_ZSTD_SUFFIXES = (".zstd", ".zst")
_SUFFIXES = (".mcap", ".db3")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class BagFile(Protocol):
    """One file of a bag."""

    notes: list[str]

    def topics(self) -> dict[str, set[Schema]]:
        """Topic to the types that it was recorded with."""

    def messages(self, topics: Collection[str], start_ns: int) -> Iterator[Raw]:
        """Messages of these topics recorded at or after a time, about in that order."""


@dataclass(frozen=True)
class _Listing:
    paths: list[Path]
    notes: list[str]


class Bag:
    """A bag's topics and messages.

    Args:
        path: a folder (metadata.yaml may be missing), or one .mcap or .db3 file, which may be
            compressed as a whole (.zstd).

    Raises:
        CannotReplay: there is no such file, or none that is a bag.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise CannotReplay(f"{self.path} does not exist")
        listing = _listing(self.path)
        self._notes = listing.notes
        self._files = [self._open(each) for each in listing.paths]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was wrong with the files, as far as they were read, a sentence each."""
        found = list(self._notes)
        for file in self._files:
            found += file.notes
        return tuple(dict.fromkeys(found))

    def topics(self) -> dict[str, set[Schema]]:
        """Topic to the types that it was recorded with."""
        found: dict[str, set[Schema]] = {}
        for file in self._files:
            for name, schemas in file.topics().items():
                found.setdefault(name, set()).update(schemas)
        return found

    def messages(self, topics: Collection[str], start_ns: int = 0) -> Iterator[Raw]:
        """Messages of these topics recorded at or after a time, file by file."""
        for file in self._files:
            for raw in file.messages(topics, start_ns):
                if raw.data[:4] == _ZSTD_MAGIC:  # rosbag2's compression mode "message"
                    data = zstandard.ZstdDecompressor().decompressobj().decompress(raw.data)
                    yield Raw(raw.topic, raw.schema, raw.log_ns, data)
                else:
                    yield raw

    def _open(self, path: Path) -> BagFile:
        if path.suffix in _ZSTD_SUFFIXES:
            path = self._unpacked(path)
        if path.suffix == ".mcap":
            return McapFile(path)
        return SqliteFile(path)

    def _unpacked(self, path: Path) -> Path:
        """rosbag2's compression mode "file": unpack beside nobody, removed with this object."""
        folder = Path(tempfile.mkdtemp(prefix="flashrt-bag-"))
        weakref.finalize(self, shutil.rmtree, folder, True)
        target = folder / path.stem
        with path.open("rb") as packed, target.open("wb") as out:
            try:
                zstandard.ZstdDecompressor().copy_stream(packed, out)
            except zstandard.ZstdError as error:
                self._notes.append(
                    f"{path.name}: compressed file ends early or is damaged: {error}"
                )
        return target


def is_bag(path: Path) -> bool:
    """Whether a folder or file is a bag itself, not a folder of bags."""
    if path.is_file():
        return _is_storage(path)
    return (path / _METADATA).exists() or any(_is_storage(each) for each in path.iterdir())


def _listing(path: Path) -> _Listing:
    if path.is_file():
        if not _is_storage(path):
            raise CannotReplay(f"{path} is no bag: expected a folder, .mcap or .db3")
        return _Listing([path], [])
    notes: list[str] = []
    named = _from_metadata(path / _METADATA, notes)
    there = sorted((each for each in path.iterdir() if _is_storage(each)), key=_natural)
    if named is not None:
        missing = [each.name for each in named if not each.exists()]
        if missing:
            notes.append(f"files of the bag are missing: {', '.join(missing)}")
        # After a crash the metadata may be older than the last file.
        there = [each for each in named if each.exists()] + [e for e in there if e not in named]
    if not there:
        raise CannotReplay(f"{path} has no .mcap or .db3 file: it is no bag")
    return _Listing(there, notes)


def _from_metadata(path: Path, notes: list[str]) -> list[Path] | None:
    if not path.exists():
        notes.append(f"there is no {_METADATA}: the recording was not ended in order")
        return None
    try:
        content = yaml.safe_load(path.read_text("utf-8"))["rosbag2_bagfile_information"]
        return [path.parent / Path(each).name for each in content["relative_file_paths"]]
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError) as error:
        notes.append(f"{_METADATA} cannot be read ({error}); the files in the folder are taken")
        return None


def _is_storage(path: Path) -> bool:
    inner = Path(path.stem) if path.suffix in _ZSTD_SUFFIXES else path
    return path.is_file() and inner.suffix in _SUFFIXES


def _natural(path: Path) -> list[int | str]:
    """bag_2 before bag_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]
