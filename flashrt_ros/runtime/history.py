# SPDX-License-Identifier: Apache-2.0
"""Which boundaries of a session's lineage can be gone back to."""

from __future__ import annotations

from .capsule import Capsule
from .errors import InvalidArgument, NotStored
from .lineage import BoundaryRecord, Lineage
from .store import Store


class History:
    """The lineage of one session, and the capsules that the store has of it."""

    def __init__(self, session: str, root: BoundaryRecord, store: Store) -> None:
        if store.at_boundary(session, root.number) is not None:
            raise InvalidArgument(
                f"session id {session!r} is in use in this store, which tells boundaries apart by "
                "it; give every run an id of its own, or none"
            )
        self.lineage = Lineage(root)
        self.newest: Capsule | None = None  # frozen from, or restored into, the live lineage last
        self._session = session
        self._store = store

    def stored_ancestor(self) -> str:
        """Id of the nearest stored capsule that the live state descends from, or empty."""
        capsule = self.newest
        while capsule is not None:
            if self._store.has(capsule):
                return capsule.id
            capsule = self._store.get(capsule.meta.parent)
        # two in a row were dropped: ask for every boundary, which takes longer
        for record in self.lineage.ancestors():
            capsule = self._store.at_boundary(self._session, record.number)
            if capsule is not None:
                return capsule.id
        return ""

    def stored(self, target: BoundaryRecord, nearest: bool) -> Capsule:
        """The capsule of a boundary of the live lineage.

        Raises NotStored naming its stored neighbours; `nearest` takes the older one instead.
        """
        newer, passed = "none", False
        for record in self.lineage.ancestors():
            passed = passed or record is target
            capsule = self._store.at_boundary(self._session, record.number)
            if capsule is None:
                continue
            if record is target or (passed and nearest):
                return capsule
            if passed:
                raise NotStored(
                    f"boundary {target.number} is not stored; the nearest stored ones are "
                    f"{record.number} (older) and {newer} (newer)"
                )
            newer = str(record.number)
        raise NotStored(
            f"boundary {target.number} is not stored and no older one is; the nearest newer one "
            f"is {newer}"
        )
