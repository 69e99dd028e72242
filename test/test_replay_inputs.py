# SPDX-License-Identifier: Apache-2.0
"""Runs whose inputs are more than one camera: contracts, real-time chunking, foreign capsules."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from bag_rig import STEP_NS, ToyRun, changed, write_bag
from geometry_msgs.msg import Vector3, Wrench, WrenchStamped
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray, Header
from toy_policy import ToyPolicy

from flashrt_ros.models import load_policy
from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.policies import Motion, ObservationAssembler
from flashrt_ros.policies.contract_check import resolve
from flashrt_ros.policies.contract_file import read_contract
from flashrt_ros.policies.execution import Execution, ExecutionOptions
from flashrt_ros.replay import CannotReplay, open_run, replay
from flashrt_ros.ros import conversions
from flashrt_ros.ros.decoding import decode
from flashrt_ros.runtime import BufferSpec, Role

CONTRACT = """
version: 1
inputs:
  cameras:
    camera: {topic: top/image_raw, resize: {filter: bilinear, fit: pad}}
  joints:
    - {name: left, topic: left/joint_states, joints: [shoulder]}
    - {name: right, topic: right/joint_states, joints: [elbow], names: {elbow: e}}
  vectors:
    wrench: {topic: wrench, type: geometry_msgs/WrenchStamped}
    extra: {topic: extra, type: std_msgs/Float64MultiArray}
"""
TOPICS = {
    "camera": ("/arm/top/image_raw", "sensor_msgs/msg/Image"),
    "left": ("/arm/left/joint_states", "sensor_msgs/msg/JointState"),
    "right": ("/arm/right/joint_states", "sensor_msgs/msg/JointState"),
    "wrench": ("/arm/wrench", "geometry_msgs/msg/WrenchStamped"),
    "extra": ("/arm/extra", "std_msgs/msg/Float64MultiArray"),
}


class VectorPolicy(ToyPolicy):
    """Feels a wrench and two numbers more."""

    def __init__(self) -> None:
        super().__init__()
        spec = self.spec
        self.spec = PolicySpec(
            spec.cameras, spec.joint_names, spec.chunk_length, spec.chunk_dt, spec.tick_period,
            vectors={"wrench": 6, "extra": 2},
        )  # fmt: skip

    def buffer_specs(self) -> list[BufferSpec]:
        felt = BufferSpec("felt", Role.IO, torch.float64, (8,))
        return [*super().buffer_specs(), felt]

    def write_observation(  # type: ignore[override]
        self,
        images: Mapping[str, np.ndarray],
        positions: np.ndarray,
        vectors: Mapping[str, np.ndarray],
    ) -> None:
        super().write_observation(images, positions)
        felt = np.concatenate((vectors["wrench"], vectors["extra"]))
        self._arena["felt"].copy_(torch.from_numpy(felt))
        self._arena["positions"].add_(float(felt.sum()))


def messages(number: int, now_ns: int) -> dict[str, Any]:
    """One of each input, with stamps of its own; the image has another size than the policy's."""
    random = np.random.default_rng(number)

    def header(offset_ns: int) -> Header:
        return Header(stamp=conversions.to_time(now_ns - offset_ns))

    pixels = random.integers(0, 256, (6, 9, 3), dtype=np.uint8)
    shoulder = [9.0, random.random()]
    return {
        "left": JointState(header=header(7), name=["x", "shoulder"], position=shoulder),
        "right": JointState(header=header(3), name=["e"], position=[random.random()]),
        "wrench": WrenchStamped(
            header=header(5), wrench=Wrench(force=Vector3(x=random.random(), y=2.0, z=3.0))
        ),
        "extra": Float64MultiArray(data=random.random(2).tolist()),
        "camera": Image(
            header=header(1), height=6, width=9, encoding="bgr8", step=27, data=pixels.tobytes()
        ),
    }  # fmt: skip


def recorded(
    model: ToyPolicy,
    text: str,
    topics: dict[str, tuple[str, str]],
    messages: Callable[[int, int], dict[str, Any]],
) -> ToyRun:
    """A run of four ticks on the messages of a contract."""
    contract = resolve(read_contract(text, "test").contract, model.spec)
    run = ToyRun(model=model, sources=topics, contract=text, state_digest_every=1)
    assembler = ObservationAssembler(contract)
    for number in range(4):
        run.now_ns += STEP_NS
        observation = None
        for name, message in messages(number, run.now_ns).items():
            run.record(topics[name][0], message)
            stamp_ns, array = decode(contract.input(name), message, run.now_ns)
            observation = assembler.add(name, stamp_ns, array, run.now_ns) or observation
        assert observation is not None
        run.show(observation)
    run.close()
    return run


