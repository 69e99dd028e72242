# SPDX-License-Identifier: Apache-2.0
"""evaluate, timed runs and repeated requests over DDS, with a toy policy in a node of its own."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from lifecycle_msgs.msg import Transition
from planner_bench import ToySensors, Watch, toy_robot
from ros_rig import PATIENCE, POLICY, RELIABLE, Rig, bits, wait_for_readers
from std_msgs.msg import Bool

from flashrt_ros.client import AsyncCapsuleClient, VerbRefused
from flashrt_ros.demo.lifecycle import change_state
from flashrt_ros.msg import Boundary, Branch, RuntimeStatus
from flashrt_ros.policies import Motion
from flashrt_ros.runtime import Code


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, ToySensors, Watch]]:
    with toy_robot("/evaluate", tmp_path_factory.mktemp("evaluate")) as (made, sensors):
        watch = Watch(made)
        while watch.newest is None:
            made.policy.set_instruction("wait")
            watch.pause(0.05)
        yield made, sensors, watch


@pytest.fixture
def policy(robot: tuple[Rig, ToySensors, Watch]) -> tuple[Rig, ToySensors, Watch]:
    """The same node at its first boundary, running, after one observation."""
    made, sensors, _ = robot
    made.policy.reset()
    made.policy.set_instruction("wait")
    tick(made, sensors, 10)
    return robot


def tick(made: Rig, sensors: ToySensors, value: int) -> Any:
    """Observations until a chunk answers one; that chunk."""
    before = len(made.chunks.all())
    deadline = time.monotonic() + PATIENCE
    sensors.show(value)
    while not made.chunks.has_count(before + 1, 3.0):
        assert time.monotonic() < deadline, "no chunk"
        sensors.show(value)  # an image that overtook the first joint state makes no observation
    return made.chunks.all()[-1]


def show_until(sensors: ToySensors, over: Any) -> None:
    """Observations at 50 Hz until something is over."""
    deadline = time.monotonic() + PATIENCE
    while not over():
        assert time.monotonic() < deadline, "it is never over"
        sensors.show(1)
        time.sleep(0.02)


async def cancelled_by(client: AsyncCapsuleClient, evaluation: str) -> bool:
    """Whether there was such an evaluation to cancel: it may not have come yet."""
    try:
        await client.cancel_evaluation(evaluation)
    except VerbRefused:
        return False
    return True


def refused(code: Code) -> Any:
    return pytest.raises(VerbRefused, match=code.name)


# -- evaluate ----------------------------------------------------------------------------------


def test_evaluated_chunk_is_the_one_that_the_node_then_computes(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, sensors, watch = policy
    made.policy.snapshot("here", overwrite=True)
    seen = sensors.observation(99, time.time_ns())
    before = made.policy.list().result
    answer = made.policy.evaluate(
        ["wait", Branch(label="b", instruction="reach", seed=4)],
        capsule="here",
        observations=[seen],
    )
    after = made.policy.list().result
    assert (before.boundary, before.epoch) == (after.boundary, after.epoch)
    assert [branch.label for branch in answer.branches] == ["wait", "b"]
    assert [branch.seed for branch in answer.branches] == [3, 4]
    chunk = answer.branches[0].chunks[0]
    assert (chunk.epoch, chunk.sequence, chunk.boundary) == (0, 0, before.boundary + 1)
    assert answer.branches[1].chunks[0].instruction == "reach"
    assert bits(answer.branches[1].chunks[0]) != bits(chunk)
    tick(made, sensors, 99)
    # The buffer, not the message: what is sent may be ramped or limited.
    buffer = np.frombuffer(bits(chunk)).astype(np.float32).tobytes()
    digest = hashlib.sha256(buffer).hexdigest()[:16]
    watch.wait(lambda: watch.buffers["chunk"] == digest, "the evaluated chunk")


def test_evaluation_is_told_with_what_is_needed_to_find_it_again(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, _, watch = policy
    answer = made.policy.evaluate(["reach"], keep=True, request_id="told-1")
    watch.wait(
        lambda: watch.newest is not None and watch.newest.event == Boundary.EVALUATE, "EVALUATE"
    )
    assert watch.newest is not None
    assert watch.newest.request_id == "told-1"
    assert watch.detail["branches"][0]["capsule"] == answer.branches[0].capsule
    made.policy.restore(answer.branches[0].capsule)
    watch.wait(lambda: "origin" in watch.detail, "the restore of a capsule of another session")
    assert made.policy.status is not None
    made.policy.delete(answer.branches[0].capsule)


def test_evaluation_is_cancelled_with_what_was_done_and_by_its_deadline(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, sensors, _ = policy

    async def scenario() -> None:
        async with AsyncCapsuleClient(made.node, POLICY, timeout=PATIENCE) as client:
            long = client.evaluate(["wait", "reach"], ticks=10_000, request_id="long")
            while not await cancelled_by(client, "long"):
                pass
            with refused(Code.CANCELLED) as cancelled:
                await long
            assert len(cancelled.value.response.branches) <= 1
            with refused(Code.DEADLINE_EXCEEDED) as late:
                await client.evaluate(["wait", "reach"], ticks=10_000, deadline=0.05)
            branches = late.value.response.branches
            assert len(branches) == 1
            assert not branches[0].complete
            assert len(branches[0].chunks) < 10_000

    asyncio.run(scenario())
    assert tick(made, sensors, 11).epoch == made.policy.list().result.epoch


@pytest.mark.parametrize(
    ("branches", "changes", "code"),
    [
        ([], {}, Code.INVALID_ARGUMENT),
        (["dance"], {}, Code.UNKNOWN_INSTRUCTION),
        (["wait"], {"capsule": "nowhere"}, Code.UNKNOWN_CAPSULE),
        (["wait"], {"expected_boundary": 77_777}, Code.STALE_BOUNDARY),
        (["wait"], {"expected_epoch": 77_777}, Code.STALE_EPOCH),
        (["wait"], {"deadline": float("nan")}, Code.INVALID_ARGUMENT),
        (["wait"], {"ticks": 0}, Code.INVALID_ARGUMENT),
        ([Branch(seed=-2)], {}, Code.INVALID_ARGUMENT),
    ],
)
def test_evaluation_that_cannot_be_meant_is_refused(
    policy: tuple[Rig, ToySensors, Watch],
    branches: list[Any],
    changes: dict[str, Any],
    code: Code,
) -> None:
    with refused(code):
        policy[0].policy.evaluate(branches, **changes)


def test_recorded_observation_that_lacks_an_input_is_refused_naming_it(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, sensors, _ = policy
    seen = sensors.observation(1, 1)
    seen.camera_names = ["side"]
    with pytest.raises(VerbRefused, match=r"cameras side; expected one for each of camera"):
        made.policy.evaluate(["wait"], observations=[seen])
    seen = sensors.observation(1, 1)
    seen.joint_states.name = ["shoulder", "wrist"]
    with pytest.raises(VerbRefused, match="elbow"):
        made.policy.evaluate(["wait"], observations=[seen])


# -- repeated requests -------------------------------------------------------------------------


def test_request_sent_twice_is_applied_once_also_while_it_is_under_way(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, _, _ = policy

    async def scenario() -> list[Any]:
        async with AsyncCapsuleClient(made.node, POLICY, timeout=PATIENCE) as client:
            same = {"ticks": 200, "request_id": "twice"}
            return list(await asyncio.gather(*(client.evaluate(["wait"], **same) for _ in "abc")))

    answers = asyncio.run(scenario())
    assert [answer.result.repeated for answer in answers].count(False) == 1
    assert len({answer.branches[0].state_digest for answer in answers}) == 1
    first = made.policy.interrupt(request_id="once")
    again = made.policy.interrupt(request_id="once")
    assert again.result.repeated
    assert again.result.epoch == first.result.epoch == made.policy.list().result.epoch
    with refused(Code.INVALID_ARGUMENT):
        made.policy.resume(Motion.REPLAN, request_id="once")


# -- runs --------------------------------------------------------------------------------------


def test_run_ends_by_its_duration_and_holds(policy: tuple[Rig, ToySensors, Watch]) -> None:
    made, sensors, watch = policy
    heard: list[Any] = []
    made.policy.interrupt()
    run = made.policy.run("reach", duration=1.2, on_feedback=heard.append, request_id="timed")
    show_until(sensors, run.done)
    result = run.result()
    assert result.request_id == "timed"
    assert result.ticks > 0
    assert result.elapsed.sec >= 1
    assert heard
    assert heard[0].request_id == "timed"
    status = made.policy.wait_for_status(lambda s: s.state == RuntimeStatus.HOLDING, PATIENCE)
    assert status.instruction == "reach"
    watch.wait(lambda: "timed" in watch.ended, "RUN_END")


def test_run_goes_on_ticking_where_that_is_asked_for(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, sensors, _ = policy
    run = made.policy.run("reach", duration=0.3, at_end=Motion.UNCHANGED)
    show_until(sensors, run.done)
    assert run.result().result.motion == Motion.UNCHANGED
    assert tick(made, sensors, 5).instruction == "reach"


def test_later_run_or_another_instruction_takes_over(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, sensors, _ = policy
    first = made.policy.run("reach")
    made.policy.wait_for_status(lambda s: s.run == first.id, PATIENCE)
    second = made.policy.run("go home")
    with refused(Code.PREEMPTED):
        first.result(PATIENCE)
    made.policy.wait_for_status(lambda s: s.run == second.id, PATIENCE)
    made.policy.set_instruction("wait")
    with refused(Code.PREEMPTED):
        second.result(PATIENCE)
    assert tick(made, sensors, 5).instruction == "wait"


def test_run_that_is_refused_leaves_the_one_under_way_alone(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, _, _ = policy
    first = made.policy.run("reach")
    made.policy.wait_for_status(lambda s: s.run == first.id, PATIENCE)
    for changes, code in (
        ({"instruction": "dance"}, Code.UNKNOWN_INSTRUCTION),
        ({"expected_epoch": 77_777}, Code.STALE_EPOCH),
        ({"at_end": Motion.CONTINUE}, Code.INVALID_ARGUMENT),
        ({"duration": -1.0}, Code.INVALID_ARGUMENT),
    ):
        with refused(code):
            made.policy.run(**changes).result(PATIENCE)
        with refused(code):
            made.policy.start_run(**changes)
    assert not first.done()
    first.cancel().result(PATIENCE)
    with refused(Code.CANCELLED):
        first.result(PATIENCE)
    assert made.policy.wait_for_status(lambda s: not s.run, PATIENCE).state == RuntimeStatus.HOLDING


def test_run_cancelled_before_it_comes_never_begins(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, sensors, _ = policy
    made.policy.cancel_run("early")
    with refused(Code.CANCELLED):
        made.policy.start_run("reach", request_id="early")
    made.policy.cancel_run("early too")
    with refused(Code.CANCELLED):
        made.policy.run("reach", request_id="early too").result(PATIENCE)
    assert tick(made, sensors, 5).instruction == "wait"
    assert made.policy.cancel_run().message == "no run is under way"


def test_goal_cancelled_by_the_action_itself_is_canceled(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    from action_msgs.msg import GoalStatus
    from rclpy.action import ActionClient

    from flashrt_ros.action import RunPolicy

    made, _, _ = policy
    client = ActionClient(made.node, RunPolicy, f"{POLICY}/run")
    assert client.wait_for_server(PATIENCE)
    done, results = threading.Event(), []

    def accepted(sent: Any) -> None:
        handle = sent.result()
        handle.cancel_goal_async()
        handle.get_result_async().add_done_callback(finished)

    def finished(answered: Any) -> None:
        results.append(answered.result())
        done.set()

    client.send_goal_async(RunPolicy.Goal(instruction="reach")).add_done_callback(accepted)
    assert done.wait(PATIENCE)
    assert results[0].status == GoalStatus.STATUS_CANCELED
    assert results[0].result.result.code == Code.CANCELLED
    made.policy.wait_for_status(lambda s: not s.run, PATIENCE)
    made.node.executor.create_task(client.destroy)  # not while the executor waits for it


def test_run_is_paused_by_an_interrupt_and_ended_by_deactivation(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, sensors, _ = policy
    run = made.policy.run("reach")
    made.policy.wait_for_status(lambda s: s.run == run.id, PATIENCE)
    made.policy.interrupt()
    made.policy.resume(Motion.REPLAN)
    tick(made, sensors, 5)
    assert not run.done()
    change_state(made.caller, POLICY, Transition.TRANSITION_DEACTIVATE)
    with refused(Code.CANCELLED):
        run.result(PATIENCE)
    with refused(Code.NOT_READY):
        made.policy.start_run("reach")
    change_state(made.caller, POLICY, Transition.TRANSITION_ACTIVATE)


# -- the emergency stop meanwhile --------------------------------------------------------------


class StopButton:
    """Pressed for a `with` block, by a publisher that the node has found before."""

    def __init__(self, made: Rig) -> None:
        self._made = made
        self._publisher = made.node.create_publisher(Bool, "emergency_stop", RELIABLE)
        wait_for_readers(self._publisher)

    def __enter__(self) -> None:
        self._publisher.publish(Bool(data=True))
        self._made.policy.wait_for_status(lambda s: bool(s.emergency_stop), PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._publisher.publish(Bool(data=False))
        self._made.policy.wait_for_status(lambda s: not s.emergency_stop, PATIENCE)
        self._made.node.destroy_publisher(self._publisher)


def test_emergency_stop_in_a_run_holds_the_arm_and_the_run_ends_by_its_time(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, sensors, _ = policy
    button, heard = StopButton(made), list[Any]()
    epoch = made.policy.list().result.epoch
    run = made.policy.run("reach", duration=3.0, at_end=Motion.UNCHANGED, on_feedback=heard.append)
    made.policy.wait_for_status(lambda s: s.run == run.id, PATIENCE)
    with button:
        stopped = made.policy.list().result
        assert stopped.epoch == epoch + 1
        assert not run.done()
        for asked in (made.policy.start_run, made.policy.resume):
            with refused(Code.EMERGENCY_STOP):
                asked()
        show_until(sensors, run.done)
        result = run.result().result
        assert (result.code, result.boundary, result.epoch) == (0, stopped.boundary, stopped.epoch)
        assert heard[-1].state == RuntimeStatus.HOLDING
        assert heard[-1].reason == "emergency stop"
    # The run's end was no release, nor was the release a resume.
    held = made.policy.wait_for_status(lambda s: s.state == RuntimeStatus.HOLDING, PATIENCE)
    assert held.boundary == stopped.boundary
    made.policy.resume(Motion.REPLAN)
    assert tick(made, sensors, 6).boundary > stopped.boundary


def test_run_that_is_cancelled_while_the_emergency_stop_is_pressed_is_answered(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, _, _ = policy
    run = made.policy.run("reach", at_end=Motion.HOLD)
    made.policy.wait_for_status(lambda s: s.run == run.id, PATIENCE)
    with StopButton(made):
        assert not run.done()
        run.cancel().result(PATIENCE)
        with refused(Code.CANCELLED):
            run.result(PATIENCE)
        status = made.policy.wait_for_status(lambda s: not s.run, PATIENCE)
        assert (status.state, status.reason) == (RuntimeStatus.HOLDING, "emergency stop")


def test_emergency_stop_in_an_evaluation_holds_the_arm_and_changes_no_branch(
    policy: tuple[Rig, ToySensors, Watch],
) -> None:
    made, sensors, _ = policy
    made.policy.snapshot("stop_here", overwrite=True)
    given: dict[str, Any] = {"capsule": "stop_here", "ticks": 1_000}
    given["observations"] = [sensors.observation(99, time.time_ns())]
    button, epoch = StopButton(made), made.policy.list().result.epoch

    async def scenario() -> Any:
        async with AsyncCapsuleClient(made.node, POLICY, timeout=PATIENCE) as client:
            under_way = client.evaluate(["reach"], **given)
            with button:
                assert not under_way.done(), "it was over before the stop was pressed"
                assert made.policy.list().result.epoch == epoch + 1
                return await under_way

    stopped = asyncio.run(scenario())
    assert stopped.result.epoch == epoch + 1
    undisturbed = made.policy.evaluate(["reach"], **given)
    first, second = stopped.branches[0], undisturbed.branches[0]
    assert (first.complete, first.state_digest) == (True, second.state_digest)
    assert [bits(chunk) for chunk in first.chunks] == [bits(chunk) for chunk in second.chunks]


# -- the node's life: keep these last ----------------------------------------------------------


def test_every_verb_is_answered_while_the_node_is_not_configured(
    robot: tuple[Rig, ToySensors, Watch],
) -> None:
    made, _, _ = robot
    waiting = threading.Thread(target=lambda: codes.append(_code(made)))
    codes: list[Code] = []
    waiting.start()  # an evaluation that is under way when the node is cleaned up
    change_state(made.caller, POLICY, Transition.TRANSITION_DEACTIVATE)
    change_state(made.caller, POLICY, Transition.TRANSITION_CLEANUP)
    waiting.join(PATIENCE)
    assert codes[0] in (Code.CANCELLED, Code.NOT_READY)
    for ask in (
        made.policy.list,
        made.policy.snapshot,
        made.policy.interrupt,
        made.policy.cancel_evaluation,
        made.policy.cancel_run,
        made.policy.start_run,
        lambda: made.policy.evaluate(["wait"]),
        lambda: made.policy.run().result(PATIENCE),
    ):
        with refused(Code.NOT_READY):
            ask()


def _code(made: Rig) -> Code:
    try:
        made.policy.evaluate(["wait"], ticks=10_000)
    except VerbRefused as refusal:
        return refusal.code
    return Code.OK


def test_node_without_a_second_arena_says_that_it_cannot_evaluate(
    robot: tuple[Rig, ToySensors, Watch],
) -> None:
    from rcl_interfaces.srv import SetParameters
    from rclpy.parameter import Parameter

    made, _, _ = robot
    off = Parameter("evaluate", value=False).to_parameter_msg()
    request = SetParameters.Request(parameters=[off])
    assert (
        made.caller.call(SetParameters, f"{POLICY}/set_parameters", request).results[0].successful
    )
    change_state(made.caller, POLICY, Transition.TRANSITION_CONFIGURE)
    with refused(Code.UNSUPPORTED):
        made.policy.evaluate(["wait"])
    with refused(Code.UNSUPPORTED):
        made.policy.cancel_evaluation()
