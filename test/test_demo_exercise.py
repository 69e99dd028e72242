# SPDX-License-Identifier: Apache-2.0
"""The exercise: it passes against the demonstration, and would see what is wrong there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from builtin_interfaces.msg import Time
from std_msgs.msg import Header
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from flashrt_ros.client import Code, Motion, VerbRefused, requests
from flashrt_ros.demo.dialogue import Dialogue, Unanswered
from flashrt_ros.demo.expectations import judge_branches, judge_move, target
from flashrt_ros.demo.witness import CommandWitness, LineageWitness, Lost, Moment, Wrong
from flashrt_ros.msg import ActionChunk, Boundary, Branch, BranchResult, CapsuleInfo, VerbResult
from flashrt_ros.srv import Evaluate, Restore, Verb

PAST = [(7, 700), (5, 500), (2, 200), (0, 0)]  # 7 is live; number and stamp


def test_25_calls_against_a_fresh_policy_and_arm_are_all_right(tmp_path: Path) -> None:
    summary = tmp_path / "exercise.json"
    command = [sys.executable, "-m", "flashrt_ros.demo.exercise", "--calls", "25", "--seed", "5"]
    command += ["--json", str(summary)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong, 0 lost, 0 unanswered" in done.stdout
    told = json.loads(summary.read_text())
    calls = {row["verb"]: row["calls"] for row in told["verbs"]}
    core = ("interrupt", "capsule/rollback", "capsule/evaluate")
    assert all(calls[verb] for verb in core)
    assert sum(calls[verb] for verb in core) >= 25
    assert sum(calls.values()) == told["calls"] > 30
    assert told["exit_statuses"] == {"policy_node": 0, "sim_arm_node": 0}
    assert told["moves"] > 10
    assert told["boundaries"] > 10


# -- what the witnesses see --------------------------------------------------------------------


@dataclass
class Events:
    """Boundary events as a node would number them."""

    witness: LineageWitness = field(default_factory=LineageWitness)
    index: int = 0

    def tell(self, event: int, boundary: int, step: int, epoch: int, **more: Any) -> None:
        self.index += 1
        detail = {"session": "s", "boundary": boundary, "parent": "", "tier": "device"}
        message = Boundary(
            event=event, event_index=self.index, session="s", boundary=boundary, step=step
        )
        message.epoch, message.parent = epoch, more.pop("parent", boundary - 1)
        message.input_names, message.input_stamps = ["camera"], [Time(sec=boundary)]
        message.detail = json.dumps({"capsule": detail})
        for name, value in more.items():
            setattr(message, name, value)
        self.witness.take(message)


@pytest.fixture
def events() -> Events:
    """Two boundaries, then a way back to the first of them."""
    made = Events()
    made.tell(Boundary.ACTIVATE, 0, 0, 0, parent=-1)
    made.tell(Boundary.COMMIT, 1, 1, 0)
    made.tell(Boundary.COMMIT, 2, 2, 0)
    made.tell(Boundary.ROLLBACK, 1, 1, 1, parent=0, motion=int(Motion.HOLD), request_id="back")
    assert made.witness.fault is None
    return made


def test_lineage_of_a_run_in_order_has_no_fault(events: Events) -> None:
    assert events.witness.still == 1
    events.tell(Boundary.RESUME, 1, 1, 1, parent=0, motion=int(Motion.REPLAN))
    assert events.witness.still is None
    events.tell(Boundary.COMMIT, 3, 2, 1, parent=1)
    assert events.witness.fault is None
    assert events.witness.lineage() == [3, 1, 0]
    assert events.witness.moments[events.witness.event("back", Boundary.ROLLBACK, 1, 1.0)].held


@pytest.mark.parametrize(
    ("event", "place", "more", "why"),
    [
        (Boundary.COMMIT, (2, 2, 1), {"parent": 1}, "does not follow"),
        (Boundary.COMMIT, (3, 2, 1), {"parent": 2}, "does not follow"),
        (Boundary.COMMIT, (3, 3, 1), {"parent": 1}, "does not follow"),
        (Boundary.COMMIT, (3, 2, 0), {"parent": 1}, "the epoch was 1"),
        (Boundary.RESTORE, (2, 2, 1), {}, "the epoch was 1"),
        (Boundary.RESTORE, (9, 2, 2), {}, "never was"),
        (Boundary.INTERRUPT, (1, 1, 1), {"parent": 0}, "the epoch was 1"),
        (Boundary.EVALUATE, (2, 2, 1), {}, "moved the live state"),
        (Boundary.SNAPSHOT, (1, 1, 2), {"parent": 0}, "the epoch was 1"),
    ],
)
def test_event_that_cannot_follow_is_a_fault(
    events: Events, event: int, place: tuple[int, int, int], more: dict[str, Any], why: str
) -> None:
    events.tell(event, *place, **more)
    with pytest.raises(Wrong, match=why):
        events.witness.wait(lambda: False, 1.0, "a fault")


def test_event_that_was_lost_is_a_fault(events: Events) -> None:
    events.index += 1
    events.tell(Boundary.COMMIT, 3, 2, 1, parent=1)
    assert isinstance(events.witness.fault, Lost)


def test_older_epoch_with_a_newer_sequence_is_a_fault_over_both_topics() -> None:
    for late in ((1, 5), (2, 4), (3, 2)):
        witness = CommandWitness()
        witness.take(ActionChunk(epoch=1, sequence=3))
        witness.obey(_command(1, 3, points=2))
        witness.obey(_command(2, 4, points=1))
        assert witness.fault is None
        assert (witness.moves[1], witness.moves[2]) == (1, 0)
        witness.obey(_command(*late))
        assert witness.fault is not None


def _command(epoch: int, sequence: int, points: int = 1) -> JointTrajectory:
    text = f"epoch={epoch} boundary=0 sequence={sequence}"
    return JointTrajectory(
        header=Header(frame_id=text), points=[JointTrajectoryPoint() for _ in range(points)]
    )


# -- what the planner expects ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "named", "aim"),
    [
        ({"count": 1}, None, 5),
        ({"count": 2}, None, Code.NOT_STORED),
        ({"count": 2, "nearest": True}, None, 0),
        ({"count": 4, "nearest": True}, None, Code.INVALID_ARGUMENT),
        ({"boundary": 7}, None, 7),
        ({"boundary": 6}, None, Code.INVALID_ARGUMENT),
        ({"before_ns": 699}, None, 5),
        ({"before_ns": 1}, None, 0),
        ({"name": "a"}, 2, 2),  # it is a capsule of its own, whatever else is stored
        ({"name": "a"}, 6, Code.INVALID_ARGUMENT),
        ({"name": "a", "count": 1}, 2, Code.INVALID_ARGUMENT),
        ({}, None, Code.INVALID_ARGUMENT),
    ],
)
def test_target_of_a_rollback(where: dict[str, Any], named: int | None, aim: int | Code) -> None:
    request = requests.rollback(**where).request
    assert target(request, PAST, {0, 5, 7}, named) == aim


@pytest.mark.parametrize(
    ("boundary", "motion", "held"), [(4, 2, False), (5, 1, False), (5, 2, True)]
)
def test_move_that_is_not_what_was_asked_for_is_wrong(
    boundary: int, motion: int, held: bool
) -> None:
    after = Moment(5, 5, 1, "wait", held)
    response = Restore.Response(
        result=VerbResult(boundary=boundary, motion=motion), capsule=CapsuleInfo(boundary=boundary)
    )
    with pytest.raises(Wrong):
        judge_move(response, Motion.REPLAN, 5, after)


@pytest.mark.parametrize(
    "change",
    [
        {"complete": False},
        {"state_digest": "other"},
        {"instruction": "wait"},
        {"seed": 4},
        {"chunks": []},
        {"chunks": [ActionChunk(boundary=7)]},
        {"chunks": [ActionChunk(boundary=6, epoch=1)]},
        {"chunks": [ActionChunk(boundary=6, points=[JointTrajectoryPoint(positions=[0.1])])]},
    ],
)
def test_branch_that_is_not_what_was_asked_for_is_wrong(change: dict[str, Any]) -> None:
    asked = [Branch(label="a", instruction="reach", seed=3)] * 2
    whole = {"label": "a", "instruction": "reach", "seed": 3, "complete": True}
    whole["chunks"] = [ActionChunk(boundary=6)]
    good, changed = BranchResult(**whole), BranchResult(**(whole | change))
    judge_branches(Evaluate.Response(branches=[good, good]), asked, 1, 5)
    with pytest.raises(Wrong):
        judge_branches(Evaluate.Response(branches=[good, changed]), asked, 1, 5)


# -- a node that answers wrongly ---------------------------------------------------------------


class AnswersWrongly:
    """Answers a call with what a test says."""

    def __init__(self, answer: Verb.Response | Exception) -> None:
        self.answer = answer

    def call(self, call: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        if not self.answer.success:
            raise VerbRefused(call.name, self.answer)
        return self.answer


def _dialogue(events: Events, answer: Any) -> Dialogue:
    policy: Any = AnswersWrongly(answer)
    return Dialogue(policy, (events.witness, CommandWitness()), patience=0.1)


def _answer(boundary: int, step: int, epoch: int, **more: Any) -> Verb.Response:
    code = int(more.pop("code", Code.OK))
    result = VerbResult(code=code, boundary=boundary, step=step, epoch=epoch, **more)
    return Verb.Response(success=code == 0, result=result)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (_answer(1, 1, 2), Wrong),  # its event says epoch 1
        (_answer(1, 1, 1, code=Code.NOT_READY), Wrong),
        (_answer(1, 1, 1, repeated=True), Wrong),
        (TimeoutError("none"), Unanswered),
    ],
)
def test_answer_that_does_not_agree_is_a_fault(
    events: Events, answer: Any, fault: type[Exception]
) -> None:
    call = requests.rollback(count=1, request_id="back")
    good = _dialogue(events, _answer(1, 1, 1))
    assert good.apply(call, Boundary.ROLLBACK)[1] == 3
    with pytest.raises(fault):
        _dialogue(events, answer).apply(call, Boundary.ROLLBACK)


def test_verb_that_was_answered_but_never_told_of_is_lost(events: Events) -> None:
    with pytest.raises(Lost):
        _dialogue(events, _answer(1, 1, 1)).apply(
            requests.interrupt(request_id="gone"), Boundary.INTERRUPT
        )


def test_refusal_lies_between_the_events_around_it(events: Events) -> None:
    for answer, right in (
        (_answer(2, 2, 0, code=Code.NOT_READY), True),
        (_answer(7, 7, 0, code=Code.NOT_READY), False),
    ):
        dialogue = _dialogue(events, answer)
        dialogue.ask(requests.resume(request_id="r"), {Code.NOT_READY})
        if right:
            dialogue.passed(3)
        else:
            with pytest.raises(Wrong, match="was refused"):
                dialogue.passed(3)


def test_command_that_moves_an_arm_that_a_verb_has_held_is_a_fault(events: Events) -> None:
    commands = CommandWitness()
    policy: Any = AnswersWrongly(_answer(1, 1, 1))
    dialogue = Dialogue(policy, (events.witness, commands), patience=0.1)
    commands.obey(_command(0, 1, points=2))
    dialogue.look()
    commands.obey(_command(1, 2, points=2))
    with pytest.raises(Wrong, match="commanded to move"):
        dialogue.look()
