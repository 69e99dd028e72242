# SPDX-License-Identifier: Apache-2.0
"""What a closed set of buffers is made of: roles, kinds, specifications and their table."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import torch

from .errors import InvalidArgument

_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*\Z")


class Role(str, Enum):
    """What a buffer means to the model; restores can be limited to roles in experiments."""

    KV = "kv"
    RECURRENT = "recurrent"
    CONV = "conv"
    MTP = "mtp"
    RANDOM = "random"
    ACTION = "action"
    IO = "io"
    META = "meta"

    def __str__(self) -> str:
        return self.value


class Kind(str, Enum):
    """How a buffer is written, which decides what a capsule of it costs."""

    FIXED = "fixed"  # overwritten by replays; a capsule copies it whole
    APPEND = "append"  # rows below the row counter are never written again on a lineage

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class BufferSpec:
    """One named buffer.

    `shape` is what `arena[name]` has. An append buffer counts rows along `row_dim`; how many of
    them are valid is the value of the int64 scalar buffer (shape `()`, kind fixed) `row_counter`.
    Rows at or above the counter may hold anything finite and must not influence a replay.
    """

    name: str
    role: Role
    dtype: torch.dtype
    shape: tuple[int, ...]
    kind: Kind = Kind.FIXED
    row_dim: int = 0
    row_counter: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", Role(self.role))
        object.__setattr__(self, "kind", Kind(self.kind))
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if not _NAME.match(self.name):
            raise InvalidArgument(
                f"buffer name {self.name!r}: expected dotted lower case such as "
                "'layer0.attention.key'"
            )
        if any(n < 1 for n in self.shape):
            raise InvalidArgument(f"buffer {self.name}: shape {self.shape} has an empty dimension")
        if self.kind is Kind.FIXED and self.row_counter:
            raise InvalidArgument(f"buffer {self.name}: a fixed buffer has no row_counter")
        if self.kind is Kind.APPEND:
            if not self.row_counter:
                raise InvalidArgument(f"buffer {self.name}: an append buffer names a row_counter")
            if not 0 <= self.row_dim < len(self.shape):
                raise InvalidArgument(
                    f"buffer {self.name}: row_dim {self.row_dim} is not a dimension of {self.shape}"
                )

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def capacity(self) -> int:
        """Rows that fit (append)."""
        return self.shape[self.row_dim]

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row (append)."""
        return self.nbytes // self.capacity

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row: `shape` without `row_dim` (append)."""
        return self.shape[: self.row_dim] + self.shape[self.row_dim + 1 :]

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def line(self) -> str:
        """One line of the table; the digest is made of these."""
        rows = f" rows={self.row_dim}@{self.row_counter}" if self.kind is Kind.APPEND else ""
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.name} {self.role} {self.kind} {self.dtype_name} {shape}{rows}"


@dataclass(frozen=True)
class BufferTable:
    """The closed set: every buffer of an arena, ordered by name.

    Layout and addresses are not part of it: two arenas of one table hold the same state.
    """

    specs: tuple[BufferSpec, ...]

    @staticmethod
    def of(specs: Iterable[BufferSpec]) -> BufferTable:
        """Check that the specifications form a closed set.

        Raises InvalidArgument: a name is used twice, or a row counter does not exist, is not an
        int64 scalar of kind fixed, or counts buffers of different capacity.
        """
        ordered = tuple(sorted(specs, key=lambda spec: spec.name))
        by_name = {spec.name: spec for spec in ordered}
        if len(by_name) != len(ordered):
            names = [spec.name for spec in ordered]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InvalidArgument(f"buffer declared twice: {', '.join(twice)}")
        capacity: dict[str, int] = {}
        for spec in ordered:
            if spec.kind is not Kind.APPEND:
                continue
            counter = by_name.get(spec.row_counter)
            if (
                counter is None
                or counter.kind is not Kind.FIXED
                or counter.dtype != torch.int64
                or counter.shape != ()
            ):
                raise InvalidArgument(
                    f"buffer {spec.name}: row_counter {spec.row_counter!r} is "
                    f"{counter.line() if counter else 'not declared'}; "
                    "expected a fixed int64 buffer of shape ()"
                )
            if capacity.setdefault(spec.row_counter, spec.capacity) != spec.capacity:
                raise InvalidArgument(
                    f"buffer {spec.name}: {spec.capacity} rows, but others counted by "
                    f"{spec.row_counter} have {capacity[spec.row_counter]}; give it its own counter"
                )
        return BufferTable(ordered)

    def digest(self) -> str:
        """SHA-256 (hex) over the lines of the table."""
        return hashlib.sha256(str(self).encode()).hexdigest()

    def __str__(self) -> str:
        return "\n".join(spec.line() for spec in self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def __iter__(self) -> Iterator[BufferSpec]:
        return iter(self.specs)

    def __getitem__(self, name: str) -> BufferSpec:
        """The specification of this name. Raises InvalidArgument."""
        try:
            return self._by_name[name]
        except KeyError:
            raise InvalidArgument(f"no buffer {name!r} in the table") from None

    @cached_property
    def _by_name(self) -> dict[str, BufferSpec]:
        return {spec.name: spec for spec in self.specs}

    def counters(self) -> tuple[str, ...]:
        """Names of the row counters, sorted."""
        return tuple(sorted({s.row_counter for s in self.specs if s.kind is Kind.APPEND}))
