# SPDX-License-Identifier: Apache-2.0
"""The stream that capsules are copied on, ordered against the replays' by events.

On the replays' own stream a capsule that moves to the host would hold the next tick up; on one that
nothing orders it would read what a replay is still writing. Seen by tests on the CPU, where there
is nothing to order; never run on a GPU so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def copying(device: torch.device, *, after_replays: bool) -> Iterator[None]:
    """Copies queued inside go to the device's copy stream; all are done when this is left.

    after_replays: they wait for what the caller's stream has queued so far, and what it queues
    later waits for them: for copies from and to the live state. Without, they share nothing with
    it: moves of capsules between tiers, which a replay need not wait for.
    """
    if device.type != "cuda":
        yield
        return
    lane = _lane(device.index if device.index is not None else torch.cuda.current_device())
    current = torch.cuda.current_stream(device)
    if after_replays:
        lane.wait_event(current.record_event())
    with torch.cuda.stream(lane):
        yield
    done = lane.record_event()
    if after_replays:
        current.wait_event(done)
    done.synchronize()  # for these copies alone, not for the device


@cache
def _lane(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
