# SPDX-License-Identifier: Apache-2.0
"""A run is replayed without DDS: the same bits, and every change of one bit is found and named."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bag_rig import Line, ToyRun, changed, errand, events, write_bag
from toy_policy import ToyPolicy

from flashrt_ros.models import load_policy
from flashrt_ros.msg import Boundary
from flashrt_ros.policies import Motion
from flashrt_ros.replay import CannotReplay, Difference, drift, open_run, replay, what_if
from flashrt_ros.replay.command import main

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    run = ToyRun(state_digest_every=1)
    errand(run)
    run.close()
    return run.lines


@pytest.fixture(scope="module")
def bag(lines: list[Line], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bag(tmp_path_factory.mktemp("bag") / "run", lines)


def difference(lines: list[Line], folder: Path, **options: Any) -> Difference:
    report = replay(open_run(write_bag(folder / "bag", lines)), ToyPolicy(), **options)
    assert not report.identical
    assert report.difference is not None
    return report.difference


def flipped(values: Any, index: int) -> Any:
    """With the lowest bit of one value changed."""
    array = np.array(values, dtype=np.float64)
    array.view(np.uint64)[index] ^= 1
    return array.tolist()


def test_a_run_with_every_verb_is_replayed_bit_for_bit(bag: Path) -> None:
    run = open_run(bag)
    report = replay(run, ToyPolicy())
    assert report.difference is None
    assert report.identical
    assert report.ticks == run.ticks == 15
    assert report.compared["actions"] == 15
    assert report.compared["states"] > 15  # verbs that change the state too
    assert [row.index for row in report.boundaries] == [event.index for event in run.events]
    errors = [row.max_error for row in report.boundaries if row.event == "COMMIT"]
    assert np.array_equal(np.stack(errors), np.zeros((15, 2)))


def test_one_bit_of_an_image_is_found_and_named(lines: list[Line], tmp_path: Path) -> None:
    def change(image: Any) -> None:
        image.data[17] ^= 1

    found = difference(changed(lines, "image_raw", 4, change), tmp_path)
    assert (found.kind, found.name, found.boundary) == ("input", "camera", 5)
    assert "/arm/camera/image_raw" in found.message


def test_one_bit_of_a_joint_position_is_found_and_named(lines: list[Line], tmp_path: Path) -> None:
    def change(state: Any) -> None:
        state.position = flipped(state.position, 1)

    found = difference(changed(lines, "joint_states", 6, change), tmp_path)
    assert (found.kind, found.name, found.boundary) == ("input", "joint_states", 7)


def test_one_bit_of_a_recorded_action_is_found_and_its_joint_named(
    lines: list[Line], tmp_path: Path
) -> None:
    def change(chunk: Any) -> None:
        chunk.points[2].positions = flipped(chunk.points[2].positions, 1)

    found = difference(changed(lines, "action_chunk", 3, change), tmp_path)
    assert (found.kind, found.name, found.boundary) == ("action", "elbow", 4)
    assert "point 2" in found.message


def motion(event: Any) -> None:
    event.motion ^= 2


def epoch(event: Any) -> None:
    event.epoch ^= 1


def boundary(event: Any) -> None:
    event.boundary ^= 1


def instruction(event: Any) -> None:
    event.instruction = chr(ord(event.instruction[0]) ^ 1) + event.instruction[1:]


@pytest.mark.parametrize("change", [motion, epoch, boundary, instruction])
@pytest.mark.parametrize(
    "kind", [Boundary.RESTORE, Boundary.ROLLBACK, Boundary.RESET, Boundary.INSTRUCTION]
)
def test_one_bit_of_a_verb_is_found_and_named(
    lines: list[Line], tmp_path: Path, kind: int, change: Callable[[Any], None]
) -> None:
    number = events(lines, kind)[0]
    name = {getattr(Boundary, each): each for each in ("RESTORE", "ROLLBACK", "RESET")}.get(
        kind, "INSTRUCTION"
    )
    found = difference(changed(lines, "boundary", number, change), tmp_path)
    assert (found.kind, found.name) == ("verb", name)


def test_a_verb_of_another_kind_is_found_by_its_seal(lines: list[Line], tmp_path: Path) -> None:
    def change(event: Any) -> None:
        event.event = Boundary.ROLLBACK

    number = events(lines, Boundary.RESTORE)[0]
    found = difference(changed(lines, "boundary", number, change), tmp_path)
    assert (found.kind, found.name) == ("verb", "ROLLBACK")
    assert "changed after it was recorded" in found.message


def test_other_weights_are_named(bag: Path) -> None:
    other = ToyPolicy()
    other.fingerprint = dataclasses.replace(other.fingerprint, weights="others")
    report = replay(open_run(bag), other)
    assert report.difference is not None
    assert (report.difference.kind, report.difference.name) == ("fingerprint", "weights")
    assert report.ticks == 0


@pytest.fixture(scope="module")
def shipped_bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few ticks of the shipped policy, in one thread as replays here."""
    torch.set_num_threads(1)
    run = ToyRun(model=load_policy("cued_reach"), name="cued_reach", state_digest_every=1)
    run.tick(3)
    run.close()
    return run.write(tmp_path_factory.mktemp("shipped") / "bag")


