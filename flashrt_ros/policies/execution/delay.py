# SPDX-License-Identifier: Apache-2.0
"""What a tick has to know about the chunk under way, in whole numbers.

Real-time chunking (Black, Galliker and Levine 2025, arXiv 2506.07339, algorithm 1): the delay that
is expected is the longest of the last ones, and the actions due within it are frozen.
"""

from __future__ import annotations

from collections.abc import Sequence


def frozen_points(
    *, elapsed_ns: int, delays_ns: Sequence[int], chunk_dt: float, chunk_length: int
) -> int:
    """Points of a new chunk that are due before it can be there, and the one then approached.

    elapsed_ns: from the begin of the chunk under way to the new observation; delays_ns: the last
    delays from an observation to its command. 0: nothing is under way, so nothing is frozen.
    """
    dt_ns = round(chunk_dt * 1e9)
    left = chunk_length - -(-elapsed_ns // dt_ns)  # points of the chunk under way that still count
    if elapsed_ns < 0 or left <= 0:
        return 0
    expected = max(delays_ns, default=0) // dt_ns + 1
    return int(min(expected, left, chunk_length - 1))
