# SPDX-License-Identifier: Apache-2.0
"""A policy node over DDS is recorded by `flashrt record`, replayed offline and through a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ros_rig import PATIENCE, Rig, rig

from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.policies import Motion
from flashrt_ros.replay import CannotReplay, Run, open_run, replay
from flashrt_ros.replay.live import replay_live

NAMESPACE = "/recorded"


class Recorder:
    """`flashrt record` in a process of its own."""

    def __init__(self, out: Path, log: Path, *options: str) -> None:
        self.out, self._log = out, log
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flashrt_ros.cli", "record", str(out), *options],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def wait(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self._log.read_text():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.1)

    def end(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(PATIENCE)


def scenario(arm: Rig) -> None:
    """A planner interrupts, snapshots, restores whole and in part, rolls back and resets."""
    policy, sim = arm.policy, arm.sim
    sim.run(4)
    policy.interrupt()
    policy.snapshot("before", overwrite=True)
    policy.set_instruction("go home")
    policy.resume(Motion.REPLAN)
    sim.run(3)
    policy.restore("before")
    sim.run(2)
    policy.rollback(count=1)
    policy.set_instruction("reach")
    sim.run(2)
    policy.restore("before", ablate_only_roles=["kv", "random"])
    sim.run(2)
    policy.reset()
    sim.run(2)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    out = folder / "bag"
    with rig(NAMESPACE, folder) as arm:
        arm.start_sim("mode:=lockstep")
        arm.start_policy(
            "lockstep:=true",
            "use_sim_time:=true",
            "state_digest_every:=3",
            f"capsule_directory:={folder / 'capsules'}",
        )
        bring_up(arm.caller, "policy_node")
        options = ("--node", f"{NAMESPACE}/policy_node", "--capsules-every", "3")
        recorder = Recorder(out, folder / "record.log", *options)
        arm.sim.reset(5)
        recorder.wait("recording")
        time.sleep(1.0)  # until the publishers know of their new readers
        scenario(arm)
        arm.settle()
        assert recorder.end() == 0, (folder / "record.log").read_text()
    return out


@pytest.fixture(scope="module")
def run(recorded: Path) -> Run:
    return open_run(recorded)


def test_what_was_recorded_is_whole(run: Run, recorded: Path) -> None:
    assert run.node == f"{NAMESPACE}/policy_node"
    assert run.ticks == 15
    assert not run.notes  # no event lost, metadata and index there
    assert len(run.chunks) == 15
    assert run.info.input_topics["camera"] == f"{NAMESPACE}/camera/image_raw"
    kinds = {event.kind for event in run.events}
    assert {"RESTORE", "ROLLBACK", "RESET", "INTERRUPT", "RESUME", "INSTRUCTION"} <= kinds
    assert (recorded / "capsules" / "capsules").is_dir()


def test_it_is_replayed_offline_bit_for_bit(run: Run) -> None:
    report = replay(run)
    assert report.identical, report.difference
    assert report.compared["actions"] == report.ticks == 15
    assert report.compared["states"] >= 5


def test_a_capsule_beside_the_bag_is_jumped_to(run: Run) -> None:
    last = max(event.boundary for event in run.events)
    report = replay(run, from_boundary=last - 3)
    assert report.identical, report.difference
    assert 0 < report.ticks < 15


def test_it_is_replayed_through_a_node_bit_for_bit(run: Run) -> None:
    # What a robot's node waits for is not there, and is not waited for.
    careful = {"robot_description_topic": "robot_description", "emergency_stop_required": True}
    info = replace(run.info, parameters={**run.info.parameters, **careful})
    report = replay_live(replace(run, info=info), patience=PATIENCE)
    assert report.identical, report.difference
    assert report.compared["actions"] == report.ticks == 15
    assert report.compared["states"] >= 5


def test_a_live_replay_needs_the_first_boundary(run: Run) -> None:
    late = replace(run, events=run.events[20:])
    with pytest.raises(CannotReplay, match=r"begins in mid-session|begins later"):
        replay_live(late)


def test_recording_says_that_there_is_no_policy_node(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "bag", tmp_path / "log", "--wait", "1", "--node", "/nobody")
    assert recorder._process.wait(PATIENCE) == 2
    assert "/nobody did not say what it runs" in (tmp_path / "log").read_text()
