# SPDX-License-Identifier: Apache-2.0
"""Who leaves a tier that is full, and where to."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from .capsule import Capsule, CapsuleInfo, Tier
from .errors import NoSpace, RuntimeFault, UnknownCapsule
from .mover import Mover

if TYPE_CHECKING:
    from .store import Store


class Evictor:
    """Keeps the tiers of a store within their budgets, least recently used first."""

    def __init__(self, store: Store, mover: Mover) -> None:
        self._store = store
        self._mover = mover
        self._leaving: dict[str, tuple[Tier, int]] = {}  # on their way down: from where, bytes
        self._dropped: deque[CapsuleInfo] = deque(maxlen=4096)

    def make_room(self, tier: Tier, need: int) -> None:
        """Send away what was not used for longest until `need` bytes fit. Under the store's lock.

        What is leaving counts as gone, so a replay never waits for it. Raises NoSpace.
        """
        budget = self._store.budgets.of(tier)
        if budget is None:
            return
        leaving = sum(nbytes for origin, nbytes in self._leaving.values() if origin is tier)
        excess = self._store.memory.pools[tier].used_bytes - leaving + need - budget
        if excess > 0:
            self.shed(tier, excess)

    def shed(self, tier: Tier, excess: int) -> None:
        """Send that many bytes away. Under the store's lock. Raises NoSpace when nothing can go."""
        wanted, shed = excess, False
        target = self._below(tier)
        for capsule in self._store.catalog.least_recently_used():
            if capsule.tier is not tier or capsule.pinned or capsule.id in self._leaving:
                continue
            if target is not None:
                own = self._store.info(capsule).own_bytes
                self._leaving[capsule.id] = (tier, own)
                self._mover.submit(partial(self._demote, capsule, target))
                excess -= own
            elif not capsule.name:
                excess -= self._drop(capsule)
            else:
                continue
            shed = True
            if excess <= 0:
                return
        if not shed:
            raise NoSpace(
                f"tier {tier} is {wanted} bytes over its budget of "
                f"{self._store.budgets.of(tier)} and all it holds is pinned, named or leaving; "
                "drop a capsule or raise the budget"
            )

    def take(self, session: str) -> list[CapsuleInfo]:
        """Capsules of a session that were dropped to make room since the last call."""
        if not self._dropped:
            return []
        with self._store.lock:
            gone = [info for info in self._dropped if info.session == session]
            for info in gone:
                self._dropped.remove(info)
            return gone

    def _below(self, tier: Tier) -> Tier | None:
        budgets = self._store.budgets
        if tier is Tier.DEVICE and budgets.host != 0:
            return Tier.HOST
        if tier is not Tier.DISK and self._store.directory is not None and budgets.disk != 0:
            return Tier.DISK
        return None

    def _drop(self, capsule: Capsule) -> int:
        self._dropped.append(self._store.info(capsule))
        self._store.counters.evictions += 1
        return self._store.drop(capsule, background=True)

    def _demote(self, capsule: Capsule, target: Tier) -> None:
        """On the mover's thread."""
        store = self._store
        try:
            with store.lock:
                if capsule not in store.catalog:
                    return
                if target is Tier.HOST:
                    self.make_room(target, store.info(capsule).own_bytes)
            store.move(capsule, target)
            store.counters.demotions += 1
        except UnknownCapsule:
            pass  # dropped meanwhile
        except RuntimeFault:
            store.counters.failures += 1
            raise
        finally:
            with store.lock:
                self._leaving.pop(capsule.id, None)
