# SPDX-License-Identifier: Apache-2.0
"""Is the closed set complete? Two audits that any program over an arena can be put through.

Closure: a capsule is restored after the live state was driven elsewhere, into an arena filled with
garbage, and in a fresh process. n steps on, every buffer must have the same bytes each time.

Completeness: one step, then every tensor that is alive is compared with what it was. One that
changed and belongs to no buffer is state that a capsule would miss.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from .arena import Arena
from .buffers import BufferSpec
from .errors import InvalidArgument
from .fingerprint import Fingerprint
from .random import random_words as words_of
from .session import Session
from .store import Store
from .transfer import buffer_digests

Digests = list[dict[str, str]]  # after each step: SHA-256 by buffer


class Program(Protocol):
    """What an adapter offers to be audited. `step(index)` must depend on buffers and index only."""

    @property
    def fingerprint(self) -> Fingerprint: ...

    def buffer_specs(self) -> Sequence[BufferSpec]: ...

    def bind(self, arena: Arena, *, seed: int) -> None:
        """Write the initial state; capture plans."""

    def step(self, index: int) -> None:
        """Write the inputs of step `index` into buffers and replay."""


Factory = Callable[[], Program]


@dataclass(frozen=True)
class Finding:
    """The first difference of one trial."""

    trial: str
    step: int  # steps after the restore, from 1
    buffer: str


@dataclass(frozen=True)
class AuditReport:
    """What was tried and what was found; `ok` when nothing was."""

    trials: tuple[str, ...]
    steps: int
    findings: tuple[Finding, ...]
    leaks: tuple[str, ...]  # tensors and generators that changed outside of the arena

    @property
    def ok(self) -> bool:
        return not self.findings and not self.leaks


def load_factory(path: str) -> Factory:
    """The factory that `module:name` names. Raises InvalidArgument."""
    module, _, name = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"audit subject {path!r}: {error}; expected an importable 'module:factory'"
        ) from error
    if not callable(factory):
        raise InvalidArgument(f"audit subject {path!r} is a {type(factory).__name__}, no factory")
    return factory  # type: ignore[no-any-return]


def fill_with_garbage(arena: Arena, seed: int = 0) -> None:
    """Fill every buffer with finite nonsense, as another session would leave it."""
    for index, spec in enumerate(arena.table):
        count = arena[spec.name].numel()
        words = words_of(count, seed=seed, step=index, stream="garbage", device=arena.device)
        if spec.dtype.is_floating_point:
            words = words.double() * 2.0**-30 - 2.0
        elif spec.dtype is torch.bool:
            words = words & 1
        else:
            words = words % 100
        arena[spec.name].copy_(words.view(spec.shape).to(spec.dtype))


def audit(path: str, *, steps: int = 8, warmup: int = 5, seed: int = 7) -> AuditReport:
    """Both audits on the program that `module:factory` makes."""
    factory = load_factory(path)
    with tempfile.TemporaryDirectory(prefix="flashrt-audit-") as directory:
        session, program = _opened(factory, seed, directory)
        for index in range(warmup):
            _step(session, program, index)
        capsule = session.snapshot("audit")
        session.store.persist(capsule)
        expected = _continued(session, program, steps)
        trials = {"driven elsewhere": _driven_elsewhere(session, program, steps)}
        trials["restored again"] = _restored(session, program, steps)
        trials["arena of garbage"] = _in_garbage(factory, seed + 1, directory, steps)
        trials["fresh process"] = _in_fresh_process(path, seed + 2, directory, steps)
        session.restore("audit")
        leaks = leaking(session.arena, lambda: program.step(session.live.step))
    findings = [f for name, found in trials.items() for f in _first(name, expected, found)]
    return AuditReport(tuple(trials), steps, tuple(findings), tuple(leaks))


def leaking(arena: Arena, step: Callable[[], None]) -> list[str]:
    """Tensors and generators outside of the arena that a step changed, described."""
    inside = {arena[spec.name].untyped_storage().data_ptr() for spec in arena.table}
    inside.add(arena.fixed.untyped_storage().data_ptr())
    before = _outside(inside)
    generators = _generators()
    step()
    changed = []
    for tensor, digest in before:
        if _tensor_digest(tensor) != digest:
            kind = str(tensor.dtype).removeprefix("torch.")
            changed.append(f"tensor {kind} {list(tensor.shape)}{_owner(tensor)}")
    for name, state in _generators().items():
        if generators[name] != state:
            changed.append(f"generator {name}")
    return changed


# -- trials


def _opened(factory: Factory, seed: int, directory: str) -> tuple[Session, Program]:
    program = factory()
    arena = Arena(program.buffer_specs(), getattr(program, "device", "cpu"))
    program.bind(arena, seed=seed)
    store = Store(arena.device, directory=directory)  # device capsules of a GPU's arena lie there
    return Session(arena, fingerprint=program.fingerprint, store=store, seed=seed), program


def _step(session: Session, program: Program, index: int) -> None:
    program.step(index)
    session.commit(stamp_ns=index + 1)


def _continued(session: Session, program: Program, steps: int) -> Digests:
    digests = []
    for _ in range(steps):
        _step(session, program, session.live.step)
        digests.append(buffer_digests(session.arena, dict(session.live.rows)))
    return digests


def _restored(session: Session, program: Program, steps: int) -> Digests:
    session.restore("audit")
    return _continued(session, program, steps)


def _driven_elsewhere(session: Session, program: Program, steps: int) -> Digests:
    session.reset()
    for index in range(2 * steps):
        _step(session, program, 1000 + 3 * index)
    return _restored(session, program, steps)


def _in_garbage(factory: Factory, seed: int, directory: str, steps: int) -> Digests:
    session, program = _opened(factory, seed, directory)
    _step(session, program, 0)
    fill_with_garbage(session.arena, seed)
    return _restored(session, program, steps)


def _in_fresh_process(path: str, seed: int, directory: str, steps: int) -> Digests:
    command = [sys.executable, "-m", __name__, path, str(seed), directory, str(steps)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise InvalidArgument(f"audit subject {path!r} failed in a fresh process:\n{done.stderr}")
    found: Digests = json.loads(done.stdout.splitlines()[-1])
    return found


def _first(trial: str, expected: Digests, found: Digests) -> list[Finding]:
    for number, (wanted, got) in enumerate(zip(expected, found, strict=True), start=1):
        for name, digest in wanted.items():
            if got[name] != digest:
                return [Finding(trial, number, name)]
    return []


# -- what is alive


def _outside(inside: set[int]) -> list[tuple[torch.Tensor, str]]:
    found = []
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter):
            storage = thing.untyped_storage().data_ptr()
            if storage not in inside and thing.numel() and thing.layout == torch.strided:
                found.append((thing, _tensor_digest(thing)))
    return found


def _tensor_digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy()
    return hashlib.sha256(memoryview(data)).hexdigest()  # type: ignore[arg-type]


def _owner(tensor: torch.Tensor) -> str:
    """Where a tensor is kept, as far as one can see."""
    for holder in gc.get_referrers(tensor):
        named = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        for key, value in named.items():
            if value is tensor and isinstance(key, str):
                return f" kept as {key!r}"
    return ""


def _generators() -> dict[str, str]:
    states: dict[str, object] = {
        "torch (cpu)": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()),  # noqa: NPY002 - the global one is what we look for
        "random": repr(random.getstate()),
    }
    if torch.cuda.is_available():
        states["torch (cuda)"] = torch.cuda.get_rng_state().numpy().tobytes()
    return {
        name: hashlib.sha256(repr(state).encode()).hexdigest() for name, state in states.items()
    }


def _main(arguments: Sequence[str]) -> None:
    """The fresh process: restore from disk, continue, print the digests."""
    path, seed, directory, steps = arguments
    digests = _in_garbage(load_factory(path), int(seed), directory, int(steps))
    sys.stdout.write(json.dumps(digests) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
