# SPDX-License-Identifier: Apache-2.0
"""policy_node with the small policy of the engine's tests: starts fast and ticks in no time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from toy_policy import ToyPolicy

from flashrt_ros.ros import policy_node


def load(name: str, **options: Any) -> ToyPolicy:
    return ToyPolicy()


if __name__ == "__main__":
    policy_node.load_policy = load  # type: ignore[assignment]
    sys.exit(policy_node.main())
