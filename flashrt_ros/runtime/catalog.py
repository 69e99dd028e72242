# SPDX-License-Identifier: Apache-2.0
"""The index of a store: capsules by id, by name and by boundary."""

from __future__ import annotations

from collections.abc import Iterator

from .capsule import Capsule, CapsuleInfo
from .errors import NameTaken, UnknownCapsule


class Catalog:
    """Not thread-safe: the store's lock is held around every call."""

    def __init__(self) -> None:
        self._capsules: dict[str, Capsule] = {}
        self._names: dict[str, Capsule] = {}
        self._boundaries: dict[tuple[str, int], list[Capsule]] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._capsules)

    def __iter__(self) -> Iterator[Capsule]:
        return iter(list(self._capsules.values()))

    def __contains__(self, capsule: Capsule) -> bool:
        return self._capsules.get(capsule.id) is capsule

    def add(self, capsule: Capsule) -> Capsule | None:
        """Index a capsule. Returns the one whose name it took; that one keeps its id."""
        older = self._names.get(capsule.name) if capsule.name else None
        self._capsules[capsule.id] = capsule
        key = (capsule.meta.session, capsule.boundary)
        self._boundaries.setdefault(key, []).append(capsule)
        if capsule.name:
            self._names[capsule.name] = capsule
        self.touch(capsule)
        return older

    def remove(self, capsule: Capsule) -> None:
        """Raises UnknownCapsule when it is not there (any more)."""
        if self._capsules.pop(capsule.id, None) is None:
            raise UnknownCapsule(f"capsule {capsule.id} was dropped already")
        if self._names.get(capsule.name) is capsule:
            del self._names[capsule.name]
        key = (capsule.meta.session, capsule.boundary)
        self._boundaries[key].remove(capsule)
        if not self._boundaries[key]:
            del self._boundaries[key]

    def touch(self, capsule: Capsule) -> None:
        """It was used now: eviction takes it last."""
        self._clock += 1
        capsule.last_used = self._clock

    def find(self, ref: str | Capsule | CapsuleInfo) -> Capsule:
        """The capsule of this id or name. Raises UnknownCapsule."""
        key = ref if isinstance(ref, str) else ref.id
        capsule = self._capsules.get(key) or self._names.get(key)
        if capsule is None:
            raise UnknownCapsule(
                f"no capsule has the id or name {key!r}; {len(self._capsules)} are stored, "
                f"named: {', '.join(sorted(self._names)) or 'none'}"
            )
        return capsule

    def get(self, capsule_id: str) -> Capsule | None:
        return self._capsules.get(capsule_id)

    def check_name(self, name: str, overwrite: bool) -> None:
        """Raise NameTaken unless the name is free, empty or may be overwritten."""
        if name and name in self._names and not overwrite:
            raise NameTaken(
                f"a capsule named {name!r} exists (id {self._names[name].id}); "
                "choose another name or ask to overwrite it"
            )

    def at_boundary(self, session: str, number: int) -> Capsule | None:
        """The newest capsule of a session's boundary."""
        known = self._boundaries.get((session, number))
        return known[-1] if known else None

    def least_recently_used(self) -> list[Capsule]:
        return sorted(self._capsules.values(), key=lambda capsule: capsule.last_used)
