# SPDX-License-Identifier: Apache-2.0
"""A contract's inputs over DDS: every kind of message, bad ones, and time that misbehaves."""

from __future__ import annotations

import array
import io
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from geometry_msgs.msg import Vector3, Wrench, WrenchStamped
from PIL import Image as Picture
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from ros_rig import PATIENCE, RELIABLE, wait_for_readers
from rosbags.typesys import Stores, get_typestore
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray, Header, String
from toy_policy import FeelingToyPolicy

from flashrt_ros.client import spinning
from flashrt_ros.policies import (
    ChunkOutput,
    CommandOutput,
    EngineEvent,
    EngineOptions,
    EngineState,
    PolicyEngine,
)
from flashrt_ros.policies.contract_check import resolve
from flashrt_ros.policies.contract_file import read_contract
from flashrt_ros.ros.conversions import to_time
from flashrt_ros.ros.decoding import decode
from flashrt_ros.ros.policy_inputs import PolicyInputs
from flashrt_ros.runtime import Arena, Session

CONTRACT = """version: 1
time: {max_skew: 60.0, future_tolerance: 5.0}
inputs:
  cameras:
    camera:
      topic: eye
      resize: {filter: nearest}
      qos: {reliability: reliable, depth: 10}
  joints:
    - {topic: arm, names: {shoulder: j1, elbow: j2}, qos: {reliability: reliable}}
  vectors:
    wrench:
      topic: wrench
      type: geometry_msgs/WrenchStamped
      max_age: 30.0
      qos: {reliability: reliable}
    touch:
      topic: touch
      type: std_msgs/Float64MultiArray
      required: false
      max_age: 30.0
      qos: {reliability: reliable}
  instruction: {topic: task}
"""


SHORT = CONTRACT.replace("max_age: 30.0", "max_age: 0.5", 1)


class Robot:
    """A toy policy with the node's own inputs in this process, and sensors on a node of theirs."""

    def __init__(self, policy_side: Any, sensor_side: Any, text: str = CONTRACT) -> None:
        self.policy = FeelingToyPolicy()
        arena = Arena(self.policy.buffer_specs())
        self.policy.bind(arena, seed=3)
        self.arena = arena
        self.chunks: list[ChunkOutput] = []
        self.events: list[EngineEvent] = []
        self.commands: list[CommandOutput] = []
        self._changed = threading.Condition()
        self._executor = policy_side.executor
        self.engine = PolicyEngine(
            self.policy,
            Session(arena, fingerprint=self.policy.fingerprint, seed=3),
            self,
            clock=lambda: int(policy_side.get_clock().now().nanoseconds),
            options=EngineOptions(observation_timeout=0.0),
        )
        reading = read_contract(text, "toy.yaml")
        self.contract = resolve(reading.contract, self.policy.spec, reading.problems)
        self.engine.start()
        self.inputs = PolicyInputs(
            policy_side, self.engine, self.contract, lockstep=False, max_skew=0.1
        )
        self.engine.activate()
        self.kind = CompressedImage if "CompressedImage" in text else Image
        create = sensor_side.create_publisher
        eye = self.contract.cameras[0].topic
        self.publishers = {
            self.kind: create(self.kind, eye, RELIABLE),
            JointState: create(JointState, "arm", RELIABLE),
            WrenchStamped: create(WrenchStamped, "wrench", RELIABLE),
            Float64MultiArray: create(Float64MultiArray, "touch", QoSProfile(depth=10)),
            String: create(String, "task", QoSProfile(depth=10)),
        }
        wait_for_readers(*self.publishers.values())

    def close(self) -> None:
        self.inputs.destroy()
        self.engine.close()

    def on_chunk(self, chunk: ChunkOutput) -> None:
        with self._changed:
            self.chunks.append(chunk)
            self._changed.notify_all()

    def on_command(self, command: CommandOutput) -> None:
        with self._changed:
            self.commands.append(command)

    def on_event(self, event: EngineEvent) -> None:
        with self._changed:
            self.events.append(event)

    def on_status(self) -> None:
        pass

    def send(self, message: Any) -> None:
        """Publish one message, and wait until it was taken or refused."""
        names = {JointState: "joint_states", WrenchStamped: "wrench", Float64MultiArray: "touch"}
        name = names.get(type(message), "instruction" if type(message) is String else "camera")
        before = self.inputs.received[name]
        self.publishers[type(message)].publish(message)
        wait_for(lambda: self.inputs.received[name] > before, f"a message of {name}")
        self.settle()

    def settle(self) -> None:
        """What was received before has been acted upon."""
        called_back = threading.Event()
        self._executor.create_task(called_back.set)  # its one thread is through with callbacks
        assert called_back.wait(PATIENCE)
        for _ in range(2):
            self.engine.call(lambda session: None, timeout=PATIENCE)

    def feel(self, *, wrench: float = 0.0, joints: float = 0.1) -> None:
        """Everything but the image."""
        self.send(joint_state(joints))
        self.send(wrench_of(wrench))

    def tick(self, **felt: float) -> ChunkOutput:
        """A complete observation, and the chunk that answers it."""
        self.feel(**felt)
        count = len(self.chunks)
        self.send(picture() if self.kind is Image else compressed(png()))
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.chunks) > count, PATIENCE), (
                f"no chunk: {self.engine.status}"
            )
            return self.chunks[-1]

    def insist(self) -> None:
        """Observations until one is in time: on a busy machine an input may grow old meanwhile."""
        count = len(self.chunks)
        deadline = time.monotonic() + PATIENCE
        while len(self.chunks) == count:
            assert time.monotonic() < deadline, self.engine.status
            self.feel()
            self.send(picture())

    def image_seen(self) -> np.ndarray:
        return self.engine.call(lambda session: self.arena["image"].numpy().copy(), PATIENCE)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.005)


