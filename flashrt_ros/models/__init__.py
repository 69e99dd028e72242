# SPDX-License-Identifier: Apache-2.0
"""Networks adopted into buffers."""

from __future__ import annotations

import json
from pathlib import Path

from flashrt_ros.models.policy import PolicyModel, PolicySpec

__all__ = ["PolicyModel", "PolicySpec", "load_policy"]


def load_policy(path: str | Path, device: str = "cpu") -> PolicyModel:
    """The policy of a checkpoint directory; `config.json` names its kind.

    Raises FileNotFoundError naming the file that is missing, ValueError for a kind that is not
    known or files that do not fit each other.
    """
    folder = Path(path)
    config = folder / "config.json"
    if not config.exists():
        raise FileNotFoundError(f"{folder} has no config.json: not a checkpoint directory")
    kind = json.loads(config.read_text()).get("model_type")
    if kind == "streaming_vla":
        from flashrt_ros.models.streaming_vla.adapter import StreamingVLAPolicy

        return StreamingVLAPolicy(folder, device)
    raise ValueError(f"{config}: model_type is {kind!r}, expected 'streaming_vla'")
