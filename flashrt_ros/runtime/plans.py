# SPDX-License-Identifier: Apache-2.0
"""Captured, replayable computations over the buffers of an arena.

A plan's function reads and writes buffers only. Its inputs are written into buffers before a
replay, so a new prompt or observation never needs a new capture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from .arena import Arena
from .errors import InternalFault, InvalidArgument, Unsupported


class Backend(str, Enum):
    EAGER = "eager"
    COMPILED = "compiled"  # Inductor, see compiled.py
    CUDA_GRAPH = "cuda_graph"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, order=True)
class ShapeKey:
    """What a plan is specialised for: how many positions it processes, how many rows it reads.

    `bucket` is an upper bound of the KV rows, so that a short session does not pay for the longest.
    """

    query: int = 1
    bucket: int = 0


def bucket_for(rows: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `rows`. Raises InvalidArgument when none does."""
    fitting = [bucket for bucket in buckets if bucket >= rows]
    if not fitting:
        raise InvalidArgument(f"{rows} rows do not fit the largest bucket of {sorted(buckets)}")
    return min(fitting)


@dataclass(frozen=True)
class ReplayProof:
    """What one replay did to memory, measured around it."""

    moved: tuple[str, ...]  # buffers whose address or shape changed; must be empty
    device_allocations: int  # by torch's CUDA allocator; 0 for a graph. -1 where not counted
    compilations: int  # by torch.compile during the replay; must be 0


class Plan:
    """One computation, captured for each of its shape keys.

    `fn(key)` must leave the state as it was but for writes into buffers. `capture(arena)` runs it
    (warm-up, compilation, capture) and puts the fixed buffers back afterwards; append rows at or
    above the counter may be written meanwhile, which the contract of append buffers allows.

    `backend` is what was asked for; `active` is what replays. COMPILED falls back to EAGER and
    says why in `fallback_reason`; CUDA_GRAPH never falls back silently.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[[ShapeKey], None],
        keys: Iterable[ShapeKey],
        backend: Backend | str = Backend.EAGER,
        *,
        warmup: int = 2,
    ) -> None:
        self.name = name
        self.fn = fn
        self.keys = tuple(sorted(set(keys)))
        self.backend = Backend(backend)
        self.active = Backend.EAGER
        self.fallback_reason = ""
        self.captures = 0
        self.made = 0  # graphs compiled anew by capture; 0 where all were in the cache on disk
        self._warmup = warmup
        self._ready: dict[ShapeKey, Callable[[], object]] = {}

    def capture(self, arena: Arena, pool: Any = None) -> Any:
        """Prepare every key. Returns the CUDA memory pool, to be shared with the next plan.

        The arena is sealed by it. Raises Unsupported for CUDA graphs off a CUDA device.
        """
        arena.seal()
        before = arena.fixed.clone()
        try:
            if self.backend is Backend.CUDA_GRAPH:
                pool = self._capture_graphs(arena, pool)
            elif self.backend is Backend.COMPILED:
                self._compile(arena)
            else:
                self._run_eagerly()
        finally:
            arena.fixed.copy_(before)
        arena.check_unmoved()
        return pool

    def replay(self, key: ShapeKey) -> None:
        """Run the plan once for `key`.

        Raises InvalidArgument for a key that it was not made for, InternalFault when a back end
        that captures was not captured.
        """
        run = self._ready.get(key)
        if run is None:
            if key not in self.keys:
                raise InvalidArgument(f"plan {self.name} has no {key}; it has {list(self.keys)}")
            if self.backend is not Backend.EAGER:
                raise InternalFault(
                    f"plan {self.name} was not captured for {key}; call capture(arena) first"
                )
            self.fn(key)
            return
        run()

    def prove(self, key: ShapeKey, arena: Arena) -> ReplayProof:
        """Replay once and measure that no buffer moved, nothing was allocated or captured."""
        counted = self.active is Backend.CUDA_GRAPH
        captures = _compilations()
        allocations = _cuda_allocations(arena.device) if counted else 0
        self.replay(key)
        if counted:
            allocations = _cuda_allocations(arena.device) - allocations
        return ReplayProof(
            tuple(arena.moved()), allocations if counted else -1, _compilations() - captures
        )

    # -- back ends

    def _run_eagerly(self) -> None:
        self.active = Backend.EAGER
        # The first call loads kernels and code, which a first tick must not wait for.
        self.fn(self.keys[0])
        for key in self.keys:
            self._ready[key] = _bound(self.fn, key)

    def _compile(self, arena: Arena) -> None:
        from .compiled import check_same, compile_static  # loads the compiler

        try:
            # by default torch stops compiling one function after eight shapes
            with torch._dynamo.config.patch(recompile_limit=max(8, len(self.keys) + 1)):
                for key in self.keys:
                    compiled = compile_static(self.fn, key)
                    self.captures += 1
                    self.made += compiled.made
                    self._ready[key] = compiled.run
                    check_same(self.fn, compiled.run, key, arena)
            self.active = Backend.COMPILED
        except Exception as error:  # no compiler, an operation it lacks: any of torch's many
            self.fallback_reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            self._ready.clear()
            self._run_eagerly()

    def _capture_graphs(self, arena: Arena, pool: Any) -> Any:
        if arena.device.type != "cuda":
            raise Unsupported(
                f"plan {self.name}: CUDA graphs need a CUDA device, not {arena.device}; "
                "there the back ends are 'eager' and 'compiled'"
            )
        shared = pool if pool is not None else torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream(arena.device)  # type: ignore[no-untyped-call]
        # largest first: smaller graphs then fit into the memory of the pool
        for key in sorted(self.keys, reverse=True):
            side.wait_stream(torch.cuda.current_stream(arena.device))
            with torch.cuda.stream(side):
                for _ in range(self._warmup):
                    self.fn(key)
            torch.cuda.current_stream(arena.device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # thread_local: a mover's copies in another thread are not this capture's business
            with torch.cuda.graph(
                graph, pool=shared, stream=side, capture_error_mode="thread_local"
            ):
                self.fn(key)
            self.captures += 1
            self._ready[key] = graph.replay
        torch.cuda.synchronize(arena.device)
        self.active = Backend.CUDA_GRAPH
        return shared


def _bound(fn: Callable[[ShapeKey], object], key: ShapeKey) -> Callable[[], object]:
    return lambda: fn(key)


def _compilations() -> int:
    """Graphs that torch.compile made in this process; none where it was never used."""
    utilities = sys.modules.get("torch._dynamo.utils")
    return 0 if utilities is None else int(utilities.counters["stats"]["unique_graphs"])


def _cuda_allocations(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device)["allocation.all.allocated"])
