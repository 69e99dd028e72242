# SPDX-License-Identifier: Apache-2.0
"""The demonstration: three processes, one episode in four ways, and what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from rosbags.highlevel import AnyReader

SEED = 2_000  # the first of the demonstration's own
WAYS = ("uninterrupted", "restored", "kv_only", "cold")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "flashrt_ros.demo", "--episodes", "1", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "capsule restored" in done.stdout
    return folder


@pytest.fixture(scope="module")
def summary(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text())


def test_summary_has_each_way_and_both_processes_ended_in_order(summary: dict[str, Any]) -> None:
    assert summary["episodes"] == 1
    assert tuple(summary["success"]) == WAYS
    assert [trial["way"] for trial in summary["trials"]] == list(WAYS)
    assert summary["exit_statuses"] == {"sim_arm_node": 0, "policy_node": 0}
    for name in ("snapshot", "restore", "interrupt", "reset"):
        assert summary["round_trip_ms"][name]["n"] > 0


def test_restored_policy_remembers_what_the_others_forgot(summary: dict[str, Any]) -> None:
    trials = {trial["way"]: trial for trial in summary["trials"]}
    assert trials["restored"]["seed"] == SEED
    assert trials["restored"]["cue"] != trials["restored"]["errand_cue"]
    assert trials["uninterrupted"]["touched"] == trials["uninterrupted"]["cue"]
    assert trials["restored"]["touched"] == trials["restored"]["cue"]
    assert trials["kv_only"]["touched"] != trials["kv_only"]["cue"]


def test_restore_goes_back_to_the_boundary_of_the_capsule(summary: dict[str, Any]) -> None:
    trial = next(trial for trial in summary["trials"] if trial["way"] == "restored")
    boundaries = trial["boundaries"]
    assert boundaries["back"] == boundaries["capsule"]
    assert boundaries["end"] > boundaries["capsule"]
    assert trial["restore"]["steps_not_recomputed"] == 22


def test_bag_has_as_many_images_as_chunks_and_holds(out: Path, summary: dict[str, Any]) -> None:
    with AnyReader([out / "bag"]) as reader:
        counts = {connection.topic: connection.msgcount for connection in reader.connections}
    ticks = 4 * (22 + 50) + 3 * 25
    assert counts["/camera/image_raw"] == counts["/joint_states"] == ticks
    assert counts["/joint_trajectory"] == ticks
    assert counts["/policy_node/action_chunk"] == ticks
    assert summary["bag_messages"] == counts


def test_picture_is_a_picture(out: Path) -> None:
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_its_bag_is_replayed_bit_for_bit_in_a_fresh_process(out: Path) -> None:
    outcome = out / "replay.json"
    command = [sys.executable, "-m", "flashrt_ros.cli", "replay", str(out / "bag"), "--json"]
    done = subprocess.run([*command, str(outcome)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(outcome.read_text())
    assert report["identical"]
    assert report["compared"]["actions"] == report["ticks"] > 300
    assert report["compared"]["states"] > 30
