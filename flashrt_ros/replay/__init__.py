# SPDX-License-Identifier: Apache-2.0
"""Bags in, the same actions out.

    run = open_run("bag")
    report = replay(run)
    assert report.identical, report.difference.message

Nothing here needs DDS; `replay.live` and `replay.recorder` do.
"""

from flashrt_ros.replay.drift import drift
from flashrt_ros.replay.offline import replay
from flashrt_ros.replay.outcome import (
    Difference,
    DriftReport,
    ReplayedBoundary,
    ReplayReport,
    WhatIfBranch,
    WhatIfReport,
)
from flashrt_ros.replay.parsing import open_run
from flashrt_ros.replay.run import CannotReplay, ReadInput, Run, RunChunk, RunEvent, RunInfo
from flashrt_ros.replay.whatif import what_if

__all__ = [
    "CannotReplay",
    "Difference",
    "DriftReport",
    "ReadInput",
    "ReplayReport",
    "ReplayedBoundary",
    "Run",
    "RunChunk",
    "RunEvent",
    "RunInfo",
    "WhatIfBranch",
    "WhatIfReport",
    "drift",
    "open_run",
    "replay",
    "what_if",
]
