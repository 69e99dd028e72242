# SPDX-License-Identifier: Apache-2.0
"""Bags to runs."""

from __future__ import annotations

from pathlib import Path

from flashrt_ros.replay.run import Run


def open_run(path: str | Path, node: str | None = None, session: str | None = None) -> Run:
    """The run of a bag: a folder with metadata.yaml, or one .mcap or .db3 file.

    Args:
        path: of the bag.
        node: name of the policy node; needed where a bag has several.
        session: id, or its beginning; needed where the node had several.

    Raises:
        CannotReplay: what is missing, or which nodes or sessions there are to choose from.
    """
    raise NotImplementedError
