# SPDX-License-Identifier: Apache-2.0
"""Runs of a small policy in process, and their bags as `ros2 bag record` would have written them.

The engine, the messages and the files are real; only the wire between them is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from rclpy.serialization import deserialize_message, serialize_message
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header
from toy_policy import JOINTS, ToyPolicy

from flashrt_ros.msg import ActionChunk, Boundary, RunInfo
from flashrt_ros.policies import EngineOptions, Motion, Observation, PolicyEngine
from flashrt_ros.policies.execution import ExecutionOptions
from flashrt_ros.replay.bag import Bag
from flashrt_ros.replay.recorder import typestore_with
from flashrt_ros.ros import conversions
from flashrt_ros.ros.boundary_seal import complete
from flashrt_ros.ros.decoding import decode_array  # noqa: F401  (what the replay decodes with)
from flashrt_ros.ros.run_info import to_run_info
from flashrt_ros.runtime import Arena, AutoSnapshots, Session, Store

NODE = "/arm/policy_node"
IMAGE, STATE = "/arm/camera/image_raw", "/arm/joint_states"
KINDS = {"Image": Image, "JointState": JointState, "Boundary": Boundary,
         "ActionChunk": ActionChunk, "RunInfo": RunInfo}  # fmt: skip
STEP_NS = 100_000_000


@dataclass
class Line:
    """A recorded message."""

    topic: str
    message: Any
    log_ns: int


@dataclass
class ToyRun:
    """An engine with a toy policy, whose messages are collected instead of published."""

    seed: int = 7
    node: str = NODE
    directory: Path | None = None
    state_digest_every: int = 0
    model: Any = field(default_factory=ToyPolicy)
    name: str = "toy"
    lines: list[Line] = field(default_factory=list)
    instruction: str = "wait"
    start_ns: int = 1_000_000_000
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    sources: dict[str, tuple[str, str]] | None = None
    contract: str = ""

    def __post_init__(self) -> None:
        arena = Arena(self.model.buffer_specs())
        self.model.bind(arena, seed=self.seed)
        arena.seal()
        self.session = Session(
            arena,
            fingerprint=self.model.fingerprint,
            store=Store("cpu", directory=self.directory),
            seed=self.seed,
            auto=AutoSnapshots(keep=8, budget_bytes=1 << 20),
        )
        self.now_ns = self.start_ns
        self._images = np.random.default_rng(self.seed)
        options = EngineOptions(
            instruction=self.instruction, lockstep=True, execution=self.execution
        )
        self.engine = PolicyEngine(
            self.model, self.session, self, clock=lambda: self.now_ns, options=options
        )
        sources = self.sources or {
            **{name: (self._topic(IMAGE), "sensor_msgs/msg/Image") for name in self._cameras},
            "joint_states": (self._topic(STATE), "sensor_msgs/msg/JointState"),
        }
        info = to_run_info(self.engine, self.name, sources, contract=self.contract)
        self._record("run_info", info)
        self.engine.start()
        self.engine.activate()

    # -- what the engine tells

    def on_chunk(self, chunk: Any) -> None:
        names = self.model.spec.joint_names
        self._record("action_chunk", conversions.to_action_chunk(chunk, names))

    def on_command(self, command: Any) -> None:
        pass

    def on_event(self, event: Any) -> None:
        stamp = conversions.to_time(self.now_ns)
        message = conversions.to_boundary(event, self.session.id, self.session.seed, stamp)
        self._record("boundary", complete(message, event, self.session, self.state_digest_every))

    def on_status(self) -> None:
        pass

    # -- what a test does

    def tick(self, count: int = 1) -> None:
        """Show the policy so many observations, and wait for each."""
        for _ in range(count):
            self.now_ns += STEP_NS
            self.show(self._observe())

    def show(self, observation: Observation) -> None:
        """Give the policy an observation, whose messages the test has recorded, and wait."""
        before = self.engine.status.ticks
        self.engine.offer(observation)
        while self.engine.status.ticks == before:
            self.engine.call(lambda session: None)

    def record(self, topic: str, message: Any) -> None:
        """Record a message as one that came over the wire."""
        self._add(topic, message)

    @property
    def _cameras(self) -> list[str]:
        return list(self.model.spec.cameras)

    def verb(self, name: str, *arguments: Any, **options: Any) -> Any:
        """A verb of the engine, or `snapshot` and `fork` of the session."""
        owner = self.session if name in ("snapshot", "fork", "move", "drop") else self.engine
        return self.engine.call(lambda session: getattr(owner, name)(*arguments, **options))

    def say(self, text: str) -> None:
        self.verb("set_instruction", text)

    def close(self) -> None:
        self.engine.close()
        self.session.store.close()

    def write(self, path: Path, **options: Any) -> Path:
        return write_bag(path, self.lines, **options)

    # -- inside

    def _observe(self) -> Observation:
        (camera, (height, width, _)), *_ = self.model.spec.cameras.items()
        pixels = self._images.integers(0, 256, (height, width, 3), dtype=np.uint8)
        positions = self._images.normal(size=len(self.model.spec.joint_names))
        stamp = Header(stamp=conversions.to_time(self.now_ns))
        image = Image(
            header=stamp, height=height, width=width, encoding="rgb8", step=width * 3,
            data=pixels.tobytes(),
        )  # fmt: skip
        names = list(self.model.spec.joint_names)
        state = JointState(header=stamp, name=names[::-1], position=positions[::-1].tolist())
        self._add(self._topic(STATE), state)
        self._add(self._topic(IMAGE), image)
        stamps = {camera: self.now_ns, "joint_states": self.now_ns}
        return Observation(self.now_ns, {camera: pixels}, positions, stamps)

    def _topic(self, name: str) -> str:
        return name.replace("/arm/", self.node.rpartition("/")[0] + "/")

    def _record(self, name: str, message: Any) -> None:
        self._add(f"{self.node}/{name}", message)

    def _add(self, topic: str, message: Any) -> None:
        self.lines.append(Line(topic, message, self.now_ns + len(self.lines)))


def errand(run: ToyRun) -> None:
    """Ticks, and every verb that changes a state or a lineage."""
    run.tick(3)
    run.verb("snapshot", "before")
    run.say("go home")
    run.tick(2)
    run.verb("restore", "before", Motion.REPLAN)
    run.say("reach")
    run.tick(3)
    run.verb("rollback", Motion.REPLAN, count=2)
    run.tick(2)
    run.verb("interrupt")
    run.verb("resume", Motion.REPLAN)
    run.tick(1)
    run.verb("restore", "before", Motion.REPLAN, roles={"recurrent", "random"})
    run.tick(2)
    run.verb("reset", Motion.REPLAN)
    run.tick(2)


@lru_cache
def definitions() -> Any:
    """Of every message that a bag here has."""
    return typestore_with("flashrt_ros")


def write_bag(
    path: Path,
    lines: Iterable[Line],
    *,
    plugin: StoragePlugin = StoragePlugin.MCAP,
    configure: Callable[[Writer], None] | None = None,
    store: Any = None,
) -> Path:
    """As rosbag2 writes it: topic-wise, definitions embedded, metadata.yaml beside."""
    store = store or definitions()
    writer = Writer(path, version=9, storage_plugin=plugin)
    if configure is not None:
        configure(writer)
    writer.open()
    connections: dict[str, Any] = {}
    for line in lines:
        if line.topic not in connections:
            package = type(line.message).__module__.partition(".")[0]
            kind = f"{package}/msg/{type(line.message).__name__}"
            connections[line.topic] = writer.add_connection(line.topic, kind, typestore=store)
        writer.write(connections[line.topic], line.log_ns, serialize_message(line.message))
    writer.close()
    return path


def changed(
    lines: list[Line], topic: str, number: int, change: Callable[[Any], None]
) -> list[Line]:
    """A copy of the lines, with one message of a topic changed."""
    found = [index for index, line in enumerate(lines) if line.topic.endswith(topic)][number]
    copy = deserialize_message(serialize_message(lines[found].message), type(lines[found].message))
    change(copy)
    return [
        *lines[:found],
        Line(lines[found].topic, copy, lines[found].log_ns),
        *lines[found + 1 :],
    ]


def events(lines: list[Line], kind: int) -> list[int]:
    """Which of the boundary messages are of a kind."""
    messages = [line.message for line in lines if line.topic.endswith("/boundary")]
    return [number for number, message in enumerate(messages) if message.event == kind]


__all__ = [
    "IMAGE", "JOINTS", "NODE", "STATE", "Bag", "Line", "SimpleNamespace", "Stores", "Time",
    "ToyRun", "changed", "errand", "events", "get_typestore", "write_bag",
]  # fmt: skip
