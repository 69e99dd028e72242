# SPDX-License-Identifier: Apache-2.0
"""Records topics into a rosbag2 bag (MCAP) without rosbag2.

Messages are stored as they came over the wire; their definitions are stored with them, so that
the bag opens in `ros2 bag`, in Foxglove and with the `rosbags` library.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_share_directory
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosbags.interfaces import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

_BAG_VERSION = 9
_FOREVER = QosTime(0x7FFFFFFF, 0xFFFFFFFF)


@dataclass(frozen=True)
class Topic:
    """A topic to record.

    Attributes:
        name: as a subscription takes it, relative to the recorder's node or absolute.
        kind: the message class.
        latched: offered transient local, so that the bag has the newest from before the start.
        reliable: lose nothing; False also matches best-effort publishers.
    """

    name: str
    kind: Any
    latched: bool = False
    reliable: bool = True


def typestore_with(*packages: str) -> Typestore:
    """The common interfaces and every message of some installed packages.

    A package whose messages need those of another one comes after it, or with it.
    """
    store = get_typestore(Stores.LATEST)
    types: dict[str, Any] = {}
    for package in packages:
        for path in sorted((Path(get_package_share_directory(package)) / "msg").glob("*.msg")):
            types |= get_types_from_msg(path.read_text("utf-8"), f"{package}/msg/{path.stem}")
    store.register(types)
    return store


def type_name(kind: Any) -> str:
    """`sensor_msgs/msg/Image` of its class."""
    return f"{kind.__module__.partition('.')[0]}/msg/{kind.__name__}"


def message_class(name: str) -> Any:
    """The class of `sensor_msgs/msg/Image`.

    Raises:
        ModuleNotFoundError, AttributeError: the package, or its message, is not installed.
    """
    package, _, kind = name.partition("/msg/")
    return getattr(importlib.import_module(f"{package}.msg"), kind)


class BagRecorder:
    """Writes what a node receives until it is closed.

    Args:
        node: spun by another thread.
        path: a directory that does not exist yet.
        topics: what to record.
        storage: MCAP, or SQLite3 as older tools want it.
        compressed: chunks are compressed with zstd (MCAP), or messages (SQLite3).

    Raises:
        rosbags.rosbag2.WriterError: the directory exists.
    """

    def __init__(
        self,
        node: Node,
        path: Path,
        topics: Sequence[Topic],
        *,
        storage: StoragePlugin = StoragePlugin.MCAP,
        compressed: bool = False,
    ) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._writer: Writer | None = Writer(path, version=_BAG_VERSION, storage_plugin=storage)
        if compressed:
            by_chunk = storage is StoragePlugin.MCAP
            mode = CompressionMode.STORAGE if by_chunk else CompressionMode.MESSAGE
            self._writer.set_compression(mode, CompressionFormat.ZSTD)
        self._writer.open()
        self._typestore = typestore_with(*_packages(topics))
        self.counts: Counter[str] = Counter()
        self._names = [node.resolve_topic_name(topic.name) for topic in topics]
        self._subscriptions = [self._subscribe(topic) for topic in topics]

    def wait_for_publishers(self, timeout: float = 30.0) -> None:
        """Wait until every topic has a publisher that knows of this recorder.

        What is sent before that is not in the bag.

        Raises:
            TimeoutError: names the topics without one.
        """
        deadline = time.monotonic() + timeout
        while missing := [name for name in self._names if not self._node.count_publishers(name)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no publisher of {', '.join(missing)} within {timeout} s")
            time.sleep(0.05)
        time.sleep(0.5)  # a publisher learns of its readers a little after the graph shows it

    def drain(self, quiet: float = 0.5, timeout: float = 5.0) -> None:
        """Wait until nothing has come for `quiet` s: what was sent last is still on its way.

        Messages that go on coming end the wait after `timeout` s.
        """
        began = changed = time.monotonic()
        count = -1
        while (now := time.monotonic()) - changed < quiet and now - began < timeout:
            with self._lock:
                if (seen := self.counts.total()) != count:
                    count, changed = seen, now
            time.sleep(0.02)

    def close(self) -> None:
        """Stop recording and write the index. Idempotent."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _subscribe(self, topic: Topic) -> Any:
        assert self._writer is not None
        name = self._node.resolve_topic_name(topic.name)
        connection = self._writer.add_connection(
            name,
            type_name(topic.kind),
            typestore=self._typestore,
            offered_qos_profiles=[_offered(topic)],
        )

        def on_message(data: bytes) -> None:
            with self._lock:
                if self._writer is not None:
                    self._writer.write(connection, time.time_ns(), data)
                    self.counts[name] += 1

        profile = QoSProfile(
            depth=1000,
            reliability=(
                ReliabilityPolicy.RELIABLE if topic.reliable else ReliabilityPolicy.BEST_EFFORT
            ),
            durability=(
                DurabilityPolicy.TRANSIENT_LOCAL if topic.latched else DurabilityPolicy.VOLATILE
            ),
        )
        return self._node.create_subscription(topic.kind, name, on_message, profile, raw=True)


def _packages(topics: Sequence[Topic]) -> list[str]:
    """Packages whose messages the common interfaces don't have; ours is always among them."""
    known = get_typestore(Stores.LATEST).fielddefs
    others = {type_name(topic.kind) for topic in topics} - known.keys()
    return sorted({"flashrt_ros"} | {name.partition("/")[0] for name in others})


def _offered(topic: Topic) -> Qos:
    """The profile with which `ros2 bag play` publishes the topic again."""
    return Qos(
        history=QosHistory.KEEP_LAST,
        depth=1000,
        reliability=QosReliability.RELIABLE if topic.reliable else QosReliability.BEST_EFFORT,
        durability=QosDurability.TRANSIENT_LOCAL if topic.latched else QosDurability.VOLATILE,
        deadline=_FOREVER,
        lifespan=_FOREVER,
        liveliness=QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=_FOREVER,
        avoid_ros_namespace_conventions=False,
    )
