# SPDX-License-Identifier: Apache-2.0
"""The shipped policy: a tick by each plan, and what stands between two ticks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ..models import PolicyModel, load_policy
from ..runtime import Arena, AutoSnapshots, Backend, Session
from .report import Params, Report, interleaved, quantile, row_of, timed

MODEL = "cued_reach"
RATE = 50.0  # Hz of the paced ticks, that of a controller


@dataclass(frozen=True)
class Bound:
    """A policy over an arena of its own, with a session."""

    model: PolicyModel
    arena: Arena
    session: Session
    seconds: float  # that binding took

    @staticmethod
    def of(path: str, backend: Backend, device: str, *, keep: int = 0) -> Bound:
        """keep: boundaries that automatic snapshots keep; 0: none are taken."""
        model = load_policy(path, device=device)
        arena = Arena(model.buffer_specs(), device)
        start = time.perf_counter()
        model.bind(arena, seed=1, backend=backend)
        seconds = time.perf_counter() - start
        model.write_instruction("wait")
        auto = AutoSnapshots(keep=keep) if keep else None
        session = Session(arena, fingerprint=model.fingerprint, auto=auto)
        return Bound(model, arena, session, seconds)

    def observe(self, turn: int) -> None:
        """Write an image and joint positions that differ from turn to turn."""
        shape = next(iter(self.model.spec.cameras.values()))
        camera = next(iter(self.model.spec.cameras))
        image = np.full(shape, turn % 251, dtype=np.uint8)
        joints = np.full(len(self.model.spec.joint_names), 0.001 * (turn % 100))
        self.model.write_observation({camera: image}, joints)


def run(
    report: Report,
    *,
    quick: bool = False,
    device: str = "cpu",
    model: str = MODEL,
    captured: Backend | str | None = None,
) -> None:
    """Rows `tick_*`: ratio is the eager reference's time over this plan's; and the work between.

    captured: the plan beside eager's; None: CUDA graphs on a GPU, else compiled.

    On one thread: operations of a few thousand numbers end before a second one has begun.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _run(report, quick=quick, device=device, model=model, captured=captured)
    finally:
        torch.set_num_threads(threads)


def _run(
    report: Report, *, quick: bool, device: str, model: str, captured: Backend | str | None
) -> None:
    turns, paced = (10, 10) if quick else (500, 500)
    if captured is None:
        captured = Backend.CUDA_GRAPH if device.startswith("cuda") else Backend.COMPILED
    captured = Backend(captured)
    eager, other = (Bound.of(model, backend, device) for backend in (Backend.EAGER, captured))
    plan = other.model.fingerprint.plan
    if plan != captured.value:
        report.notes.append(f"The {captured} plan fell back to '{plan}': no C++ compiler?")
    _ticks(report, eager, other, turns)
    _paced(report, other, paced)
    _between(report, other, turns)
    for bound in (eager, other):
        bound.session.close()


def _ticks(report: Report, eager: Bound, other: Bound, turns: int) -> None:
    for bound in (eager, other):
        bound.observe(0)
    plan = other.model.fingerprint.plan
    samples = interleaved({"reference": eager.model.tick, plan: other.model.tick}, turns, warmup=5)
    eager_params: Params = {"model": eager.model.name, "threads": torch.get_num_threads()}
    report.add(row_of("tick_reference", samples["reference"], params=eager_params))
    report.add(
        row_of(f"tick_{plan}", samples[plan], params=eager_params, against=samples["reference"])
    )
    start = {"bind_s": round(other.seconds, 2)}
    report.add(row_of(f"start_{plan}", [other.seconds], unit="s", params=start))


def _paced(report: Report, bound: Bound, turns: int) -> None:
    """Whole ticks at the rate of a controller: caches are cold and the clock has slept."""
    samples = []
    due = time.perf_counter()
    for turn in range(turns + 5):
        due += 1.0 / RATE
        time.sleep(max(0.0, due - time.perf_counter()))
        bound.observe(turn)
        samples.append(timed(bound.model.tick))
        bound.session.commit(stamp_ns=turn + 1)
    samples = samples[5:]
    median = quantile(samples, 0.5)
    params = {"hz": RATE, "p99_over_p50": round(quantile(samples, 0.99) / median, 3)}
    report.add(row_of(f"tick_{bound.model.fingerprint.plan}_paced", samples, params=params))


def _between(report: Report, bound: Bound, turns: int) -> None:
    session, model = bound.session, bound.model
    kept = session.snapshot("kept", overwrite=True)
    params = {"state_bytes": bound.arena.geometry.fixed_nbytes}

    def snapshot() -> None:
        session.snapshot("again", overwrite=True)

    runs: dict[str, Callable[[], object]] = {
        "write_observation": partial(bound.observe, 1),
        "read_chunk": model.chunk,
        "commit": partial(session.commit, stamp_ns=1),
        "snapshot": snapshot,
        "restore": partial(session.restore, kept),
    }
    for name, samples in interleaved(runs, turns, warmup=3).items():
        report.add(row_of(name, samples, params=params))
    auto = Session(bound.arena, fingerprint=model.fingerprint, auto=AutoSnapshots(keep=64))
    samples = [timed(partial(auto.commit, stamp_ns=1)) for _ in range(turns)]
    report.add(row_of("commit_with_snapshot", samples, params={**params, "kept": 64}))
    auto.close()