def now(offset_ns: int = 0) -> Header:
    return Header(stamp=to_time(time.time_ns() + offset_ns))


def joint_state(value: float = 0.1) -> JointState:
    return JointState(header=now(), name=["j2", "other", "j1"], position=[-value, 9.0, value])


def wrench_of(value: float) -> WrenchStamped:
    return WrenchStamped(
        header=now(), wrench=Wrench(force=Vector3(x=value), torque=Vector3(z=2 * value))
    )


def touch_of(*values: float) -> Float64MultiArray:
    return Float64MultiArray(data=values)


PIXELS = np.random.default_rng(2).integers(0, 256, (4, 4, 3), dtype=np.uint8)


def picture(pixels: np.ndarray = PIXELS, **changes: Any) -> Image:
    message = Image(
        header=now(),
        height=pixels.shape[0],
        width=pixels.shape[1],
        encoding="rgb8",
        step=3 * pixels.shape[1],
        data=array.array("B", pixels.tobytes()),
    )
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def png(pixels: np.ndarray = PIXELS) -> bytes:
    file = io.BytesIO()
    Picture.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def compressed(data: bytes) -> CompressedImage:
    return CompressedImage(header=now(), format="png", data=array.array("B", data))


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Any, Any]]:
    with (
        spinning("policy", namespace="/contract") as policy_side,
        spinning("sensors", namespace="/contract") as sensor_side,
    ):
        yield policy_side, sensor_side


@pytest.fixture(scope="module")
def shared(nodes: tuple[Any, Any]) -> Iterator[Robot]:
    one = Robot(*nodes)
    yield one
    one.close()


@pytest.fixture
def robot(shared: Robot) -> Robot:
    """Running, after one good observation."""
    shared.tick()
    assert shared.engine.status.state is EngineState.RUNNING
    return shared


# -- inputs of every kind ----------------------------------------------------------------------


