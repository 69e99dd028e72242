# SPDX-License-Identifier: Apache-2.0
"""One file of tensors on disk: safetensors, written whole or not at all, checked when read.

Format (https://github.com/huggingface/safetensors, "Format"): 8 bytes little-endian length of a
JSON header, the header, then the tensors back to back. Any safetensors reader opens these files.
Ours carry in `__metadata__`: `flashrt.format` (a version; a reader takes its own major version and
ignores keys it does not know), `flashrt.kind`, `flashrt.checksums` (SHA-256 by tensor) and
`flashrt.seal` (SHA-256 of all the rest of the header).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import Corrupt, NoSpace

FORMAT = "1.0"
TEMPORARY = ".tmp-"
_SEAL = "flashrt.seal"
_MAX_HEADER = 100 << 20  # the limit of the safetensors library
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


@dataclass(frozen=True)
class TensorBytes:
    """A tensor to write: name, torch's name of its dtype, shape, contiguous bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies in a file, and the SHA-256 that its bytes must have."""

    begin: int
    end: int
    checksum: str


@dataclass(frozen=True)
class Header:
    """What a file holds, read without its tensors."""

    path: Path
    kind: str
    metadata: Mapping[str, str]
    entries: Mapping[str, Entry]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.end - entry.begin for entry in self.entries.values())


def write_file(
    path: Path, kind: str, metadata: Mapping[str, str], tensors: Sequence[TensorBytes]
) -> None:
    """Write a file that is there whole and durable when this returns, or not there at all.

    A temporary file is written, fsynced and renamed, then the directory is fsynced. Mode 0600.
    Raises NoSpace when the disk (or a quota or file size limit) is full.
    """
    checksums = {t.name: hashlib.sha256(t.data).hexdigest() for t in tensors}
    header = _header(kind, metadata, tensors, checksums)
    temporary = path.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_all(handle, memoryview(len(header).to_bytes(8, "little") + header))
            for tensor in tensors:
                _write_all(handle, tensor.data)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (
            errno.ENOSPC,
            errno.EFBIG,
            errno.EDQUOT,
        ):
            size = sum(t.data.nbytes for t in tensors)
            raise NoSpace(
                f"{path}: no room for {size} bytes ({error.strerror}); nothing was written. "
                "Remove capsules (flashrt capsule rm, gc) or use another directory"
            ) from error
        raise
    sync_directory(path.parent)


def read_header(path: Path) -> Header:
    """Read and check everything but the tensors' bytes.

    Raises Corrupt for a file that is cut, changed, foreign or of a newer major version.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise Corrupt(f"{path}: {size} bytes is no whole safetensors file (cut or empty)")
            raw = stream.read(length)
    except OSError as error:
        raise Corrupt(f"{path}: cannot be read: {error}") from error
    try:
        document = json.loads(raw)
        metadata = document.pop("__metadata__")
        version = metadata["flashrt.format"]
        major = int(version.split(".")[0])
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path}: not a file of this package (no flashrt.format)") from error
    if major > int(FORMAT.split(".")[0]):
        raise Corrupt(f"{path}: format {version} is newer than {FORMAT}; update this package")
    if metadata.get(_SEAL) != _seal(document, metadata):
        raise Corrupt(f"{path}: the header was changed (its seal does not match)")
    return Header(
        path, metadata["flashrt.kind"], metadata, _entries(path, document, metadata, 8 + length)
    )


def read_tensor(header: Header, name: str) -> bytearray:
    """A tensor's bytes, checked. Raises Corrupt when they do not match their checksum."""
    entry = header.entries.get(name)
    if entry is None:
        raise Corrupt(f"{header.path}: has no tensor {name!r}")
    data = bytearray(entry.end - entry.begin)
    try:
        with header.path.open("rb") as stream:
            stream.seek(entry.begin)
            got = stream.readinto(data)
    except OSError as error:
        raise Corrupt(f"{header.path}: cannot be read: {error}") from error
    if got != len(data) or hashlib.sha256(data).hexdigest() != entry.checksum:
        raise Corrupt(f"{header.path}: the bytes of {name} do not match their checksum")
    return data


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _header(
    kind: str,
    metadata: Mapping[str, str],
    tensors: Sequence[TensorBytes],
    checksums: Mapping[str, str],
) -> bytes:
    document: dict[str, object] = {}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.data.nbytes
        document[tensor.name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    full = {
        **metadata,
        "flashrt.format": FORMAT,
        "flashrt.kind": kind,
        "flashrt.checksums": json.dumps(checksums, sort_keys=True),
    }
    full[_SEAL] = _seal(document, full)
    text = json.dumps({"__metadata__": full, **document}, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)  # padded with spaces, as the format asks, to align


def _seal(document: Mapping[str, object], metadata: Mapping[str, str]) -> str:
    sealed = {key: value for key, value in metadata.items() if key != _SEAL}
    return hashlib.sha256(json.dumps([sealed, document], sort_keys=True).encode()).hexdigest()


def _entries(
    path: Path, document: Mapping[str, object], metadata: Mapping[str, str], start: int
) -> dict[str, Entry]:
    try:
        checksums = json.loads(metadata["flashrt.checksums"])
        entries = {}
        for name, described in document.items():
            begin, end = described["data_offsets"]  # type: ignore[index]
            entries[name] = Entry(start + begin, start + end, checksums[name])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{path}: the header does not describe its tensors: {error}") from error
    expected, size = start, path.stat().st_size
    for name, entry in sorted(entries.items(), key=lambda item: item[1].begin):
        if entry.begin != expected or entry.end < entry.begin:
            raise Corrupt(f"{path}: tensor {name} does not follow the one before it")
        expected = entry.end
    if expected != size:
        raise Corrupt(f"{path}: {size} bytes, expected {expected} (cut, or something was added)")
    return entries


def _write_all(handle: int, data: memoryview) -> None:
    data = data.cast("B") if data.nbytes else data
    while data.nbytes:
        data = data[os.write(handle, data) :]
