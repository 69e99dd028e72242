# SPDX-License-Identifier: Apache-2.0
"""A directory of capsules.

    <directory>/capsules/<capsule id>.safetensors   fixed buffers, metadata, a list of pieces
    <directory>/rows/<piece id>.safetensors         consecutive append rows, named by their content

Rows that several capsules share are one piece. Pieces are written before the capsule that lists
them and removed after it, so a capsule that can be seen is whole at every moment. Writers and
removers of several processes take turns by a lock on the directory; readers need none. File names
are hexadecimal ids that this package made: no name of a request becomes a path.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from .buffers import BufferSpec, BufferTable, Kind
from .capsule import CapsuleMeta
from .disk import (
    TEMPORARY,
    Header,
    TensorBytes,
    read_header,
    read_tensor,
    sync_directory,
    write_file,
)
from .errors import Corrupt, RuntimeFault
from .layout import Geometry, RowLayout
from .metadata import Piece, described, parsed
from .rows import column_rows

_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class StoredCapsule:
    """A capsule on disk, as its header describes it. `pieces` cover its rows in order."""

    header: Header
    meta: CapsuleMeta
    table: BufferTable
    pieces: tuple[Piece, ...]

    @property
    def rows_nbytes(self) -> int:
        """Bytes of its append rows, in pieces that others may share."""
        widths: dict[str, int] = {}
        for spec in self.table:
            if spec.kind is Kind.APPEND:
                widths[spec.row_counter] = widths.get(spec.row_counter, 0) + spec.row_nbytes
        return sum((piece.stop - piece.start) * widths[piece.counter] for piece in self.pieces)


@dataclass(frozen=True)
class BadFile:
    """A file that is no whole capsule, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class GcReport:
    """What garbage collection removed."""

    pieces: int
    temporaries: int
    bytes_freed: int


