# SPDX-License-Identifier: Apache-2.0
"""policy_node in a process of its own, over DDS: lifecycle, bad input, interrupts, signals."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from lifecycle_msgs.msg import State, Transition
from rcl_interfaces.srv import DescribeParameters, SetParameters
from rclpy.parameter import Parameter
from ros_rig import PATIENCE, POLICY, FakeCamera, Rig, commit_id, moves, rig
from std_srvs.srv import Trigger

from flashrt_ros.client import VerbRefused
from flashrt_ros.demo.lifecycle import bring_up, change_state, get_state
from flashrt_ros.msg import RuntimeStatus
from flashrt_ros.policies import Motion
from flashrt_ros.runtime import Code

RUNNING, HOLDING = RuntimeStatus.RUNNING, RuntimeStatus.HOLDING


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, FakeCamera]]:
    """An active policy node as on a robot, and sensors that publish when a test says so."""
    with rig("/robot", tmp_path_factory.mktemp("robot")) as made:
        made.start_policy("observation_timeout:=0.0", "ramp_duration:=0.0")
        camera = FakeCamera(made)
        bring_up(made.caller, POLICY)
        camera.wait_for_subscribers()
        yield made, camera


@pytest.fixture
def policy(robot: tuple[Rig, FakeCamera]) -> tuple[Rig, FakeCamera]:
    """The same robot at its first boundary, running, after one good observation."""
    made, camera = robot
    made.policy.reset()
    made.policy.set_instruction("wait")
    for inbox in (made.commands, made.chunks, made.boundaries):
        inbox.clear()
    tick(made, camera)
    return robot


def tick(made: Rig, camera: FakeCamera) -> Any:
    """Good observations until a chunk answers one; returns that chunk."""
    before = len(made.chunks.all())
    deadline = time.monotonic() + PATIENCE
    while len(made.chunks.all()) == before and time.monotonic() < deadline:
        camera.show()
        made.chunks.has_count(before + 1, within=5.0)
    return made.chunks.wait_count(before + 1, "a chunk")[-1]


def held(made: Rig, reason: str) -> RuntimeStatus:
    return made.policy.wait_for_status(
        lambda status: status.state == HOLDING and reason in status.reason, 30.0
    )


# -- bad input: named, the arm holds, the node stays up ----------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoding": "nv24"}, "image encoding is 'nv24'"),
        ({"height": 32, "data": bytes(32 * 192)}, "is uint8 (32, 64, 3), expected uint8"),
        ({"step": 100}, "image step is 100 bytes"),
        ({"data": bytes(7)}, "image has 7 bytes, expected 12288"),
    ],
)
def test_bad_image_is_named_and_the_arm_holds_until_a_good_one(
    policy: tuple[Rig, FakeCamera], changes: dict[str, Any], reason: str
) -> None:
    made, camera = policy
    camera.publish(camera.image(**changes))
    status = held(made, reason)
    assert "camera: " in status.last_error
    assert len(made.commands.wait_count(2, "a hold")[-1].points) == 1
    tick(made, camera)
    made.policy.wait_for_status(lambda status: status.state == RUNNING)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": ["waist"], "position": [0.0]}, "lacks shoulder, elbow, wrist_pitch, wrist_roll"),
        ({"position": [0.1, float("nan"), 0.1, 0.1, 0.1]}, "nan for 'shoulder'"),
        ({"position": []}, "5 names and 0 positions"),
    ],
)
def test_bad_joint_state_is_named_and_the_arm_holds_until_a_good_one(
    policy: tuple[Rig, FakeCamera], changes: dict[str, Any], reason: str
) -> None:
    made, camera = policy
    camera.publish(camera.joint_state(**changes))
    held(made, reason)
    made.diagnostics.wait(
        lambda messages: any(
            reason in status.message for message in messages for status in message.status
        ),
        f"a diagnostic that says '{reason}'",
    )
    tick(made, camera)
    made.policy.wait_for_status(lambda status: status.state == RUNNING)


def test_joint_names_in_another_order_make_no_difference(policy: tuple[Rig, FakeCamera]) -> None:
    made, camera = policy
    positions = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    order = [3, 1, 4, 0, 2]
    state = camera.joint_state(position=positions.tolist())
    shuffled = camera.joint_state(
        name=[state.name[i] for i in order], position=positions[order].tolist()
    )
    chunks = []
    for joints in (state, shuffled):
        made.policy.reset()
        before = len(made.chunks.all())
        joints.header.stamp = camera.stamp()
        camera.show(joints=joints)
        chunks.append(made.chunks.wait_count(before + 1, "a chunk")[-1])
    first, second = ([list(point.positions) for point in chunk.points] for chunk in chunks)
    assert first == second


def test_unknown_instruction_on_the_topic_holds_until_a_known_one(
    policy: tuple[Rig, FakeCamera],
) -> None:
    made, camera = policy
    camera.say("dance a waltz")
    status = held(made, "waltz")
    assert status.instruction == "wait"
    camera.show()
    made.settle()
    assert made.policy.status is not None
    assert made.policy.status.state == HOLDING
    camera.say("go home")
    made.policy.wait_for_status(lambda status: status.instruction == "go home")
    assert tick(made, camera).instruction == "go home"


def test_unknown_instruction_by_service_is_refused_and_changes_nothing(
    policy: tuple[Rig, FakeCamera],
) -> None:
    made, camera = policy
    with pytest.raises(VerbRefused, match="waltz") as refusal:
        made.policy.set_instruction("waltz")
    assert refusal.value.code is Code.UNKNOWN_INSTRUCTION
    assert tick(made, camera).instruction == "wait"


# -- verbs -------------------------------------------------------------------------------------


def test_every_verb_answers_with_boundary_epoch_and_duration(
    policy: tuple[Rig, FakeCamera],
) -> None:
    made, camera = policy
    taken = made.policy.snapshot("first", overwrite=True, tags=["test"])
    assert taken.capsule.step == 1
    assert taken.capsule.instruction == "wait"
    tick(made, camera)
    restored = made.policy.restore("first")
    assert restored.result.boundary == taken.capsule.boundary
    assert restored.result.epoch > taken.result.epoch
    assert restored.result.motion == Motion.REPLAN
    assert restored.result.duration > 0.0
    assert restored.steps_not_recomputed == 1
    assert restored.bytes_copied + restored.bytes_shared > 0
    assert "instruction" in restored.restored
    tick(made, camera)
    tick(made, camera)
    back = made.policy.rollback(count=2)
    assert back.result.step == 1
    listed = made.policy.list(name_prefix="first")
    assert [info.name for info in listed.capsules] == ["first"]
    assert listed.capsules[0].tags == ["test"]
    assert made.policy.list(unnamed=True).total > 1
    assert made.policy.delete("first").success
    assert made.policy.list(name_prefix="first").total == 0


def test_refusals_have_a_code_and_change_nothing(policy: tuple[Rig, FakeCamera]) -> None:
    made, _ = policy
    client = made.policy
    client.snapshot("taken", overwrite=True)
    before = client.list().result
    refusals = [
        (Code.UNKNOWN_CAPSULE, lambda: client.restore("nothing")),
        (Code.UNKNOWN_CAPSULE, lambda: client.delete("nothing")),
        (Code.NAME_TAKEN, lambda: client.snapshot("taken")),
        (Code.INVALID_ARGUMENT, lambda: client.snapshot("../escape")),
        (Code.STALE_BOUNDARY, lambda: client.snapshot("x", expected_boundary=9999)),
        (Code.STALE_BOUNDARY, lambda: client.restore("taken", expected_boundary=9999)),
        (Code.STALE_BOUNDARY, lambda: client.interrupt(expected_boundary=9999)),
        (Code.STALE_EPOCH, lambda: client.restore("taken", expected_epoch=9999)),
        (Code.INVALID_ARGUMENT, lambda: client.restore("taken", motion=Motion.UNCHANGED)),
        (Code.INVALID_ARGUMENT, lambda: client.restore("taken", ablate_only_roles=["soul"])),
        (Code.INVALID_ARGUMENT, lambda: client.rollback(count=1, name="taken")),
        (Code.INVALID_ARGUMENT, client.rollback),
        (Code.INVALID_ARGUMENT, lambda: client.rollback(count=500)),
        (Code.NOT_READY, client.resume),
    ]
    for code, verb in refusals:
        with pytest.raises(VerbRefused) as refusal:
            verb()
        assert refusal.value.code is code, str(refusal.value)
        assert refusal.value.response.message
    after = client.list().result
    assert (after.boundary, after.epoch) == (before.boundary, before.epoch)
    assert client.delete("taken").success


def test_reset_trigger_goes_back_to_the_first_boundary(policy: tuple[Rig, FakeCamera]) -> None:
    made, camera = policy
    tick(made, camera)
    answer = made.caller.call(Trigger, f"{POLICY}/reset", Trigger.Request())
    assert answer.success
    assert "boundary=0" in answer.message
    assert tick(made, camera).step == 1


def test_after_an_interrupt_nothing_of_an_older_epoch_arrives_and_nothing_moves(
    policy: tuple[Rig, FakeCamera],
) -> None:
    made, camera = policy
    stop = threading.Event()

    def stream() -> None:
        while not stop.is_set():  # faster than a tick: a replay is nearly always in flight
            camera.publish(camera.joint_state())
            camera.publish(camera.image())
            time.sleep(0.004)

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        for _ in range(10):
            made.chunks.clear()
            made.chunks.wait_count(3, "chunks")
            epoch = made.policy.interrupt().result.epoch
            made.settle()
            made.commands.clear()
            made.chunks.clear()
            made.settle()
            assert moves(made.commands.all()) == []
            assert made.chunks.all() == []
            made.policy.resume(Motion.REPLAN)
            first = made.commands.wait(lambda sent: bool(moves(sent)), "a chunk after the resume")
            assert all(commit_id(command)["epoch"] >= epoch for command in first)
    finally:
        stop.set()
        thread.join()


def test_boundary_events_have_no_gap_and_rebuild_the_lineage(
    policy: tuple[Rig, FakeCamera],
) -> None:
    made, camera = policy
    tick(made, camera)
    made.policy.snapshot("branch", overwrite=True)
    tick(made, camera)
    made.policy.restore("branch")
    tick(made, camera)
    made.settle()
    events = made.boundaries.all()
    indices = [event.event_index for event in events]
    assert indices == list(range(indices[0], indices[0] + len(indices)))
    commits = {e.boundary: e.parent for e in events if e.event == e.COMMIT}
    numbers = sorted(commits)
    branch = next(e.boundary for e in events if e.event == e.RESTORE)
    assert commits[numbers[-1]] == branch  # the newest descends from the restored one
    assert commits[numbers[-2]] == branch  # and so does the one that was left
    assert made.policy.delete("branch").success


def test_concurrent_callers_are_all_answered_while_it_ticks(
    policy: tuple[Rig, FakeCamera],
) -> None:
    made, camera = policy
    made.policy.snapshot("shared", overwrite=True)
    failures: list[BaseException] = []

    def call(index: int) -> None:
        try:
            for turn in range(8):
                if (index + turn) % 2:
                    made.policy.restore("shared")
                else:
                    made.policy.snapshot(f"by{index}", overwrite=True)
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=call, args=(index,)) for index in range(8)]
    for caller in callers:
        caller.start()
    while any(caller.is_alive() for caller in callers):
        camera.show()
        time.sleep(0.01)
    assert failures == []
    tick(made, camera)


# -- life cycle --------------------------------------------------------------------------------


def test_parameters_are_described_with_ranges(robot: tuple[Rig, FakeCamera]) -> None:
    made, _ = robot
    request = DescribeParameters.Request(names=["continue_tolerance", "model", "seed"])
    answer = made.caller.call(DescribeParameters, f"{POLICY}/describe_parameters", request)
    tolerance, model, seed = answer.descriptors
    assert tolerance.floating_point_range[0].to_value == pytest.approx(3.2)
    assert "Checkpoint" in model.description
    assert seed.integer_range[0].from_value == 0


def test_lifecycle_goes_round_and_a_failed_configure_can_be_repeated(tmp_path: Path) -> None:
    with rig("/cycle", tmp_path) as made:
        made.start_policy("model:=/no/such/model", "observation_timeout:=0.0")
        camera = FakeCamera(made)
        with pytest.raises(RuntimeError, match="unconfigured"):
            change_state(made.caller, POLICY, Transition.TRANSITION_CONFIGURE)
        made.policy.wait_for_status(lambda status: "/no/such/model" in status.last_error)
        model = Parameter("model", value="cued_reach").to_parameter_msg()
        request = SetParameters.Request(parameters=[model])
        answer = made.caller.call(SetParameters, f"{POLICY}/set_parameters", request)
        assert answer.results[0].successful, answer.results[0].reason
        for _ in range(2):
            bring_up(made.caller, POLICY)
            camera.wait_for_subscribers()
            tick(made, camera)
            made.commands.clear()
            change_state(made.caller, POLICY, Transition.TRANSITION_DEACTIVATE)
            assert len(made.commands.wait_count(1, "a hold")[-1].points) == 1
            camera.show()
            made.settle()
            assert moves(made.commands.all()) == []
            with pytest.raises(VerbRefused) as refusal:
                made.policy.interrupt()
            assert refusal.value.code is Code.NOT_READY
            change_state(made.caller, POLICY, Transition.TRANSITION_CLEANUP)
            made.policy.wait_for_status(lambda s: s.state == RuntimeStatus.UNCONFIGURED)
            assert get_state(made.caller, POLICY).id == State.PRIMARY_STATE_UNCONFIGURED


def test_signal_while_moving_leaves_a_held_arm_and_status_zero(tmp_path: Path) -> None:
    with rig("/signal", tmp_path) as made:
        made.start_policy("observation_timeout:=0.0")
        camera = FakeCamera(made)
        bring_up(made.caller, POLICY)
        camera.wait_for_subscribers()
        tick(made, camera)
        assert len(made.commands.all()[-1].points) > 1
        assert made.processes.stop(patience=30.0) == {POLICY: 0}
        assert len(made.commands.wait_count(2, "a hold")[-1].points) == 1


def test_silent_camera_holds_the_arm_and_diagnostics_say_so(tmp_path: Path) -> None:
    with rig("/silent", tmp_path) as made:
        made.start_policy("observation_timeout:=0.5")
        camera = FakeCamera(made)
        bring_up(made.caller, POLICY)
        camera.wait_for_subscribers()
        made.diagnostics.wait(
            lambda messages: any(
                "nothing yet from camera, joint_states" in status.message
                for message in messages
                for status in message.status
            ),
            "a diagnostic that names the missing inputs",
        )
        assert made.commands.all() == []  # nothing is invented
        tick(made, camera)
        held(made, "no complete observation for")
        assert len(made.commands.all()[-1].points) == 1
        tick(made, camera)
        made.policy.wait_for_status(lambda status: status.state == RUNNING)
