# SPDX-License-Identifier: Apache-2.0
"""A capsule: an immutable copy of a state at a committed boundary."""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument
from .fingerprint import Fingerprint
from .lineage import BoundaryRecord
from .memory import Block
from .rows import RowsRef

if TYPE_CHECKING:
    from .directory import StoredCapsule


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


class Tier(str, Enum):
    """Where a capsule's bytes are."""

    DEVICE = "device"
    HOST = "host"  # pinned host memory for an arena on a CUDA device
    DISK = "disk"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class StateValue:
    """A registered state item frozen as JSON text, so that nobody can change it afterwards."""

    name: str
    text: str

    def value(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class CapsuleMeta:
    """What never changes about a capsule."""

    id: str  # unique, never used again
    name: str  # empty: unnamed
    parent: str  # id of the nearest stored ancestor when it was made, or empty
    session: str  # id of the session that made it
    record: BoundaryRecord
    seed: int
    fingerprint: Fingerprint
    state: tuple[StateValue, ...]
    tags: tuple[str, ...] = ()


class _Described:
    """What a capsule and its listing both answer from their metadata."""

    meta: CapsuleMeta

    @property
    def id(self) -> str:
        return self.meta.id

    @property
    def name(self) -> str:
        return self.meta.name

    @property
    def boundary(self) -> int:
        return self.meta.record.number

    @property
    def step(self) -> int:
        return self.meta.record.step


@dataclass(frozen=True)
class CapsuleInfo(_Described):
    """A capsule without its tensors, as listed. `own_bytes` are held by no other capsule."""

    meta: CapsuleMeta
    tier: Tier
    pinned: bool
    own_bytes: int
    shared_bytes: int

    @property
    def parent(self) -> str:
        return self.meta.parent

    @property
    def session(self) -> str:
        return self.meta.session

    @property
    def stamp_ns(self) -> int:
        return self.meta.record.stamp_ns

    @property
    def inputs_digest(self) -> str:
        return self.meta.record.inputs_digest

    @property
    def fingerprint(self) -> str:
        """Digest of what the capsule is bound to; the fields are in `meta.fingerprint`."""
        return self.meta.fingerprint.digest()

    @property
    def tags(self) -> tuple[str, ...]:
        return self.meta.tags

    def state(self, name: str, default: Any = None) -> Any:
        """The value of a registered state item, or `default`."""
        for item in self.meta.state:
            if item.name == name:
                return item.value()
        return default


@dataclass(eq=False)
class FixedImage:
    """The bytes of all fixed buffers, shared by the branches of a fork."""

    block: Block
    owners: set[str] = field(default_factory=set)  # ids of capsules

    def release(self, capsule_id: str) -> int:
        """One owner less; the last one gives the memory back. Returns the bytes given back."""
        self.owners.discard(capsule_id)
        if self.owners:
            return 0
        self.block.release()
        return self.block.nbytes


@dataclass(eq=False)
class Capsule(_Described):
    """A stored capsule: what it is, and where its bytes are. The store alone changes the latter.

    On tier DISK `fixed` is None and `rows` are held by nobody: rows that others kept in memory
    are found again through them.
    """

    meta: CapsuleMeta
    tier: Tier = Tier.DEVICE
    pinned: bool = False
    fixed: FixedImage | None = None
    rows: tuple[RowsRef | None, ...] = ()  # one for each row group
    stored: StoredCapsule | None = None  # the file, when there is one
    last_used: int = 0


def new_id() -> str:
    """A capsule id, 32 hexadecimal digits: the time in ns, then 64 random bits. Ids sort by age."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


def check_name(name: str) -> None:
    """Raise InvalidArgument unless `name` is empty or one plain component of a file name."""
    if name and not _NAME.match(name):
        raise InvalidArgument(
            f"capsule name {name!r}: expected a letter or digit, then up to 63 letters, digits, "
            "'.', '_' or '-'"
        )
