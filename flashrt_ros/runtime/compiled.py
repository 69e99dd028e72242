# SPDX-License-Identifier: Apache-2.0
"""Computations compiled once, kept on disk, and called with the addresses they were compiled for.

torch.compile evaluates guards at every call: has a module changed, is a tensor still of this shape?
Over a closed set of static buffers nothing that they ask can change. So the graph that Inductor
made is kept together with its arguments, and a replay is one call of it: a CPU's CUDA graph.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .arena import Arena
from .buffers import Kind
from .errors import InternalFault
from .memory import typed

_DIRECTORY = "TORCHINDUCTOR_CACHE_DIR"


def cache_directory() -> Path:
    """Where compiled code is kept from one start to the next.

    `$TORCHINDUCTOR_CACHE_DIR` where it is set, else `flashrt_ros/inductor` in the user's cache
    directory (`$XDG_CACHE_HOME`, `~/.cache`). torch's own default is in /tmp: a reboot empties it.
    """
    given = os.environ.get(_DIRECTORY)
    if given and given != _torch_default():
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "flashrt_ros" / "inductor"


def _torch_default() -> str:
    """What torch puts into the variable itself, as soon as its compiler is imported."""
    try:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    except ImportError:
        return ""
    return str(default_cache_dir())


@dataclass(frozen=True)
class Compiled:
    """A compiled computation: `run()`, and whether Inductor had to make its code."""

    run: Callable[[], object]
    made: int  # graphs that were not in the cache


def compile_static(fn: Callable[..., None], *arguments: Any) -> Compiled:
    """Compile `fn(*arguments)`, which reads and writes tensors that never move; runs it twice.

    Where it is not one graph (a value read back to Python, an unknown function on the way), its
    parts are compiled and torch evaluates guards at each call as usual. Raises what torch raises
    where it cannot be compiled, InternalFault where its tensors are others at the second call.
    """
    os.environ[_DIRECTORY] = str(cache_directory())  # read by torch at each compilation
    calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
    compiler = torch.compile(fn, fullgraph=True, dynamic=False, backend=_recorder(calls))
    before = _made()
    try:
        for _ in range(2):
            compiler(*arguments)
    except torch._dynamo.exc.Unsupported:
        parts = torch.compile(fn, dynamic=False)
        parts(*arguments)
        return Compiled(lambda: parts(*arguments), _made() - before)
    if not calls:  # it computes nothing
        return Compiled(lambda: None, _made() - before)
    (graph, first), (_, second) = calls
    moved = [
        index
        for index, (a, b) in enumerate(zip(first, second, strict=True))
        if isinstance(a, torch.Tensor) and a.data_ptr() != b.data_ptr()
    ]
    if moved:
        raise InternalFault(
            f"inputs {moved} of the compiled computation are other tensors at the second call; "
            "a plan reads buffers and weights only"
        )
    return Compiled(lambda: graph(*first), _made() - before)


def check_same(
    eager: Callable[..., object], compiled: Callable[[], object], argument: Any, arena: Arena
) -> None:
    """Raise InternalFault where a compiled step leaves other fixed buffers than the eager one.

    Not a formality: Inductor of torch 2.13 turns `old.copy_(new); new.copy_(x)` into two copies of
    x when it happens to number `new` before `old`. Floats may differ by rounding. Leaves the arena
    some steps on.
    """
    eager(argument)
    begin = arena.fixed.clone()
    eager(argument)
    expected = arena.fixed.clone()
    arena.fixed.copy_(begin)
    compiled()
    for spec in arena.table:
        if spec.kind is not Kind.FIXED or not spec.nbytes:
            continue
        part = arena.geometry.span(spec.name)
        wanted, found = (typed(each[part], spec.dtype) for each in (expected, arena.fixed))
        if not _close(wanted, found):
            raise InternalFault(f"the compiled plan leaves other values in buffer {spec.name}")


def _close(wanted: torch.Tensor, found: torch.Tensor) -> bool:
    if not wanted.dtype.is_floating_point:
        return bool(torch.equal(wanted, found))
    tolerance = 1e-3 if wanted.dtype.itemsize >= 4 else 5e-2
    wanted, found = wanted.double(), found.double()
    scale = max(float(wanted.nan_to_num(0.0, 0.0, 0.0).abs().max()), 1e-6)
    close = torch.isclose(wanted, found, rtol=0.0, atol=tolerance * scale, equal_nan=True)
    return bool(close.all())


def _recorder(
    calls: list[tuple[Callable[..., object], tuple[Any, ...]]],
) -> Callable[[torch.fx.GraphModule, list[Any]], Callable[..., object]]:
    """Inductor, and a note of every call of what it made."""
    from torch._inductor.compile_fx import compile_fx

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., object]:
        # The shipped policy's tick calls 678 kernels: from Python that is a tenth of its time.
        on_cpu = all(each.device.type == "cpu" for each in examples if torch.is_tensor(each))
        graph: Any = compile_fx(module, examples, config_patches={"cpp_wrapper": on_cpu})

        def run(*given: Any) -> object:
            calls.append((graph, given))
            return graph(*given)

        return run

    return backend


def _made() -> int:
    """Graphs that Inductor compiled in this process as none was in its cache."""
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    return int(inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"])
