# SPDX-License-Identifier: Apache-2.0
"""Memory tiers: pools, budgets, and which part of which capsule belongs where.

A capsule has a tier; its parts (fixed image, slabs of rows) may be shared. A part lies in the
fastest tier that any capsule using it has, so sharing survives a move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .capsule import Capsule, FixedImage, Tier
from .catalog import Catalog
from .device import is_unified
from .memory import Pool
from .rows import Slab, slabs_of

Part = FixedImage | Slab
_SPEED = {Tier.DEVICE: 2, Tier.HOST: 1, Tier.DISK: 0}


@dataclass(frozen=True)
class Budgets:
    """Bytes a tier may hold; None: no limit, 0: the tier is not used.

    Host is a tier of its own where the arena is on a CUDA device with memory of its own; for an
    arena on CPU, or on a device of unified memory, it would be the same memory under another name
    and is off unless asked for.
    """

    device: int | None = 2 << 30
    host: int | None = None
    disk: int | None = None

    @staticmethod
    def default(device: torch.device) -> Budgets:
        apart = device.type == "cuda" and not is_unified(device)
        return Budgets(host=(8 << 30) if apart else 0)

    def of(self, tier: Tier) -> int | None:
        return {Tier.DEVICE: self.device, Tier.HOST: self.host, Tier.DISK: self.disk}[tier]


@dataclass(frozen=True)
class TierStatistics:
    """What a tier holds now."""

    tier: Tier
    capsules: int
    used_bytes: int
    free_bytes: int  # kept for the next capsule
    budget: int | None


@dataclass(frozen=True)
class StoreTotals:
    """Capsules of a store, and the bytes in use on each tier; a shared part counts once."""

    capsules: int
    device_bytes: int
    host_bytes: int
    disk_bytes: int

    @property
    def memory_bytes(self) -> int:
        return self.device_bytes + self.host_bytes


@dataclass
class Counters:
    """What a store did since it was made."""

    demotions: int = 0  # moves to a slower tier to make room
    evictions: int = 0  # capsules dropped to make room
    loads: int = 0  # capsules read from disk
    failures: int = 0  # moves that failed; the capsule stayed where it was


class Memory:
    """The two memory tiers; on a device of unified memory they are one pool, see device.py."""

    def __init__(self, device: torch.device) -> None:
        self.unified = is_unified(device)
        own = Pool(device)
        host = own if self.unified else Pool(torch.device("cpu"), pinned=device.type == "cuda")
        self.pools = {Tier.DEVICE: own, Tier.HOST: host}

    def tier_of(self, part: Part) -> Tier:
        return Tier.DEVICE if part.block.pool is self.pools[Tier.DEVICE] else Tier.HOST

    @contextmanager
    def reading(self) -> Iterator[None]:
        """No memory of either tier is recycled meanwhile."""
        with self.pools[Tier.DEVICE].reading(), self.pools[Tier.HOST].reading():
            yield


def parts_of(capsule: Capsule) -> Iterator[Part]:
    """The fixed image and every slab of a capsule in memory."""
    if capsule.fixed is not None:
        yield capsule.fixed
        yield from slabs_of(capsule.rows)


def fastest_tier(part: Part, catalog: Catalog) -> Tier:
    """The fastest tier of the capsules that use a part; DEVICE while one is being made of it."""
    if isinstance(part, FixedImage):
        users, unfinished = iter(part.owners), False
    else:
        users, unfinished = part.users(), part.being_filled()
    if unfinished:
        return Tier.DEVICE
    tiers = [capsule.tier for user in users if (capsule := catalog.get(user)) is not None]
    return max(tiers, key=_SPEED.__getitem__, default=Tier.DEVICE)
