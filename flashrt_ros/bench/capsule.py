# SPDX-License-Identifier: Apache-2.0
"""What the verbs of a session cost."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ..runtime import (
    Arena,
    AutoSnapshots,
    Budgets,
    BufferSpec,
    Capsule,
    Fingerprint,
    Kind,
    Layout,
    Role,
    Session,
    Store,
    Tier,
)
from .report import Report, Row, row_of, timed

MB = 10**6


@dataclass(frozen=True)
class Setting:
    """How much is measured, and where."""

    device: str
    samples: int
    sizes_mb: tuple[int, ...]
    long_rows: int
    short_rows: int


def run(report: Report, *, quick: bool = False, device: str = "cpu") -> None:
    """Every measurement, into `report`."""
    if quick:
        setting = Setting(device, 9, (1,), 2048, 256)
    else:
        setting = Setting(device, 101, (1, 8, 48, 256), 16384, 2048)
    for size in setting.sizes_mb:
        full_copies(report, setting, size)
    rollbacks(report, setting)
    growth(report, setting)
    forks(report, setting)
    overheads(report, setting)
    disk(report, setting)
    layouts(report, setting)


# -- sessions to measure


def fixed_session(nbytes: int, setting: Setting, *, store: Store | None = None) -> Session:
    """A session with one fixed buffer of this size."""
    spec = BufferSpec("recurrent.state", Role.RECURRENT, torch.float32, (nbytes // 4,))
    arena = Arena([spec], setting.device)
    arena["recurrent.state"].fill_(1.0)
    store = store or Store(setting.device, budgets=Budgets(device=None, host=0))
    return Session(arena, fingerprint=Fingerprint("bench"), store=store)


class RowsSession:
    """A session like a small language model's: 8 layers, 2 heads of 64, bfloat16, 1 MB fixed."""

    layers, heads, width = 8, 2, 64

    def __init__(self, capacity: int, setting: Setting, layout: Layout = Layout.SHAPE) -> None:
        shape = (self.heads, capacity, self.width)
        specs = [
            BufferSpec("meta.rows", Role.META, torch.int64, ()),
            BufferSpec("recurrent.state", Role.RECURRENT, torch.float32, (MB // 4,)),
        ]
        for layer in range(self.layers):
            for part in ("key", "value"):
                name = f"layer{layer}.attention.{part}"
                specs.append(
                    BufferSpec(name, Role.KV, torch.bfloat16, shape, Kind.APPEND, 1, "meta.rows")
                )
        self.arena = Arena(specs, setting.device, layout=layout)
        store = Store(setting.device, budgets=Budgets(device=None, host=0))
        self.session = Session(self.arena, fingerprint=Fingerprint("bench"), store=store)
        self.row_nbytes = self.arena.geometry.groups[0].row_nbytes
        self.fixed_nbytes = self.arena.geometry.fixed_nbytes

    def append(self, rows: int) -> None:
        """Write `rows` rows and commit."""
        start = self.session.live.rows_of("meta.rows")
        for plane in self.arena.groups[0].planes:
            plane[:, start : start + rows].fill_(start % 7)
        self.arena["meta.rows"].fill_(start + rows)
        self.session.commit(stamp_ns=1, rows=start + rows)

    def used_bytes(self) -> int:
        return self.session.store.memory.pools[Tier.DEVICE].used_bytes


# -- measurements


def full_copies(report: Report, setting: Setting, size_mb: int) -> None:
    """Snapshot and restore of a fixed set against a plain copy_ of as many bytes, in turns.

    Once with caches emptied before each (`full_*`: data and code come from memory, as after a
    tick of a large model), once one after the other (`warm_*`).
    """
    session = fixed_session(size_mb * MB, setting)
    fresh = timed(session.snapshot)
    session.drop(session.snapshot())
    copy = _full_copies(report, setting, session, size_mb, warm=False)
    _full_copies(report, setting, session, size_mb, warm=True)
    params = {"bytes": session.arena.geometry.fixed_nbytes}
    name = f"first_snapshot_{size_mb}MB"
    report.add(row_of(name, [fresh], params=params, baseline=copy, ratio=copy / fresh))


def _full_copies(
    report: Report, setting: Setting, session: Session, size_mb: int, *, warm: bool
) -> float:
    nbytes = session.arena.geometry.fixed_nbytes
    source = torch.ones(nbytes, dtype=torch.uint8, device=setting.device)
    target = torch.zeros_like(source)
    snapshots, restores, copies = [], [], []
    made: list[Capsule] = []
    kept = session.snapshot("kept", overwrite=True)
    cache = torch.zeros(0 if warm else 64 * MB // 4)  # larger than caches
    for turn in range(setting.samples):
        cache.fill_(turn)
        copies.append(timed(lambda: target.copy_(source)))
        cache.fill_(turn)
        snapshots.append(timed(lambda: made.append(session.snapshot())))
        cache.fill_(turn)
        restores.append(timed(lambda: session.restore(kept)))
        session.drop(made.pop())
    copy = statistics.median(copies)
    params = {"bytes": nbytes}
    kind, plain = ("warm", "warm_copy") if warm else ("full", "plain_copy")
    report.add(row_of(f"{plain}_{size_mb}MB", copies, params=params))
    for verb, samples in (("snapshot", snapshots), ("restore", restores)):
        name = f"{kind}_{verb}_{size_mb}MB"
        report.add(row_of(name, samples, params=params, against=copies))
    return copy


def rollbacks(report: Report, setting: Setting) -> None:
    """One step of 16 rows back, with a long and with a short prefix before it."""
    samples: dict[int, list[float]] = {}
    machines = {}
    for rows in (setting.short_rows, setting.long_rows):
        made = RowsSession(setting.long_rows + 64, setting)
        made.append(rows)
        made.session.snapshot("before")
        machines[rows], samples[rows] = made, []
    for _ in range(setting.samples * 4):
        for rows, made in machines.items():
            made.append(16)
            samples[rows].append(timed(partial(made.session.rollback, count=1)))
    copied = machines[setting.long_rows].session.rollback(boundary=1).rows_copied
    short, long = (statistics.median(samples[r]) for r in (setting.short_rows, setting.long_rows))
    report.add(
        row_of("rollback_2k", samples[setting.short_rows], params={"rows": setting.short_rows})
    )
    report.add(
        row_of(
            "rollback_16k_over_2k",
            samples[setting.long_rows],
            params={"rows": setting.long_rows, "rows_copied": copied},
            baseline=short,
            ratio=long / short,
        )
    )


def growth(report: Report, setting: Setting) -> None:
    """A second snapshot 16 rows after the first: bytes that it adds, and its time."""
    made = RowsSession(setting.long_rows + 4096, setting)
    made.append(setting.long_rows)
    made.session.snapshot("first-of-two")
    samples, own = [], 0
    cache = torch.zeros(64 * MB // 4)
    kept: list[Capsule] = []
    for _ in range(min(setting.samples, 64)):
        made.append(16)
        made.session.store.flush()  # the time between two ticks: fresh pages are touched in it
        cache.fill_(len(kept))
        samples.append(timed(lambda: kept.append(made.session.snapshot())))
        own = made.session.store.info(kept[-1]).own_bytes
    expected = made.fixed_nbytes + 16 * made.row_nbytes
    report.add(
        Row(
            "snapshot_16_rows_later_bytes",
            {"rows": setting.long_rows},
            "bytes",
            own,
            own,
            1,
            expected,
            own / expected,
        )
    )
    copy = _copy_time(expected, setting)
    ratio = copy / statistics.median(samples)
    report.add(
        row_of(
            "snapshot_16_rows_later",
            samples,
            params={"bytes": expected},
            baseline=copy,
            ratio=ratio,
        )
    )


def forks(report: Report, setting: Setting) -> None:
    """16 branches of a long prefix, each of which went on for 16 rows and was frozen."""
    made = RowsSession(setting.long_rows + 64, setting)
    before = made.used_bytes()
    made.append(setting.long_rows)
    branches = made.session.fork(count=16)
    for branch in branches:
        made.session.restore(branch)
        made.append(16)
        made.session.snapshot()
        made.session.drop(branch)
    prefix = setting.long_rows * made.row_nbytes
    used = made.used_bytes() - before
    share = (used - 16 * made.fixed_nbytes) / prefix
    report.add(
        Row(
            "fork_16_memory",
            {"rows": setting.long_rows, "fixed_bytes": made.fixed_nbytes},
            "bytes",
            used,
            used,
            1,
            prefix,
            share,
        )
    )


def overheads(report: Report, setting: Setting) -> None:
    """Verbs on a state of a few bytes: what is left when there is nothing to copy."""
    spec = BufferSpec("meta.step", Role.META, torch.int64, ())
    arena = Arena([spec], setting.device)
    store = Store(setting.device)
    session = Session(arena, fingerprint=Fingerprint("bench"), store=store)
    session.commit(stamp_ns=1)
    session.snapshot("kept")
    verbs: dict[str, Callable[[], object]] = {
        "commit": lambda: session.commit(stamp_ns=1),
        "snapshot": lambda: made.append(session.snapshot()),
        "restore": lambda: session.restore("kept"),
        "rollback": lambda: session.rollback(count=1),
        "fork": lambda: made.extend(session.fork("kept")),
        "drop": lambda: session.drop(made.pop()),
        "raise_epoch": session.raise_epoch,
    }
    made: list[Capsule] = []
    samples: dict[str, list[float]] = {name: [] for name in verbs}
    for _ in range(setting.samples * 20):
        for name, verb in verbs.items():
            samples[name].append(timed(verb))
        session.drop(made.pop())
        session.restore("kept")
    for name, taken in samples.items():
        report.add(row_of(f"overhead_{name}", taken))
    auto = Session(
        Arena([spec], setting.device), fingerprint=Fingerprint("bench"), auto=AutoSnapshots(keep=64)
    )
    ticks = [timed(lambda: auto.commit(stamp_ns=1)) for _ in range(setting.samples * 20)]
    report.add(row_of("overhead_commit_with_snapshot", ticks, params={"kept": 64}))


def disk(report: Report, setting: Setting) -> None:
    """To disk (durable) and back, checksums included."""
    size = setting.sizes_mb[-2] if len(setting.sizes_mb) > 1 else setting.sizes_mb[0]
    with tempfile.TemporaryDirectory(prefix="flashrt-bench-") as directory:
        store = Store(setting.device, directory=directory, budgets=Budgets(device=None, host=0))
        session = fixed_session(size * MB, setting, store=store)
        writes, reads = [], []
        for _ in range(max(3, setting.samples // 10)):
            capsule = session.snapshot()
            writes.append(timed(partial(session.move, capsule, Tier.DISK)))
            reads.append(timed(partial(session.restore, capsule)))
            session.drop(capsule)
        store.close()
    params = {"bytes": size * MB}
    report.add(row_of(f"to_disk_{size}MB", writes, unit="ms", params=params))
    report.add(row_of(f"restore_from_disk_{size}MB", reads, unit="ms", params=params))


def layouts(report: Report, setting: Setting) -> None:
    """Attention over the live rows, and copies of rows, for each layout of append buffers."""
    rows = setting.long_rows
    machines = {layout: RowsSession(rows + 64, setting, layout) for layout in Layout}
    attention = torch.nn.functional.scaled_dot_product_attention
    query = torch.ones(1, RowsSession.heads, 1, RowsSession.width, dtype=torch.bfloat16)
    query = query.to(setting.device)
    caches = {}
    for layout, made in machines.items():
        made.append(rows)
        parts = [f"layer0.attention.{part}" for part in ("key", "value")]
        caches[layout.value] = [made.arena[part][None, :, :rows] for part in parts]
    # a buffer of its own for each, rows outermost
    caches["rows outermost"] = [
        part.transpose(1, 2).contiguous().transpose(1, 2) for part in caches["shape"]
    ]
    attend: dict[str, list[float]] = {name: [] for name in caches}
    for _ in range(setting.samples):
        for name, (key, value) in caches.items():
            attend[name].append(timed(partial(attention, query, key, value)))
    baseline = statistics.median(attend["shape"])
    for name, samples in attend.items():
        report.add(
            row_of(
                "layout_attention",
                samples,
                params={"layout": name, "rows": rows},
                baseline=baseline,
                ratio=statistics.median(samples) / baseline,
            )
        )
    for layout, made in machines.items():
        _layout_copies(report, setting, layout, made)


def _layout_copies(report: Report, setting: Setting, layout: Layout, made: RowsSession) -> None:
    few, all_rows = [], []
    made.session.snapshot("whole")
    for _ in range(max(5, setting.samples // 5)):
        made.append(16)
        few.append(timed(lambda: made.session.snapshot("tail", overwrite=True)))
        made.session.reset()
        all_rows.append(timed(lambda: made.session.restore("whole")))
    params = {"layout": layout.value, "rows": 16}
    report.add(row_of("layout_snapshot", few, params=dict(params)))
    params["rows"] = setting.long_rows
    report.add(row_of("layout_restore", all_rows, params=dict(params)))


def _copy_time(nbytes: int, setting: Setting) -> float:
    source = torch.ones(nbytes, dtype=torch.uint8, device=setting.device)
    target = torch.zeros_like(source)
    cache = torch.zeros(64 * MB // 4)
    samples = []
    for turn in range(setting.samples):
        cache.fill_(turn)
        samples.append(timed(lambda: target.copy_(source)))
    return statistics.median(samples)
