# SPDX-License-Identifier: Apache-2.0
"""Capsules by the tokens they have seen: a prompt that begins as an earlier one starts from there.

A radix tree over token ids. An edge carries a run of tokens, a node may carry a capsule of the
state after exactly the tokens on its path. Capsules of one lineage share their rows, so many of
them are cheap; what each costs is the fixed bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from flashrt_ros.runtime import Capsule, Session
from flashrt_ros.runtime.errors import InvalidArgument, UnknownCapsule

TAG = "prefix"


class Exactness(Enum):
    """What going on from a capsule is identical to."""

    PREFIX = "a cold prefill of any prompt that begins with these tokens, bit for bit"
    WHOLE = "a cold prefill of exactly these tokens, bit for bit"
    RUN = "the run that it was taken from, bit for bit; a cold prefill may round differently"


class Reuse(str, Enum):
    """Which stored state a prompt may start from."""

    NONE = "none"  # compute every token
    EXACT = "exact"  # only where the result is bit-identical to computing every token
    ANY = "any"  # any state that has seen a beginning of the prompt

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Prefix:
    """A capsule found for a prompt. `length` of its tokens need not be computed."""

    capsule: Capsule
    length: int
    exactness: Exactness


@dataclass(eq=False)
class _Node:
    edge: tuple[int, ...]
    parent: _Node | None
    children: dict[int, _Node] = field(default_factory=dict)
    entry: Prefix | None = None
    used: int = 0


class PrefixRegistry:
    """The tree of one session. Only its replay thread calls it.

    Args:
        capacity: capsules kept; the one not used for the longest goes first.
    """

    def __init__(self, session: Session, capacity: int = 64) -> None:
        if capacity < 1:
            raise InvalidArgument(f"capacity {capacity}: expected 1 or more")
        self._session = session
        self._capacity = capacity
        self._root = _Node((), None)
        self._clock = 0
        self.hits = 0
        self.misses = 0
        self.tokens_reused = 0

    def __len__(self) -> int:
        return sum(1 for _ in self._entries())

    def remember(self, tokens: Sequence[int], exactness: Exactness) -> Prefix:
        """Snapshot the live state, which has seen exactly `tokens`, unless it is known already."""
        node = self._insert(tuple(tokens))
        known = node.entry
        if known is None or not self._alive(known) or _better(exactness, known.exactness):
            if known is not None:
                self._forget(node)
                node = self._insert(tuple(tokens))
            capsule = self._session.snapshot(tags=(TAG,))
            node.entry = Prefix(capsule, len(tokens), exactness)
        self._touch(node)
        entry = node.entry
        assert entry is not None
        self._evict()
        return entry

    def find(self, tokens: Sequence[int], reuse: Reuse = Reuse.EXACT) -> Prefix | None:
        """The capsule with the longest common prefix that `reuse` allows."""
        best: _Node | None = None
        for node in self._path(tuple(tokens)):
            if node.entry is None:
                continue
            if not self._alive(node.entry):
                node.entry = None
            elif _allowed(node.entry, len(tokens), reuse):
                best = node
        if best is None:
            self.misses += 1
            return None
        self.hits += 1
        assert best.entry is not None
        self.tokens_reused += best.entry.length
        self._touch(best)
        return best.entry

    # -- the tree

    def _path(self, tokens: tuple[int, ...]) -> Iterator[_Node]:
        """Nodes whose whole path is a prefix of `tokens`, shallowest first."""
        node, depth = self._root, 0
        while True:
            yield node
            if depth == len(tokens):
                return
            child = node.children.get(tokens[depth])
            if child is None or tokens[depth : depth + len(child.edge)] != child.edge:
                return
            node, depth = child, depth + len(child.edge)

    def _insert(self, tokens: tuple[int, ...]) -> _Node:
        *_, node = self._path(tokens)
        depth = sum(len(each.edge) for each in _up(node))
        rest = tokens[depth:]
        if not rest:
            return node
        child = node.children.get(rest[0])
        if child is None:
            leaf = _Node(rest, node)
            node.children[rest[0]] = leaf
            return leaf
        shared = _common(child.edge, rest)
        middle = _Node(child.edge[:shared], node)
        node.children[rest[0]] = middle
        child.edge, child.parent = child.edge[shared:], middle
        middle.children[child.edge[0]] = child
        if shared == len(rest):
            return middle
        leaf = _Node(rest[shared:], middle)
        middle.children[leaf.edge[0]] = leaf
        return leaf

    def _prune(self, node: _Node) -> None:
        """Take out nodes that carry nothing, and join an only child with its parent."""
        while node.parent is not None and node.entry is None:
            parent = node.parent
            if not node.children:
                del parent.children[node.edge[0]]
            elif len(node.children) == 1:
                (child,) = node.children.values()
                child.edge, child.parent = node.edge + child.edge, parent
                parent.children[node.edge[0]] = child
            node = parent

    # -- entries

    def _entries(self) -> Iterator[_Node]:
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            if node.entry is not None:
                yield node

    def _touch(self, node: _Node) -> None:
        self._clock += 1
        node.used = self._clock

    def _evict(self) -> None:
        entries = sorted(self._entries(), key=lambda node: node.used)
        for node in entries[: max(0, len(entries) - self._capacity)]:
            self._forget(node)

    def _forget(self, node: _Node) -> None:
        entry, node.entry = node.entry, None
        if entry is not None and self._alive(entry):
            self._session.drop(entry.capsule)
        self._prune(node)

    def _alive(self, entry: Prefix) -> bool:
        try:
            return self._session.store.find(entry.capsule.id) is entry.capsule
        except UnknownCapsule:
            return False


def _up(node: _Node | None) -> Iterator[_Node]:
    while node is not None:
        yield node
        node = node.parent


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def _better(new: Exactness, old: Exactness) -> bool:
    order = (Exactness.RUN, Exactness.WHOLE, Exactness.PREFIX)
    return order.index(new) > order.index(old)


def _allowed(entry: Prefix, length: int, reuse: Reuse) -> bool:
    if reuse is Reuse.EXACT:
        return entry.exactness is Exactness.PREFIX or (
            entry.exactness is Exactness.WHOLE and entry.length == length
        )
    return reuse is Reuse.ANY