@pytest.mark.parametrize("is_noticed", [True, False])
def test_one_bit_of_one_weight_is_found_and_named(
    shipped_bag: Path, tmp_path: Path, is_noticed: bool
) -> None:
    run = open_run(shipped_bag)
    original = Path(run.info.model_path)
    copy = tmp_path / original.name
    shutil.copytree(original, copy)
    assert replay(run, copy).identical
    weights = copy / "model.safetensors"
    before = weights.stat()
    content = bytearray(weights.read_bytes())
    content[-1000] ^= 1
    weights.write_bytes(content)
    if not is_noticed:  # a bit that turns on a disk changes no time
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = replay(run, copy).difference
    assert found is not None
    assert (found.kind, found.name) == ("fingerprint", "weights")


def test_a_replay_needs_no_ros(bag: Path) -> None:
    """The packages of ROS cannot be imported, nor this package's own messages."""
    program = f"""
import sys
for name in ("rclpy", "sensor_msgs", "std_msgs", "builtin_interfaces", "flashrt_ros.msg"):
    sys.modules[name] = None
from flashrt_ros.replay import open_run, replay
from toy_policy import ToyPolicy
assert replay(open_run({str(bag)!r}), ToyPolicy()).identical
"""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'test'}"}
    environment.pop("AMENT_PREFIX_PATH", None)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


class Bent(ToyPolicy):
    """Computes something else under the same name, from the fifth tick on."""

    def _replay(self, key: Any) -> None:
        super()._replay(key)
        if self._arena["step"] == 5:
            self._arena["sum"][1] += 1e-6


def test_the_buffer_that_differs_is_named(bag: Path) -> None:
    found = replay(open_run(bag), Bent()).difference
    assert found is not None
    assert (found.kind, found.name) == ("buffer", "sum")
    assert "1 of 7 buffers" in found.message


def test_with_a_tolerance_small_differences_of_actions_are_none(bag: Path) -> None:
    run = open_run(bag)
    assert replay(run, Bent(), tolerance=1e-3).identical
    found = replay(run, Bent(), tolerance=1e-12).difference
    assert found is not None
    assert found.kind == "action"


def test_drift_goes_on_and_measures(bag: Path) -> None:
    found = drift(open_run(bag), Bent())
    assert found.errors.shape == (15, 2)
    assert found.errors[:5].max() == 0.0
    assert 0.0 < found.errors.max() < 1e-5
    assert np.all(np.diff(found.stamps) > 0)


def test_a_lost_event_that_matters_is_named(lines: list[Line], tmp_path: Path) -> None:
    numbers = events(lines, Boundary.COMMIT)
    boundaries = [line for line in lines if line.topic.endswith("/boundary")]
    lost = boundaries[numbers[4]]
    found = difference([line for line in lines if line is not lost], tmp_path)
    assert found.kind == "lost"
    assert found.name == f"events {lost.message.event_index} to {lost.message.event_index}"


def test_a_lost_event_that_changes_nothing_is_a_note(lines: list[Line], tmp_path: Path) -> None:
    number = events(lines, Boundary.SNAPSHOT)[2]
    lost = [line for line in lines if line.topic.endswith("/boundary")][number]
    bag = write_bag(tmp_path / "bag", [line for line in lines if line is not lost])
    report = replay(open_run(bag), ToyPolicy())
    assert report.identical
    assert any(f"events {lost.message.event_index} to" in note for note in report.notes)


def test_an_input_that_is_not_in_the_bag_is_named(lines: list[Line], tmp_path: Path) -> None:
    gone = [line for line in lines if line.topic.endswith("image_raw")][3]
    found = difference([line for line in lines if line is not gone], tmp_path)
    assert (found.kind, found.name, found.actual) == ("input", "camera", "missing")
    assert found.boundary == 4


