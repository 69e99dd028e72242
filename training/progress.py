# SPDX-License-Identifier: Apache-2.0
"""State that survives an interruption: written beside, then renamed, so it is whole or absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Replace path by state, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(path.suffix + ".partial")
    torch.save(state, partial)
    partial.replace(path)


def load_state(path: Path) -> dict[str, Any] | None:
    """What was saved last, or None."""
    return torch.load(path, weights_only=True) if path.exists() else None