@pytest.fixture(scope="module")
def felt() -> ToyRun:
    return recorded(VectorPolicy(), CONTRACT, TOPICS, messages)


def test_a_run_with_a_contract_is_replayed_bit_for_bit(felt: ToyRun, tmp_path: Path) -> None:
    run = open_run(felt.write(tmp_path / "bag"))
    report = replay(run, VectorPolicy())
    assert report.identical, report.difference
    assert report.ticks == 4
    assert report.compared["inputs"] == 20


@pytest.mark.parametrize("name", ["left", "right", "wrench", "extra"])
def test_the_input_of_a_contract_that_differs_is_named(
    felt: ToyRun, tmp_path: Path, name: str
) -> None:
    def change(message: Any) -> None:
        if name == "wrench":
            message.wrench.force.x += 1e-12
        elif name == "extra":
            message.data = [message.data[0], np.nextafter(message.data[1], 2.0)]
        else:
            message.position = [np.nextafter(value, 2.0) for value in message.position]

    bag = write_bag(tmp_path / "bag", changed(felt.lines, TOPICS[name][0], 2, change))
    found = replay(open_run(bag), VectorPolicy()).difference
    assert found is not None
    assert (found.kind, found.name, found.boundary) == ("input", name, 3)


def test_compressed_images_and_a_vector_of_joint_velocities_are_replayed(tmp_path: Path) -> None:
    text = """
version: 1
inputs:
  cameras:
    camera:
      topic: image
      type: sensor_msgs/CompressedImage
      crop: {x: 1, y: 0, width: 4, height: 4}
  joints:
    - {topic: joint_states}
  vectors:
    wrench: {topic: wrench, type: std_msgs/Float64MultiArray}
    extra: {topic: joint_states, type: sensor_msgs/JointState, field: velocity}
"""
    joints = ("/arm/joint_states", "sensor_msgs/msg/JointState")
    topics = {
        "camera": ("/arm/image", "sensor_msgs/msg/CompressedImage"),
        "joint_states": joints, "extra": joints,
        "wrench": ("/arm/wrench", "std_msgs/msg/Float64MultiArray"),
    }  # fmt: skip

    def compressed(number: int, now_ns: int) -> dict[str, Any]:
        random = np.random.default_rng(number)
        header, encoded = Header(stamp=conversions.to_time(now_ns)), io.BytesIO()
        pixels = random.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        PIL.Image.fromarray(pixels).save(encoded, "png")
        state = JointState(
            header=header, name=["elbow", "shoulder"],
            position=random.random(2).tolist(), velocity=random.random(2).tolist(),
        )  # fmt: skip
        data = encoded.getvalue()
        image = CompressedImage(header=header, format="rgb8; png compressed", data=data)
        wrench = Float64MultiArray(data=random.random(6).tolist())
        return {"joint_states": state, "extra": state, "wrench": wrench, "camera": image}

    run = recorded(VectorPolicy(), text, topics, compressed)
    report = replay(open_run(run.write(tmp_path / "bag")), VectorPolicy())
    assert report.identical, report.difference
    assert report.compared["inputs"] == 16


def test_ticks_that_were_led_by_the_chunk_under_way_are_replayed(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = load_policy("cued_reach")
    model.guided = True
    execution = ExecutionOptions(mode=Execution.RTC, simulated_delay=0.1)
    run = ToyRun(model=model, name="cued_reach", execution=execution, state_digest_every=1)
    run.tick(4)
    run.close()
    opened = open_run(run.write(tmp_path / "bag"))
    led = [event.detail["conditioning"]["frozen"] for event in opened.events if event.inputs]
    assert max(led) > 0
    report = replay(opened)
    assert report.identical, report.difference
    assert report.compared["actions"] == 4


def test_a_capsule_of_another_session_is_taken_from_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / "capsules"
    other = ToyRun(seed=3, directory=directory)
    other.tick(2)
    other.verb("snapshot", "theirs")
    other.verb("move", "theirs", "disk")
    other.close()
    run = ToyRun(seed=4, directory=directory, state_digest_every=1)
    run.tick(2)
    run.verb("restore", "theirs", Motion.REPLAN)
    run.tick(3)
    run.close()
    opened = open_run(run.write(tmp_path / "bag"))
    (tmp_path / "none" / "capsules").mkdir(parents=True)
    with pytest.raises(CannotReplay, match="named 'theirs'"):
        replay(opened, ToyPolicy(), capsules=tmp_path / "none")
    report = replay(opened, ToyPolicy(), capsules=directory)
    assert report.identical, report.difference
    assert report.ticks == 5