def test_a_wrench_moves_the_policy_and_is_named_with_its_stamp(robot: Robot) -> None:
    chunks = []
    for force in (0.0, 10.0):
        robot.engine.call(lambda session: session.reset(), timeout=PATIENCE)
        chunks.append(robot.tick(wrench=force))
    calm, pushed = (chunk.command.trajectory.positions for chunk in chunks)
    np.testing.assert_allclose(pushed - calm, 0.3, atol=1e-6)
    assert set(chunks[1].stamps) == {"camera", "joint_states", "wrench"}
    assert len(set(chunks[1].stamps.values())) == 3
    commit = next(e for e in reversed(robot.events) if e.kind == "COMMIT")
    assert set(commit.digests) == set(commit.stamps) == {"camera", "joint_states", "wrench"}


def test_an_operator_is_told_what_is_missing_and_what_is_old(robot: Robot) -> None:
    assert robot.inputs.problem(time.time_ns()) == ""
    later_ns = time.time_ns() + 40 * 10**9
    assert robot.inputs.problem(later_ns).endswith("s old, at most 30.0 s is allowed")
    robot.inputs.assembler.clear()
    assert robot.inputs.problem(later_ns) == "nothing yet from camera, joint_states, wrench"
    report = next(r for r in robot.inputs.assembler.reports(later_ns) if r.name == "touch")
    assert (report.required, report.age_s) == (False, None)


def test_an_input_below_its_rate_holds_the_arm_and_is_told(nodes: tuple[Any, Any]) -> None:
    rate = "topic: eye\n      rate: 1000.0\n      below_rate: hold\n"
    one = Robot(*nodes, CONTRACT.replace("topic: eye\n", rate))
    try:
        one.tick()  # too little has been seen to judge
        deadline = time.monotonic() + PATIENCE
        while one.engine.status.state is not EngineState.HOLDING:
            assert time.monotonic() < deadline, one.engine.status
            one.send(picture())
            time.sleep(0.1)
        assert "Hz, 1000.0 Hz is required" in one.engine.status.reason
        assert one.engine.status.reason.startswith("camera comes at ")
        assert "camera comes at " in one.inputs.problem(time.time_ns())
        count = len(one.chunks)
        one.feel()
        one.send(picture())
        assert len(one.chunks) == count
    finally:
        one.close()


def test_another_contract_of_the_same_topic_gets_its_own_qos(nodes: tuple[Any, Any]) -> None:
    """Parameters that override QoS outlive a configuration: the next one must not get them."""

    def reliability(text: str) -> Any:
        one = Robot(*nodes, text)
        try:
            one.tick()
            eyes = [each for each in nodes[0].subscriptions if each.topic_name == "/contract/eye"]
            return eyes[-1].qos_profile.reliability
        finally:
            one.close()

    explicit = "      qos: {reliability: reliable, depth: 10}\n"
    assert explicit in CONTRACT
    found = [
        reliability(text)
        for text in (
            CONTRACT.replace(explicit, ""),
            CONTRACT,
            CONTRACT.replace(explicit, explicit.replace("reliable", "best_effort")),
        )
    ]
    expected = [ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE]
    assert found == [*expected, ReliabilityPolicy.BEST_EFFORT]


def test_joints_are_mapped_by_name(robot: Robot) -> None:
    robot.tick(joints=0.25)
    seen = robot.engine.call(lambda session: robot.arena["positions"].tolist(), timeout=PATIENCE)
    assert seen == [0.25, -0.25]


def test_an_optional_input_without_a_stamp_gets_that_of_its_receipt(robot: Robot) -> None:
    assert "touch" not in robot.tick().stamps
    before_ns = time.time_ns()
    robot.send(touch_of(0.5, 1.5))
    after_ns = time.time_ns()
    chunk = robot.tick()
    assert before_ns <= chunk.stamps["touch"] <= after_ns
    touching = robot.engine.call(lambda session: robot.arena["touch"].tolist(), timeout=PATIENCE)
    assert touching == [0.5, 1.5]
    robot.inputs.assembler.clear()