class CapsuleDirectory:
    """Capsules on disk. Safe for several processes at once."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = Path(path)
        self._capsules = self.path / "capsules"
        self._rows = self.path / "rows"
        self._known: dict[str, tuple[str, str, int, int]] = {}  # piece id -> what its file says
        self._sound: set[str] = set()  # pieces that this process wrote or read in full
        if create:
            for directory in (self.path, self._capsules, self._rows):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    # -- reading

    def entries(self) -> tuple[list[StoredCapsule], list[BadFile]]:
        """Every capsule by age, and every file that is refused. Reads headers only."""
        good, bad = [], []
        for path in sorted(self._capsules.glob(f"*{_SUFFIX}")):
            try:
                good.append(self._open(path))
            except RuntimeFault as fault:
                if path.exists():  # else: removed by another process meanwhile
                    bad.append(BadFile(path, str(fault)))
        return good, bad

    def fixed(self, stored: StoredCapsule) -> Iterator[tuple[BufferSpec, bytearray]]:
        """Each fixed buffer's bytes, checked. Raises Corrupt."""
        for spec in stored.table:
            if spec.kind is Kind.FIXED:
                yield spec, read_tensor(stored.header, spec.name)

    def rows(self, stored: StoredCapsule, piece: Piece) -> Iterator[tuple[BufferSpec, bytearray]]:
        """Each append buffer's rows of a piece, checked. Raises Corrupt."""
        header = read_header(self._piece_path(piece.id))
        for spec in stored.table:
            if spec.kind is Kind.APPEND and spec.row_counter == piece.counter:
                yield spec, read_tensor(header, spec.name)

    def verify(self, stored: StoredCapsule) -> None:
        """Read and check every byte of a capsule and of its pieces. Raises Corrupt."""
        for spec, data in self.fixed(stored):
            if len(data) != spec.nbytes:
                raise Corrupt(f"{stored.header.path}: {spec.name} has {len(data)} bytes")
        for piece in stored.pieces:
            digests = []
            for spec, data in self.rows(stored, piece):
                if len(data) != (piece.stop - piece.start) * spec.row_nbytes:
                    raise Corrupt(f"piece {piece.id}: {spec.name} has {len(data)} bytes")
                digests.append((spec.name, hashlib.sha256(data).hexdigest()))
            if _piece_id(stored.table, piece, digests) != piece.id:
                raise Corrupt(f"piece {piece.id}: holds other rows than its name says")

    # -- writing

    def write(
        self, meta: CapsuleMeta, geometry: Geometry, fixed: Tensor, rows: Sequence[list[Tensor]]
    ) -> StoredCapsule:
        """Store a capsule; durable when it returns.

        `fixed` is uint8 [fixed bytes]; `rows[group]` are that group's planes, uint8
        [outer, rows, inner]; all on CPU. Rows that a piece in the directory already has are not
        written again. Raises NoSpace, and then nothing new is listed.
        """
        with self._locked():
            pieces: list[Piece] = []
            for layout, planes in zip(geometry.groups, rows, strict=True):
                pieces += self._write_rows(geometry.table, layout, planes)
            tensors = [
                TensorBytes(
                    spec.name, spec.dtype_name, spec.shape, _view(fixed[geometry.span(name)])
                )
                for name, _ in geometry.offsets
                for spec in [geometry.table[name]]
            ]
            path = self._capsules / f"{meta.id}{_SUFFIX}"
            write_file(path, "capsule", described(meta, geometry.table, pieces), tensors)
        return self._open(path)

    def remove(self, capsule_id: str) -> int:
        """Remove a capsule and the pieces that no other one lists. Returns the bytes freed."""
        with self._locked():
            path = self._capsules / f"{capsule_id}{_SUFFIX}"
            if not path.exists():
                return 0
            freed = path.stat().st_size
            path.unlink()
            sync_directory(self._capsules)
            return freed + self._collect().bytes_freed

    def gc(self) -> GcReport:
        """Remove pieces that no capsule lists, and what killed writers left behind.

        While a capsule file cannot be read, pieces stay: it may be theirs.
        """
        with self._locked():
            return self._collect()

    # -- inside

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _open(self, path: Path) -> StoredCapsule:
        header = read_header(path)
        if header.kind != "capsule":
            raise Corrupt(f"{path}: holds {header.kind!r}, expected a capsule")
        try:
            meta, table, pieces = parsed(header.metadata)
        except (KeyError, TypeError, ValueError, RuntimeFault) as error:
            raise Corrupt(f"{path}: metadata cannot be read: {error}") from error
        if path.name != f"{meta.id}{_SUFFIX}":
            raise Corrupt(f"{path}: is capsule {meta.id} under another name")
        for piece in pieces:
            if not self._piece_path(piece.id).exists():
                raise Corrupt(f"{path}: its rows {piece.start} .. {piece.stop} are missing")
        return StoredCapsule(header, meta, table, pieces)

    def _piece_path(self, piece_id: str) -> Path:
        if not piece_id or not set(piece_id) <= set("0123456789abcdef"):
            raise Corrupt(f"piece id {piece_id!r}: expected hexadecimal digits")
        return self._rows / f"{piece_id}{_SUFFIX}"

    def _write_rows(
        self, table: BufferTable, layout: RowLayout, planes: Sequence[Tensor]
    ) -> list[Piece]:
        rows = planes[0].shape[1]
        pieces: list[Piece] = []
        stops = self._known_stops(table, layout.counter)
        while (position := pieces[-1].stop if pieces else 0) < rows:
            # what an ancestor stored ends where its rows ended: try those ends, the longest first
            ends = sorted({s for s in stops.get(position, ()) if s <= rows}, reverse=True)
            for stop in [*ends, rows]:
                columns = _columns(layout, planes, position, stop)
                piece = Piece("", layout.counter, position, stop)
                piece = replace(piece, id=_piece_id(table, piece, _digests(columns)))
                if self._is_sound(piece) or stop == rows:
                    self._write_piece(table, piece, columns)
                    pieces.append(piece)
                    break
        return pieces

    def _write_piece(self, table: BufferTable, piece: Piece, columns: list[TensorBytes]) -> None:
        if not self._is_sound(piece):  # absent, or damaged: we have what belongs there
            described = (table.digest(), piece.counter, piece.start, piece.stop)
            path = self._piece_path(piece.id)
            write_file(path, "rows", {"flashrt.piece": json.dumps(described)}, columns)
            self._sound.add(piece.id)

    def _is_sound(self, piece: Piece) -> bool:
        """The piece is in the directory and was read or written in full by this process."""
        path = self._piece_path(piece.id)
        if not path.exists():
            return False
        if piece.id not in self._sound:
            try:
                header = read_header(path)
                for name in header.entries:
                    read_tensor(header, name)
            except Corrupt:
                return False
            self._sound.add(piece.id)
        return True

    def _known_stops(self, table: BufferTable, counter: str) -> dict[int, set[int]]:
        """Where pieces of this table and counter begin and end."""
        known: dict[int, set[int]] = {}
        for path in self._rows.glob(f"*{_SUFFIX}"):
            if path.name not in self._known:
                try:
                    described = json.loads(read_header(path).metadata["flashrt.piece"])
                    self._known[path.name] = tuple(described)
                except (RuntimeFault, KeyError, ValueError):
                    continue
            digest, name, start, stop = self._known[path.name]
            if digest == table.digest() and name == counter:
                known.setdefault(start, set()).add(stop)
        return known

    def _collect(self) -> GcReport:
        removed = temporaries = freed = 0
        for directory in (self._capsules, self._rows):
            for path in directory.glob(f"{TEMPORARY}*"):  # we hold the lock: nobody writes them
                freed += path.stat().st_size
                path.unlink()
                temporaries += 1
        good, bad = self.entries()
        if not bad:
            wanted = {piece.id for stored in good for piece in stored.pieces}
            for path in self._rows.glob(f"*{_SUFFIX}"):
                if path.name.removesuffix(_SUFFIX) not in wanted:
                    freed += path.stat().st_size
                    path.unlink()
                    removed += 1
        sync_directory(self._rows)
        return GcReport(removed, temporaries, freed)


def _columns(
    layout: RowLayout, planes: Sequence[Tensor], start: int, stop: int
) -> list[TensorBytes]:
    parts = []
    for column in layout.columns:
        spec = column.spec
        cut = column_rows(planes[column.plane][:, start:stop], column)
        shape = (stop - start, *spec.row_shape)
        parts.append(TensorBytes(spec.name, spec.dtype_name, shape, _view(cut)))
    return parts


def _digests(columns: Sequence[TensorBytes]) -> list[tuple[str, str]]:
    return [(column.name, hashlib.sha256(column.data).hexdigest()) for column in columns]


def _piece_id(table: BufferTable, piece: Piece, digests: Sequence[tuple[str, str]]) -> str:
    lines = [table.digest(), piece.counter, str(piece.start), str(piece.stop)]
    lines += [f"{name} {digest}" for name, digest in digests]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _view(data: Tensor) -> memoryview:
    flat = data.contiguous().view(-1)
    return memoryview(flat.numpy()) if flat.numel() else memoryview(b"")  # type: ignore[arg-type]
