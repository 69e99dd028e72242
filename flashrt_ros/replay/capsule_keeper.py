# SPDX-License-Identifier: Apache-2.0
"""Keeps a capsule every so many ticks while a bag is recorded, so that a replay can jump there."""

from __future__ import annotations

import json
import queue
import shutil
import threading
from pathlib import Path

from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

from flashrt_ros.client import ServiceCaller
from flashrt_ros.msg import Boundary, RunInfo
from flashrt_ros.runtime.directory import CapsuleDirectory
from flashrt_ros.srv import MoveCapsule, Snapshot

TAG = "recorded"


class CapsuleKeeper:
    """Asks the policy node for snapshots on disk, and copies them beside the bag at the end.

    Both verbs are in the bag as every verb is; neither changes the live state. The first capsule is
    made at once: a recording that begins in mid-session has something to begin from.

    Args:
        node: spun by another thread.
        policy: full name of the policy node.
        info: its run info: where its capsules on disk are.
        every: ticks between two capsules.

    Raises:
        OSError: the node has no directory of capsules, or it is not on this machine.
    """

    def __init__(self, node: Node, policy: str, info: RunInfo, every: int) -> None:
        parameters = json.loads(info.parameters_json or "{}")
        self._directory = Path(str(parameters.get("capsule_directory") or ""))
        if not parameters.get("capsule_directory") or not self._directory.is_dir():
            raise OSError(
                f"{policy} has no directory of capsules on this machine (parameter "
                f"capsule_directory is '{parameters.get('capsule_directory', '')}'): give it one"
            )
        self._node = node
        self._policy = policy
        self._session = info.session
        self._every = every
        self._restored: set[str] = set()
        self._failures: list[str] = []
        self._caller = ServiceCaller(node, timeout=10.0)
        self._due: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._due.put(True)
        self._thread = threading.Thread(target=self._serve, name="capsules", daemon=True)
        self._thread.start()
        profile = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
        self._subscription = node.create_subscription(
            Boundary, f"{policy}/boundary", self._on_boundary, profile
        )

    def close(self, folder: Path) -> int:
        """Copy the session's capsules, and those that it restored; returns how many."""
        self._node.destroy_subscription(self._subscription)
        self._due.put(False)
        self._thread.join(30.0)
        self._caller.close()
        for failure in dict.fromkeys(self._failures):
            self._node.get_logger().warning(failure)
        return copy_capsules(self._directory, folder, self._session, self._restored)

    def _on_boundary(self, message: Boundary) -> None:
        if message.event == Boundary.COMMIT and message.step % self._every == 0:
            self._due.put(True)
        elif message.event in (Boundary.RESTORE, Boundary.ROLLBACK):
            self._restored.add(message.capsule)

    def _serve(self) -> None:
        while self._due.get():
            try:
                self._keep()
            except Exception as error:  # a capsule less must not end the recording
                self._failures.append(f"no capsule: {error}")

    def _keep(self) -> None:
        made = self._caller.call(
            Snapshot, f"{self._policy}/capsule/snapshot", Snapshot.Request(tags=[TAG])
        )
        if not made.success:
            raise RuntimeError(f"snapshot: {made.message}")
        request = MoveCapsule.Request(capsule=made.capsule.id, tier="disk")
        moved = self._caller.call(MoveCapsule, f"{self._policy}/capsule/move", request)
        if not moved.success:
            raise RuntimeError(f"move: {moved.message}")


def copy_capsules(source: Path, target: Path, session: str, ids: set[str]) -> int:
    """Copy the capsules of a session, and those with these ids, with the rows that they share."""
    directory = CapsuleDirectory(source, create=False)
    chosen = [
        stored
        for stored in directory.entries()[0]
        if stored.meta.session == session or stored.meta.id in ids
    ]
    CapsuleDirectory(target)  # makes the folders
    for stored in chosen:
        path = stored.header.path
        for piece in stored.pieces:
            row = source / "rows" / f"{piece.id}{path.suffix}"
            shutil.copy2(row, target / "rows" / row.name)
        shutil.copy2(path, target / "capsules" / path.name)
    return len(chosen)
