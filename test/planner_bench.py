# SPDX-License-Identifier: Apache-2.0
"""A policy node with a toy policy, its sensors, and a model of what should be live in it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from ros_rig import PATIENCE, POLICY, RELIABLE, Inbox, Rig, rig
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header
from toy_policy import JOINTS, ToyPolicy

from flashrt_ros.client import LineageView
from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.msg import Boundary, RecordedObservation
from flashrt_ros.policies import Observation
from flashrt_ros.ros.conversions import to_ns, to_time
from flashrt_ros.runtime import Arena, AutoSnapshots, Code, RuntimeFault, Session, StateItem
from flashrt_ros.runtime.transfer import buffer_digests

POSITIONS = (0.1, 0.2)
PARAMETERS = (
    "instruction:=wait",
    "seed:=3",
    "observation_timeout:=0.0",
    "tick_period:=0.0",
    "max_skew:=10.0",
    "state_digest_every:=1",
)


class ToySensors:
    """The camera and the joints of the toy policy."""

    def __init__(self, made: Rig) -> None:
        self._images = made.node.create_publisher(Image, "camera/image_raw", RELIABLE)
        self._joints = made.node.create_publisher(JointState, "joint_states", RELIABLE)

    def show(self, value: int) -> int:
        """Publish one observation, every pixel of this value; its stamp, ns."""
        stamp_ns = time.time_ns()
        message = self.observation(value, stamp_ns)
        self._joints.publish(message.joint_states)
        self._images.publish(message.images[0])
        return stamp_ns

    @staticmethod
    def observation(value: int, stamp_ns: int) -> RecordedObservation:
        header = Header(stamp=to_time(stamp_ns))
        image = Image(
            header=header, height=4, width=4, encoding="rgb8", step=12, data=bytes([value]) * 48
        )
        joints = JointState(header=header, name=list(JOINTS), position=list(POSITIONS))
        return RecordedObservation(
            header=header, camera_names=["camera"], images=[image], joint_states=joints
        )

    def wait_for_subscribers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (self._images.get_subscription_count() and self._joints.get_subscription_count()):
            assert time.monotonic() < deadline, "the policy node does not subscribe"
            time.sleep(0.02)


@contextmanager
def toy_robot(namespace: str, log_dir: Path, *parameters: str) -> Iterator[tuple[Rig, ToySensors]]:
    """An active node that ticks on what the sensors show."""
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = f"{here}:{os.environ.get('PYTHONPATH', '')}"
    with rig(namespace, log_dir) as made:
        arguments = made._arguments((*PARAMETERS, *parameters))
        made.processes.start(POLICY, "toy_node", arguments)
        sensors = ToySensors(made)
        bring_up(made.caller, POLICY)
        sensors.wait_for_subscribers()
        yield made, sensors


class Mirror:
    """What should be live in the node: the same verbs on a session of the runtime, without ROS.

    Boundary numbers, steps, epochs, codes and buffers follow from it.
    """

    def __init__(self) -> None:
        self.policy = ToyPolicy()
        arena = Arena(self.policy.buffer_specs())
        self.policy.bind(arena, seed=3)
        self.session = Session(
            arena,
            fingerprint=self.policy.fingerprint,
            seed=3,
            auto=AutoSnapshots(keep=64, budget_bytes=256_000_000),
        )
        self.instruction = "wait"
        self.policy.write_instruction("wait")
        self.session.register_state(
            StateItem("instruction", lambda: self.instruction, lambda value: None, self._set)
        )
        self.held = False

    def _set(self, value: str) -> None:
        self.instruction = value

    def attempt(self, verb: Callable[[], Any]) -> Code:
        try:
            verb()
        except RuntimeFault as fault:
            return fault.code
        return Code.OK

    def set_instruction(self, text: str) -> None:
        self.instruction = text
        self.policy.write_instruction(text)

    def tick(self, value: int, stamp_ns: int) -> None:
        image = np.full((4, 4, 3), value, dtype=np.uint8)
        seen = Observation(stamp_ns, {"camera": image}, np.array(POSITIONS), {})
        self.policy.write_observation(seen.images, seen.positions)
        self.policy.tick()
        self.session.commit(stamp_ns=stamp_ns)

    def buffers(self) -> dict[str, str]:
        """Name to the first 16 digits of the SHA-256 of each live buffer, as boundaries have it."""
        digests = buffer_digests(self.session.arena, dict(self.session.live.rows))
        return {name: digest[:16] for name, digest in digests.items()}

    def future(self, name: str, instruction: str, seed: int, values: list[int]) -> list[bytes]:
        """The chunks of some ticks from a capsule (empty: from what is live), byte for byte."""
        arena = Arena(self.policy.buffer_specs())
        policy = ToyPolicy()
        policy.bind(arena, seed=3)
        fixed = self.session.arena.fixed
        if name:
            with self.session.store.reading(self.session.store.find(name)) as (image, _):
                fixed = image.block.data
        arena.fixed.copy_(fixed)
        if instruction:
            policy.write_instruction(instruction)
        if seed >= 0:
            policy.write_seed(seed)
        chunks = []
        for value in values:
            image = np.full((4, 4, 3), value, dtype=np.uint8)
            policy.write_observation({"camera": image}, np.array(POSITIONS))
            policy.tick()
            chunks.append(policy.chunk().astype(np.float64).tobytes())
        return chunks


class Watch:
    """The boundary events of the node as they come, and the tree that they make."""

    def __init__(self, made: Rig) -> None:
        self._changed = threading.Condition()
        self.view = LineageView()
        self.newest: Boundary | None = None
        self.detail: dict[str, Any] = {}
        self.buffers: dict[str, str] = {}
        self.ended: list[str] = []
        """Ids of the runs that ended."""
        self.stamps: dict[int, int] = {}
        """Number of each boundary that was committed, and the stamp of what it saw, ns."""
        made.node.create_subscription(Boundary, f"{POLICY}/boundary", self._receive, RELIABLE)

    def _receive(self, message: Boundary) -> None:
        with self._changed:
            self.view.add(message)
            self.newest = message
            if message.event == Boundary.COMMIT:
                inputs = zip(message.input_names, message.input_stamps, strict=True)
                self.stamps[message.boundary] = to_ns(dict(inputs)["camera"])
            self.detail = json.loads(message.detail) if message.detail else {}
            self.buffers = self.detail.get("buffers", self.buffers)
            if message.event == Boundary.RUN_END:
                self.ended.append(message.request_id)
            self._changed.notify_all()

    def has_come(self, condition: Callable[[], bool], within: float) -> bool:
        """Whether it holds, waiting for it at most `within` seconds."""
        with self._changed:
            return self._changed.wait_for(condition, within)

    def pause(self, seconds: float) -> None:
        """Until the next event, or for so long."""
        with self._changed:
            self._changed.wait(seconds)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            fulfilled = self._changed.wait_for(condition, PATIENCE)
            assert fulfilled, f"{what} did not come; last: {self.newest}"


__all__ = [
    "POSITIONS",
    "Inbox",
    "Mirror",
    "ToySensors",
    "Watch",
    "to_ns",
    "toy_robot",
]
