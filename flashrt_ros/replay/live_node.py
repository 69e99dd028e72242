# SPDX-License-Identifier: Apache-2.0
"""A policy node in a process of its own, set up as a recorded one was, and driven tick by tick."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import yaml
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock

from flashrt_ros.client import ServiceCaller, spinning
from flashrt_ros.msg import ActionChunk, Boundary
from flashrt_ros.policies.contract import SensorInput, StampSource
from flashrt_ros.replay.definitions import Raw
from flashrt_ros.replay.inputs import contract_of
from flashrt_ros.replay.machine import spec_of
from flashrt_ros.replay.parsing import to_chunk, to_event
from flashrt_ros.replay.recorder import message_class
from flashrt_ros.replay.run import CannotReplay, Run, RunChunk, RunEvent
from flashrt_ros.ros.conversions import to_time

_RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
_AGAIN = 2.0
"""s until an observation is shown again: the node may have got its parts before the clock."""
_NOT_OURS = ("qos_overrides.", "use_sim_time", "start_type_description_service")
"""Parameters of ROS itself, which are set otherwise."""
_NOT_AWAITED = {
    "robot_description_topic": "",
    "emergency_stop_required": False,
    "emergency_stop_timeout": 0.0,
}
"""What would keep the node from moving: nobody else is in its namespace."""


@dataclass(frozen=True)
class LiveOptions:
    """model: see `replay_live`; patience: longest wait for the node, s."""

    model: str | Path | None = None
    patience: float = 60.0


class LiveNode:
    """Starts a policy node, shows it recorded inputs, and collects what it sends.

    A context manager. Everything is below a namespace of its own, on this machine only.

    Raises:
        CannotReplay: the node does not come up, or does not answer in time.
    """

    def __init__(self, run: Run, options: LiveOptions) -> None:
        self._run = run
        self._patience = options.patience
        self.model = str(options.model or _model(run))
        prefix = f"/flashrt_replay_{os.getpid()}"
        namespace, _, base = run.node.rpartition("/")
        self._prefix, self._namespace = prefix, f"{prefix}{namespace}"
        self.name = f"{self._namespace}/{base}"
        self._base = base
        self._sources: dict[str, SensorInput] = {
            source.name: source for source in contract_of(run, spec_of(run)).inputs
        }
        self._check_stamps()
        self._events: queue.SimpleQueue[RunEvent] = queue.SimpleQueue()
        self._chunks: dict[tuple[int, int], RunChunk] = {}
        self._arrived = threading.Condition()
        self._stack = ExitStack()

    def __enter__(self) -> LiveNode:
        # Before the context: a robot on the same network must not hear this node.
        self._localhost()
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    # -- driving

    def set_clock(self, stamp_ns: int) -> None:
        """What time it is for the node."""
        self._clock.publish(Clock(clock=to_time(stamp_ns)))

    def call(self, kind: Any, service: str, request: Any) -> Any:
        """Call a service of the node. Raises CannotReplay where it refuses or does not answer."""
        try:
            response = self._caller.call(kind, f"{self.name}/{service}", request)
        except TimeoutError as error:
            raise CannotReplay(self._failed(str(error))) from error
        if not response.success:
            raise CannotReplay(f"{service} was refused: {getattr(response, 'message', '')}")
        return response

    def change_state(self, transition: int) -> None:
        """A transition of the life cycle."""
        request = ChangeState.Request(transition=Transition(id=transition))
        try:
            done = self._caller.call(ChangeState, f"{self.name}/change_state", request).success
        except TimeoutError as error:
            raise CannotReplay(self._failed(str(error))) from error
        if not done:
            raise CannotReplay(self._failed(f"transition {transition} failed"))

    def tick(self, messages: Mapping[str, Raw], stamp_ns: int, quiet: Collection[str]) -> RunEvent:
        """Show an observation, its parts stamped alike, and wait for the event that it causes."""
        deadline = time.monotonic() + self._patience
        while True:
            for name, raw in messages.items():
                self._inputs[name].publish(_stamped(raw.data, stamp_ns))
            event = self._event_within(_AGAIN, quiet)
            if event is not None:
                return event
            if time.monotonic() > deadline:
                raise CannotReplay(self._failed("the observation was not answered"))

    def next_event(self, quiet: Collection[str]) -> RunEvent:
        """The next event that the node sends."""
        event = self._event_within(self._patience, quiet)
        if event is None:
            raise CannotReplay(self._failed("no event came"))
        return event

    def chunk(self, boundary: int, epoch: int) -> RunChunk | None:
        """The chunk of a boundary; None if none comes: the node may have held instead."""
        key = (boundary, epoch)
        with self._arrived:
            self._arrived.wait_for(lambda: key in self._chunks, _AGAIN)
            return self._chunks.pop(key, None)

    # -- inside

    def _event_within(self, seconds: float, quiet: Collection[str]) -> RunEvent | None:
        deadline = time.monotonic() + seconds
        while True:
            self._check_alive()
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            try:
                event = self._events.get(timeout=min(left, 0.5))
            except queue.Empty:
                continue
            if event.kind not in quiet:
                return event

    def _start(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="flashrt-")))
        self._log = folder / "policy_node.log"
        parameters = folder / "parameters.yaml"
        parameters.write_text(
            yaml.safe_dump({"/**": {"ros__parameters": self._parameters(folder)}})
        )
        arguments = ["--ros-args", "--params-file", str(parameters)]
        arguments += ["-r", f"__ns:={self._namespace}", "-r", f"__node:={self._base}"]
        for rule in self._remappings():
            arguments += ["-r", rule]
        self._process = self._run_process(arguments)
        node = self._stack.enter_context(spinning("replay", namespace=self._prefix))
        self._caller = ServiceCaller(node, timeout=self._patience)
        self._clock = node.create_publisher(Clock, f"{self._prefix}/clock", 10)
        events, chunks = self._event_callback(), self._chunk_callback()
        node.create_subscription(Boundary, f"{self.name}/boundary", events, _RELIABLE)
        node.create_subscription(ActionChunk, f"{self.name}/action_chunk", chunks, _RELIABLE)
        self._inputs = {
            name: node.create_publisher(
                message_class(str(source.type)), self._topic(source.topic), _RELIABLE
            )
            for name, source in self._sources.items()
        }
        self.change_state(Transition.TRANSITION_CONFIGURE)
        self._wait(lambda: all(p.get_subscription_count() for p in self._inputs.values()))
        self._wait(lambda: self._clock.get_subscription_count() > 0)
        self._wait(
            lambda: all(
                node.count_publishers(f"{self.name}/{topic}")
                for topic in ("boundary", "action_chunk")
            )
        )
        time.sleep(0.5)  # a publisher learns of its readers a little after the graph shows it
        if self._run.events[0].kind != "ACTIVATE":
            self.change_state(Transition.TRANSITION_ACTIVATE)
            self._swallow_activation()

    def _swallow_activation(self) -> None:
        """The recorder came after it; the node says so now."""
        event = self._event_within(2.0, ())
        if event is not None and event.kind != "ACTIVATE":
            raise CannotReplay(f"the node began with {event.kind}, expected ACTIVATE or nothing")

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._patience
        while not condition():
            self._check_alive()
            if time.monotonic() > deadline:
                raise CannotReplay(self._failed("the node's topics were not found"))
            time.sleep(0.05)

    def _parameters(self, folder: Path) -> dict[str, Any]:
        recorded = {
            name: value
            for name, value in self._run.info.parameters.items()
            if not name.startswith(_NOT_OURS) and value is not None
        }
        contract = ""
        if self._run.info.contract:
            path = folder / "contract.yaml"
            path.write_text(self._run.info.contract, encoding="utf-8")
            contract = str(path)
        return recorded | {
            "model": self.model,
            "seed": self._run.info.seed,
            "instruction": self._run.info.instruction,
            "lockstep": True,
            "use_sim_time": True,
            "capsule_directory": str(folder / "capsules"),
            "contract": contract,
            **_NOT_AWAITED,
        }

    def _remappings(self) -> list[str]:
        """The clock, and whatever the contract names absolutely, below our own namespace."""
        rules = [f"/clock:={self._prefix}/clock"]
        contract = contract_of(self._run, spec_of(self._run))
        topics = [source.topic for source in contract.inputs]
        topics += [output.topic for output in contract.outputs]
        if contract.instruction is not None:
            topics.append(contract.instruction.topic)
        rules += [f"{topic}:={self._prefix}{topic}" for topic in topics if topic.startswith("/")]
        return rules

    def _topic(self, name: str) -> str:
        if name.startswith("/"):
            return f"{self._prefix}{name}"
        if name.startswith("~/"):
            return f"{self.name}/{name[2:]}"
        return f"{self._namespace}/{name}"

    def _run_process(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        threads = self._run.info.software.get("torch_threads", "1")
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "flashrt_ros.ros.policy_node", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": threads},
                start_new_session=True,
            )
        self._stack.callback(self._stop, process)
        return process

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _check_alive(self) -> None:
        if self._process.poll() is not None:
            raise CannotReplay(self._failed(f"it ended with status {self._process.returncode}"))

    def _failed(self, what: str) -> str:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])
        return f"policy node {self.name}: {what}; the end of its log:\n{tail}"

    def _check_stamps(self) -> None:
        unstamped = [
            source.name
            for source in self._sources.values()
            if not source.type.stamped or source.timing.stamp is StampSource.RECEIPT
        ]
        if unstamped:
            raise CannotReplay(
                f"input {', '.join(unstamped)} is stamped when it is received, which lockstep "
                "cannot repeat: replay it offline"
            )

    def _localhost(self) -> None:
        before = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE")
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"

        def put_back() -> None:
            if before is None:
                os.environ.pop("ROS_AUTOMATIC_DISCOVERY_RANGE", None)
            else:
                os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = before

        self._stack.callback(put_back)

    def _event_callback(self) -> Callable[[Any], None]:
        kinds = {
            str(getattr(Boundary, name)): name
            for name in dir(Boundary)
            if name.isupper() and isinstance(getattr(Boundary, name), int)
        }
        constants = {name: number for number, name in kinds.items()}

        def on_event(message: Any) -> None:
            self._events.put(to_event(message, 0, constants))

        return on_event

    def _chunk_callback(self) -> Callable[[Any], None]:
        def on_chunk(message: Any) -> None:
            chunk = to_chunk(message, 0)
            with self._arrived:
                self._chunks[(chunk.boundary, chunk.epoch)] = chunk
                self._arrived.notify_all()

        return on_chunk


def _stamped(data: bytes, stamp_ns: int) -> bytes:
    """A message that begins with a header, as CDR, with another stamp."""
    order: Literal["little", "big"] = "little" if data[1] & 1 else "big"
    sec, nanosec = divmod(stamp_ns, 1_000_000_000)
    stamp = sec.to_bytes(4, order, signed=True) + nanosec.to_bytes(4, order)
    return data[:4] + stamp + data[12:]


def _model(run: Run) -> str:
    path = run.info.model_path
    return path if path and Path(path).exists() else run.info.model