def test_images_that_differ_only_in_how_they_are_sent_are_seen_alike(robot: Robot) -> None:
    padded = np.pad(PIXELS[:, :, ::-1].reshape(4, 12), ((0, 0), (0, 3)), constant_values=7)
    deep = PIXELS.astype(np.uint16) * 257
    large = np.repeat(np.repeat(PIXELS, 3, axis=0), 3, axis=1)
    for sent in (
        picture(),
        picture(encoding="bgr8", step=15, data=array.array("B", padded.tobytes())),
        picture(
            encoding="rgb16",
            step=24,
            is_bigendian=1,
            data=array.array("B", deep.astype(">u2").tobytes()),
        ),
        picture(large),  # resized by the contract
    ):
        robot.feel()
        count = len(robot.chunks)
        robot.arena["image"].zero_()
        robot.send(sent)
        wait_for(lambda count=count: len(robot.chunks) > count, "a chunk")
        np.testing.assert_array_equal(robot.image_seen(), PIXELS)


def test_messages_of_both_kinds_decode_alike(robot: Robot) -> None:
    """rclpy's, and those that rosbags makes of the same bytes: a replay sees what the node saw."""
    store = get_typestore(Stores.LATEST)
    for message in (
        picture(),
        joint_state(0.3),
        wrench_of(2.0),
        Float64MultiArray(data=[1.0, 2.0]),
    ):
        names = {Image: "camera", JointState: "joint_states", WrenchStamped: "wrench"}
        source = robot.contract.input(names.get(type(message), "touch"))
        kind, content = store.get_msgdef(str(source.type)), serialize_message(message)[4:]
        # Fast DDS leaves room behind a message, about which `deserialize_cdr` is strict.
        from_bag, _ = kind.deserialize_cdr_le(content, 0, kind.cls, store)
        stamp_ns, value = decode(source, message, 5)
        bag_stamp_ns, bag_value = decode(source, from_bag, 5)
        assert stamp_ns == bag_stamp_ns
        assert value.dtype == bag_value.dtype
        np.testing.assert_array_equal(value, bag_value)


# -- bad messages: refused by name, counted, the arm holds, the next good one recovers ---------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: picture(encoding="32FC1"), "camera: image encoding is '32FC1'"),
        (lambda: picture(step=5), "camera: image step is 5 bytes, expected at least 12"),
        (
            lambda: picture(data=array.array("B", bytes(7))),
            "camera: image has 7 bytes, expected 48",
        ),
        (lambda: picture(height=0), "camera: image is 4 x 0 pixels"),
        (lambda: picture(header=Header()), "camera: stamp of 'camera' is 0"),
        (lambda: picture(header=now(60 * 10**9)), "camera: stamp of 'camera' is "),
        (lambda: wrench_of(float("nan")), "wrench: 'wrench' is [nan"),
        (
            lambda: JointState(header=now(), name=["j1"], position=[0.1]),
            "joint_states: joint state",
        ),
    ],
)
def test_a_bad_message_is_named_and_counted_and_the_arm_holds(
    robot: Robot, make: Callable[[], Any], said: str
) -> None:
    before = robot.inputs.errors.total()
    robot.send(make())
    status = robot.engine.status
    assert status.state is EngineState.HOLDING
    assert status.reason.startswith(said), status.reason
    assert robot.commands[-1].is_hold
    assert robot.inputs.errors.total() == before + 1
    robot.tick()
    assert robot.engine.status.state is EngineState.RUNNING


def test_a_bad_message_of_an_optional_input_is_counted_and_the_arm_goes_on(robot: Robot) -> None:
    robot.send(touch_of(1.0, 2.0, 3.0))
    assert robot.inputs.last_error.startswith("touch: 'touch' has 3 numbers, expected 2")
    assert robot.engine.status.state is EngineState.RUNNING
    assert "touch" not in robot.tick().stamps


def test_unknown_words_on_the_contracts_topic_hold_until_known_ones(robot: Robot) -> None:
    robot.send(String(data="dance"))
    wait_for(lambda: robot.engine.status.state is EngineState.HOLDING, "a hold")
    robot.send(String(data="reach"))
    wait_for(lambda: robot.engine.status.instruction == "reach", "the instruction")
    assert robot.tick().instruction == "reach"


