# SPDX-License-Identifier: Apache-2.0
"""Capsules on disk that belong to a run: those recorded beside its bag, or kept by a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flashrt_ros.replay.run import CannotReplay, Run
from flashrt_ros.runtime.directory import CapsuleDirectory, StoredCapsule

BESIDE = "capsules"
"""Folder of capsules in a bag's folder."""

_SESSION, _BOUNDARY = "run=", "boundary="


@dataclass(frozen=True)
class StateKey:
    """Which state: the boundary, and the instruction, which may change without a tick.

    capsule: its id, for a state of another session; boundary numbers then mean nothing here.
    """

    boundary: int
    instruction: str
    capsule: str = ""

    def __str__(self) -> str:
        if self.capsule:
            return f"capsule {self.capsule}"
        return f"boundary {self.boundary} (instruction '{self.instruction}')"


class Shelf:
    """The capsules of one run in a directory, by the state that they hold.

    Capsules of another session count by their id, and only where a verb in the bag restored them.

    Args:
        run: whose capsules.
        path: a directory of capsules, see `flashrt capsule ls`.
        create: make it if it is not there.

    Raises:
        CannotReplay: there is no such directory.
    """

    def __init__(self, run: Run, path: Path, *, create: bool = False) -> None:
        if not create and not (path / "capsules").is_dir():
            raise CannotReplay(f"{path} is no directory of capsules (it has no 'capsules' in it)")
        self.path = path
        self._ids: dict[StateKey, str] = {}
        good, bad = CapsuleDirectory(path).entries()
        self.notes = tuple(f"refused: {each.reason}" for each in bad)
        own = [(key, stored) for stored in good for key in _keys(stored, run)]
        # All that are restored in one session carry the same registered state.
        kinds = Counter(_items(stored) for _, stored in own)
        self.items: tuple[str, ...] = kinds.most_common(1)[0][0] if kinds else ("instruction",)
        for key, stored in own:
            if _items(stored) == self.items:
                self._ids[key] = stored.meta.id

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, key: StateKey) -> bool:
        return key in self._ids

    def get(self, key: StateKey) -> str | None:
        """Id of the capsule that holds a state."""
        return self._ids.get(key)

    def add(self, key: StateKey, capsule: str) -> None:
        """A capsule was written."""
        self._ids[key] = capsule

    @staticmethod
    def tags(session: str, key: StateKey) -> tuple[str, str]:
        """Marks of a capsule that a replay made: whose state it holds."""
        return (f"{_SESSION}{session}", f"{_BOUNDARY}{key.boundary}")


def shelf_beside(run: Run, directory: Path | None = None) -> Shelf | None:
    """The capsules recorded with a run: in `directory`, else beside the bag; None: there are none.

    Raises:
        CannotReplay: `directory` is given and is none.
    """
    if directory is not None:
        return Shelf(run, directory)
    folder = run.path if run.path.is_dir() else run.path.parent
    path = folder / BESIDE
    return Shelf(run, path) if (path / "capsules").is_dir() else None


def _keys(stored: StoredCapsule, run: Run) -> Iterator[StateKey]:
    meta = stored.meta
    values = {item.name: item.value() for item in meta.state}
    instruction = str(values.get("instruction", ""))
    marks = dict(tag.split("=", 1) for tag in meta.tags if tag.startswith((_SESSION, _BOUNDARY)))
    if "run" in marks:
        if marks["run"] == run.info.session and marks.get("boundary", "").isdigit():
            yield StateKey(int(marks["boundary"]), instruction)
    elif meta.session == run.info.session:
        yield StateKey(meta.record.number, instruction)
    else:
        yield StateKey(-1, "", meta.id)


def _items(stored: StoredCapsule) -> tuple[str, ...]:
    return tuple(sorted(item.name for item in stored.meta.state))
