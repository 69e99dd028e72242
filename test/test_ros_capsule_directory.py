# SPDX-License-Identifier: Apache-2.0
"""Capsules that outlive their node, and capsules that belong to another model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from ros_rig import POLICY, FakeCamera, Rig, rig
from toy_policy import ToyPolicy

from flashrt_ros.client import VerbRefused
from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.msg import Boundary
from flashrt_ros.runtime import Arena, Code, Session, Store

SAME = {"position": [0.1, -0.2, 0.3, 0.4, 0.0]}


def start(made: Rig, directory: Path) -> FakeCamera:
    made.start_policy("observation_timeout:=0.0", f"capsule_directory:={directory}")
    camera = FakeCamera(made)
    bring_up(made.caller, POLICY)
    camera.wait_for_subscribers()
    return camera


def tick(made: Rig, camera: FakeCamera) -> str:
    """Tick once; the digest of the policy's chunk. What is sent of it depends on when it is."""
    before = len(made.chunks.all())
    for _ in range(10):
        camera.show(joints=camera.joint_state(**SAME))
        if made.chunks.has_count(before + 1, within=5.0):
            break
    boundary = made.chunks.wait_count(before + 1, "a chunk")[-1].boundary

    def committed(event: Boundary) -> bool:
        return event.event == Boundary.COMMIT and event.boundary == boundary

    events = made.boundaries.wait(lambda sent: any(map(committed, sent)), "its boundary")
    return json.loads(next(filter(committed, events)).detail)["chunk_digest"]


def test_capsule_on_disk_is_restored_by_another_process_bit_for_bit(tmp_path: Path) -> None:
    directory = tmp_path / "capsules"
    with rig("/first", tmp_path) as made:
        camera = start(made, directory)
        made.policy.set_instruction("reach the red block")
        tick(made, camera)
        made.policy.snapshot("kept")
        moved = made.policy.move("kept", "disk")
        assert moved.info.tier == "disk"
        expected = tick(made, camera)
    with rig("/second", tmp_path) as made:
        camera = start(made, directory)
        assert [info.name for info in made.policy.list().capsules] == ["kept"]
        restored = made.policy.restore("kept")
        assert restored.capsule.instruction == "reach the red block"
        assert restored.result.step == 1
        assert tick(made, camera) == expected


def test_capsule_of_another_model_is_refused_and_the_node_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "capsules"
    policy = ToyPolicy()
    arena = Arena(policy.buffer_specs())
    arena.seal()
    policy.bind(arena, seed=0)
    session = Session(arena, fingerprint=policy.fingerprint, store=Store(directory=directory))
    session.store.persist(session.snapshot("foreign"))
    session.close()
    with rig("/foreign", tmp_path) as made:
        camera = start(made, directory)
        tick(made, camera)
        before = made.policy.list().result
        with pytest.raises(VerbRefused) as refusal:
            made.policy.restore("foreign")
        assert refusal.value.code is Code.FINGERPRINT_MISMATCH
        after = made.policy.list().result
        assert (after.boundary, after.epoch) == (before.boundary, before.epoch)
        for tier in ("cloud", ""):
            with pytest.raises(VerbRefused, match="expected one of device, host, disk"):
                made.policy.move("foreign", tier)
        tick(made, camera)
