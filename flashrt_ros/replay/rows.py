# SPDX-License-Identifier: Apache-2.0
"""Rows of a report: what was recorded of an event, beside what was computed."""

from __future__ import annotations

import numpy as np

from flashrt_ros.replay.outcome import ReplayedBoundary
from flashrt_ros.replay.run import RunChunk, RunEvent


def row_of(
    event: RunEvent,
    chunk: RunChunk | None = None,
    actual: np.ndarray | None = None,
    inference_s: float = 0.0,
) -> ReplayedBoundary:
    """A row of the report."""
    expected = chunk.positions if chunk is not None and chunk.is_policy_output else None
    note = ""
    if event.kind == "COMMIT" and chunk is None:
        note = "the bag has no chunk of this boundary"
    elif chunk is not None and expected is None:
        note = (
            f"not the policy's output alone: execution {chunk.execution or '?'}, "
            f"{chunk.frozen_points} frozen and {chunk.limited_points} limited points"
        )
    error = None
    if expected is not None and actual is not None and expected.shape == actual.shape:
        error = np.abs(actual - expected).max(axis=0)
    return ReplayedBoundary(
        index=event.index,
        number=event.boundary,
        parent=event.parent,
        step=event.step,
        epoch=event.epoch,
        stamp_ns=event.stamp_ns,
        event=event.kind,
        name=event.name,
        instruction=event.instruction,
        motion=event.motion,
        expected=expected,
        actual=actual,
        max_error=error,
        inference_s=inference_s,
        recorded_inference_s=chunk.inference_s if chunk is not None else 0.0,
        note=note,
    )


def covered_s(rows: list[ReplayedBoundary]) -> float:
    """Time that the replayed part of the run took, s, by the node's clock."""
    stamps = np.array([row.stamp_ns for row in rows], dtype=np.int64)
    steps = np.diff(stamps)
    return float(steps[steps > 0].sum() * 1e-9)
