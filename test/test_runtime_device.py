# SPDX-License-Identifier: Apache-2.0
"""Unified memory is one memory, and threads run where they were told to."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest
import torch

from flashrt_ros.runtime import (
    Arena,
    Budgets,
    BufferSpec,
    Fingerprint,
    Role,
    Session,
    Store,
    Tier,
    tiers,
)  # fmt: skip
from flashrt_ros.runtime.device import device_memory, is_unified
from flashrt_ros.runtime.errors import InvalidArgument
from flashrt_ros.runtime.threads import pin, pin_from_environment, processors_of


@pytest.mark.parametrize(
    ("properties", "given", "unified"),
    [
        (SimpleNamespace(is_integrated=1), None, True),
        (SimpleNamespace(is_integrated=0), None, False),
        (SimpleNamespace(), None, False),
        (SimpleNamespace(is_integrated=0), "1", True),
        (SimpleNamespace(is_integrated=1), "0", False),
    ],
)
def test_a_gpu_is_unified_as_its_driver_says_unless_overruled(
    monkeypatch, properties, given, unified
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.delenv("FLASHRT_UNIFIED_MEMORY", raising=False)
    if given is not None:
        monkeypatch.setenv("FLASHRT_UNIFIED_MEMORY", given)
    assert is_unified("cuda:0") is unified
    assert not is_unified("cpu")
    assert (Budgets.default(torch.device("cuda:0")).host == 0) is unified


def test_an_override_that_is_no_answer_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("FLASHRT_UNIFIED_MEMORY", "yes")
    with pytest.raises(InvalidArgument, match="'yes', expected 0 or 1"):
        is_unified("cuda")


def test_available_memory_is_what_linux_says() -> None:
    memory = device_memory("cpu")
    assert 0 < memory.available_bytes < memory.total_bytes
    assert not memory.unified


def test_on_unified_memory_a_move_to_the_host_copies_nothing_and_keeps_the_capsule(
    monkeypatch,
) -> None:
    monkeypatch.setattr(tiers, "is_unified", lambda device: True)
    arena = Arena([BufferSpec("x", Role.RECURRENT, torch.float32, (64,))])
    arena["x"].fill_(3.0)
    store = Store("cpu", budgets=Budgets(host=1 << 20))
    session = Session(arena, fingerprint=Fingerprint("unified"), store=store)
    kept = session.snapshot("kept")
    assert kept.fixed is not None
    block, used = kept.fixed.block, store.memory.pools[Tier.DEVICE].used_bytes
    session.move(kept, Tier.HOST)
    assert store.info(kept).tier is Tier.HOST
    assert kept.fixed.block is block
    assert store.memory.pools[Tier.DEVICE].used_bytes == used
    arena["x"].zero_()
    session.restore(kept)
    assert arena["x"].tolist() == [3.0] * 64


@pytest.mark.parametrize(
    ("text", "processors"), [("2,3", {2, 3}), ("4-7", {4, 5, 6, 7}), ("0, 4-5", {0, 4, 5})]
)
def test_processors_are_listed_as_for_taskset(text, processors) -> None:
    assert processors_of(text) == processors


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-2"])
def test_what_is_no_list_of_processors_is_refused(text) -> None:
    with pytest.raises(InvalidArgument, match="processors"):
        processors_of(text)


def test_a_pinned_thread_and_those_that_it_starts_stay_where_they_were_put(monkeypatch) -> None:
    chosen = min(os.sched_getaffinity(0))
    seen: list[set[int]] = []

    def work() -> None:
        monkeypatch.setenv("FLASHRT_CPUS", str(chosen))
        pin_from_environment()
        child = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        child.start()
        child.join()

    thread = threading.Thread(target=work)  # so that this process's own affinity stays
    thread.start()
    thread.join()
    assert seen == [{chosen}]
    with pytest.raises(InvalidArgument, match="not this process's to use"):
        pin(frozenset({100000}))
