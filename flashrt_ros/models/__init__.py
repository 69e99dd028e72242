# SPDX-License-Identifier: Apache-2.0
"""Networks adopted into buffers."""

from __future__ import annotations

import json
from pathlib import Path

from flashrt_ros.models.policy import PolicyModel, PolicySpec

_CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"

__all__ = ["PolicyModel", "PolicySpec", "load_policy"]


def load_policy(path: str | Path, device: str = "cpu") -> PolicyModel:
    """The policy of a checkpoint directory, or of a shipped one by its name, "cued_reach" say.

    `config.json` names its kind. Raises FileNotFoundError naming the file that is missing,
    ValueError for a kind that is not known or files that do not fit each other.
    """
    folder = Path(path)
    shipped = _CHECKPOINTS / path
    if not folder.exists() and len(folder.parts) == 1 and shipped.is_dir():
        folder = shipped
    config = folder / "config.json"
    if not config.exists():
        names = (
            sorted(each.name for each in _CHECKPOINTS.iterdir()) if _CHECKPOINTS.exists() else []
        )
        raise FileNotFoundError(
            f"{folder} has no config.json: expected a checkpoint directory, or the name of a "
            f"shipped one ({', '.join(names) or 'there is none'})"
        )
    content = json.loads(config.read_text())
    kind = content.get("model_type", content.get("type"))  # LeRobot says "type"
    if kind == "streaming_vla":
        from flashrt_ros.models.streaming_vla.adapter import StreamingVLAPolicy

        return StreamingVLAPolicy(folder, device)
    if kind == "pi0":
        from flashrt_ros.models.pi0 import adopt_pi0

        return adopt_pi0(folder, device=device)
    raise ValueError(f"{config}: model_type is {kind!r}, expected 'streaming_vla' or 'pi0'")