@pytest.mark.parametrize("boundary", [0, 3, 5, 8, 12, 16])
def test_a_jump_to_any_boundary_comes_to_the_same_state(bag: Path, boundary: int) -> None:
    run = open_run(bag)
    cache = bag.parent / "cache"
    if not cache.exists():
        assert replay(run, ToyPolicy(), cache=cache, cache_every=3).identical
    report = replay(run, ToyPolicy(), from_boundary=boundary, cache=cache)
    assert report.identical, report.difference
    assert report.compared["states"] > 0
    if boundary == 8:  # kept: states after the 3rd, 6th, ... tick
        assert report.ticks < run.ticks


def test_a_capsule_from_before_the_bag_is_refused_by_name_or_taken_from_its_directory(
    tmp_path: Path,
) -> None:
    run = ToyRun(directory=tmp_path / "capsules", state_digest_every=1)
    run.tick(3)
    run.verb("snapshot", "early")
    run.verb("move", "early", "disk")
    run.tick(2)
    begin = len(run.lines)
    info = run.lines[0]
    run.verb("reset", Motion.REPLAN)
    run.tick(1)
    run.verb("restore", "early", Motion.REPLAN)
    run.tick(2)
    run.close()
    recorded = open_run(write_bag(tmp_path / "bag", [info, *run.lines[begin:]]))
    with pytest.raises(CannotReplay, match=r"capsule .* named 'early'.* before the bag begins"):
        replay(recorded, ToyPolicy(), capsules=empty_directory(tmp_path / "none"))
    report = replay(recorded, ToyPolicy(), capsules=tmp_path / "capsules")
    assert report.identical, report.difference
    assert report.ticks == 3


def test_a_bag_that_begins_in_mid_session_begins_at_its_first_capsule(tmp_path: Path) -> None:
    run = ToyRun(directory=tmp_path / "capsules")
    run.tick(4)
    begin, info = len(run.lines), run.lines[0]
    run.tick(2)
    capsule = run.verb("snapshot", "here")
    run.verb("move", capsule, "disk")
    run.tick(3)
    run.close()
    recorded = open_run(write_bag(tmp_path / "bag", [info, *run.lines[begin:]]))
    with pytest.raises(CannotReplay, match="begins in mid-session with event"):
        replay(recorded, ToyPolicy(), capsules=empty_directory(tmp_path / "none"))
    report = replay(recorded, ToyPolicy(), capsules=tmp_path / "capsules")
    assert report.identical
    assert report.ticks == 3


def empty_directory(path: Path) -> Path:
    (path / "capsules").mkdir(parents=True)
    return path


def test_what_if_repeats_the_recorded_future_and_shows_others(bag: Path) -> None:
    run = open_run(bag)
    same = what_if(run, 1, ticks=2, model=ToyPolicy())
    assert np.array_equal(same.actions()[0], same.recorded)
    found = what_if(run, 1, "reach", range(8), 2, ToyPolicy())
    assert found.actions().shape == (8, 2, 3, 2)
    spread = found.actions().std(axis=0)
    assert 0.0 < spread.max() < 0.01  # the noise
    moved = found.actions().mean(axis=0) - same.actions()[0]
    assert np.abs(moved).max() > 0.05  # the instruction
    with pytest.raises(CannotReplay, match="dance"):
        what_if(run, 1, "dance", (), 1, ToyPolicy())


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command loads policies by name: let it find the toy."""
    monkeypatch.setattr("flashrt_ros.replay.machine.load_policy", lambda *_, **__: ToyPolicy())


@pytest.mark.usefixtures("shipped")
def test_the_exit_status_tells_identical_different_and_impossible(
    bag: Path, lines: list[Line], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(bag), "--json", str(tmp_path / "out.json")]) == 0
    assert "identical" in capsys.readouterr().out
    assert '"identical": true' in (tmp_path / "out.json").read_text()
    gone = [line for line in lines if line.topic.endswith("image_raw")][3]
    other = write_bag(tmp_path / "other", [line for line in lines if line is not gone])
    assert main([str(other)]) == 1
    assert "DIFFERS in input 'camera' at boundary 4" in capsys.readouterr().out
    assert main([str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
    plot = tmp_path / "drift.png"
    assert main([str(bag), "--drift", "--plot", str(plot)]) == 0
    assert plot.read_bytes()[:4] == b"\x89PNG"
    assert main([str(bag), "--at", "2", "--instruction", "reach", "--seeds", "0..3"]) == 0
    assert "4 branches from boundary 2" in capsys.readouterr().out
