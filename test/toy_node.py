# SPDX-License-Identifier: Apache-2.0
"""policy_node with the small policy of the engine's tests: starts fast and ticks in no time."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from toy_policy import ToyPolicy

from flashrt_ros.ros import policy_node
from flashrt_ros.ros.process import leave


class HangingPolicy(ToyPolicy):
    """Its second tick never ends."""

    def tick(self) -> None:
        if self.started.is_set():
            print("hanging", flush=True)
            threading.Event().wait()
        super().tick()


def load(name: str, **options: Any) -> ToyPolicy:
    return HangingPolicy() if name == "hanging" else ToyPolicy()


if __name__ == "__main__":
    policy_node.load_policy = load  # type: ignore[assignment]
    leave(policy_node.main())
