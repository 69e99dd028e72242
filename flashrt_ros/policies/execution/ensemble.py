# SPDX-License-Identifier: Apache-2.0
"""Temporal ensembling: the average of all chunks that say something about a point in time.

Source: ACT (Zhao et al. 2023, arXiv 2304.13705), section IV: weights w_i = exp(-m i), w_0 for the
oldest chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flashrt_ros.policies.trajectory import Trajectory


def averaged(chunks: Sequence[Trajectory], decay: float) -> Trajectory:
    """The newest of `chunks` (oldest first), each point averaged with those of the older ones.

    A chunk counts at a point if it reaches that far; between its points it is linear.
    """
    newest = chunks[-1]
    stamps = newest.start_ns + np.rint(newest.times * 1e9).astype(np.int64)
    positions = np.empty_like(newest.positions)
    for index, stamp in enumerate(stamps):
        said = [chunk.at(int(stamp)) for chunk in chunks[:-1] if stamp <= chunk.end_ns]
        said.append(newest.positions[index])
        weights = np.exp(-decay * np.arange(len(said)))
        positions[index] = weights @ np.stack(said) / weights.sum()
    return replace(newest, positions=positions)