# -- time --------------------------------------------------------------------------------------


def test_duplicates_and_late_messages_are_counted_without_a_hold(robot: Robot) -> None:
    dropped, ticks = robot.inputs.assembler.dropped, robot.engine.status.ticks
    newest = picture()
    robot.feel()
    robot.send(newest)
    robot.send(newest)
    robot.send(picture(header=Header(stamp=to_time(_ns(newest) - 500_000_000))))
    assert robot.inputs.assembler.dropped == dropped + 2
    assert robot.engine.status.ticks == ticks + 1
    assert robot.engine.status.state is EngineState.RUNNING


def test_stamps_that_begin_anew_raise_the_epoch_and_are_followed(robot: Robot) -> None:
    """A bag in a loop without /clock: the node's own clock does not know."""
    epoch = robot.engine.status.epoch
    for offset_ns in (-20 * 10**9, -19 * 10**9):
        robot.send(picture(header=now(offset_ns)))
    wait_for(lambda: robot.engine.status.epoch > epoch, "another epoch")
    assert any(event.kind == "CLOCK_JUMP" for event in robot.events)
    assert robot.inputs.assembler.missing() == ["camera", "joint_states", "wrench"]
    for message in (joint_state(), wrench_of(0.0), picture()):
        message.header = now(-15 * 10**9)
        robot.send(message)
    commit = next(event for event in reversed(robot.events) if event.kind == "COMMIT")
    assert commit.epoch > epoch
    assert commit.stamps["camera"] < time.time_ns() - 10 * 10**9
    # It is followed, but nothing moves for what was seen so long ago by the node's clock.
    assert robot.commands[-1].is_hold
    robot.inputs.assembler.clear()
    robot.engine.clock_jumped()


def _ns(message: Any) -> int:
    return int(message.header.stamp.sec) * 10**9 + int(message.header.stamp.nanosec)


def test_an_input_that_stops_holds_the_arm_by_name_though_nothing_else_comes(
    nodes: tuple[Any, Any],
) -> None:
    one = Robot(*nodes, SHORT)
    try:
        one.insist()
        wait_for(lambda: one.engine.status.state is EngineState.HOLDING, "a hold")
        assert one.engine.status.reason.startswith("wrench is ")
        assert one.engine.status.reason.endswith("s old, at most 0.5 s is allowed")
        faults = one.engine.status.faults
        one.send(joint_state())
        one.send(picture())
        time.sleep(0.3)  # the node looks at ages several times meanwhile
        assert one.engine.status.state is EngineState.HOLDING
        assert one.engine.status.faults == faults  # told once
        one.insist()
    finally:
        one.close()


# -- compressed images -------------------------------------------------------------------------


def test_compressed_images_are_seen_and_corrupt_ones_and_bombs_hold(
    nodes: tuple[Any, Any],
) -> None:
    text = CONTRACT.replace("topic: eye\n", "topic: eye\n      type: sensor_msgs/CompressedImage\n")
    one = Robot(*nodes, text.replace("topic: eye", "topic: eye/compressed"))
    try:
        one.tick()
        np.testing.assert_array_equal(one.image_seen(), PIXELS)
        file = io.BytesIO()
        Picture.fromarray(np.zeros((64, 64, 3), dtype=np.uint8)).save(file, "JPEG")
        huge = bytearray(png())
        huge[16:24] = (60_000).to_bytes(4, "big") * 2
        for data, said in (
            (file.getvalue()[:-40], "is corrupt"),
            (b"nothing", "neither jpeg nor png"),
            (bytes(huge), "neither jpeg nor png"),  # its check sum is wrong now
        ):
            one.send(compressed(data))
            assert one.engine.status.state is EngineState.HOLDING
            assert said in one.engine.status.reason
            one.tick()
            assert one.engine.status.state is EngineState.RUNNING
        assert one.inputs.errors["camera"] == 3
    finally:
        one.close()
