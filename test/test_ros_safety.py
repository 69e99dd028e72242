# SPDX-License-Identifier: Apache-2.0
"""Every fault of docs/safety.md caused over DDS: what the node sends, says, and recovers by."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from geometry_msgs.msg import Twist
from rcl_interfaces.srv import SetParameters
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from ros_host import until
from ros_rig import Inbox
from rosgraph_msgs.msg import Clock
from safety_bench import LATCHED, SafetyBench, bench, on_executor
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from flashrt_ros.client import ServiceCaller, VerbRefused
from flashrt_ros.msg import Boundary, RuntimeStatus
from flashrt_ros.policies import Motion
from flashrt_ros.ros.conversions import to_time
from flashrt_ros.runtime import Code

HOLD, RECOVER = Boundary.HOLD, Boundary.RECOVER


def points(command: object) -> np.ndarray:
    return np.array([point.positions for point in command.points])  # type: ignore[attr-defined]


def assert_finite(made: SafetyBench) -> None:
    made.settle()
    for message in (*made.commands.all(), *made.chunks.all()):
        assert np.all(np.isfinite(points(message)))
        assert all(np.all(np.isfinite(point.velocities)) for point in message.points)


# -- what the policy does ----------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_action_that_is_not_finite_never_leaves_and_a_reset_recovers(value: float) -> None:
    with bench() as made:
        moving = made.move()
        made.policy.poison = value
        made.show_until(lambda: made.engine.session.needs_reset, "a poisoned tick")
        status = made.client.wait_for_status(lambda each: each.state == RuntimeStatus.NEEDS_RESET)
        assert f"joint 0 is {value}" in status.last_error
        made.event(HOLD, f"joint 0 is {value}")
        held = made.commands.wait(lambda sent: len(sent[-1].points) == 1, "a hold")[-1]
        np.testing.assert_allclose(points(held)[0], points(moving)[-1], atol=0.01)  # and not zero
        with pytest.raises(VerbRefused) as refusal:
            made.client.resume(Motion.REPLAN)
        assert refusal.value.code is Code.NEEDS_RESET
        made.policy.poison = None
        made.client.reset()
        made.move()
        assert_finite(made)


def test_replay_that_fails_holds_with_its_reason_and_a_reset_recovers() -> None:
    with bench() as made:
        made.move()
        boundary = made.engine.status.boundary
        made.policy.fail = True
        made.show_until(lambda: made.engine.session.needs_reset, "a failed tick")
        made.event(HOLD, "tick failed: injected failure")
        made.diagnostics.wait(
            lambda sent: any("injected failure" in s.message for m in sent for s in m.status),
            "a diagnostic with the reason",
        )
        assert made.engine.status.boundary == boundary  # nothing half-done was committed
        made.policy.fail = False
        made.client.reset()
        made.move()
        made.running()


def test_late_ticks_hold_and_one_in_time_recovers() -> None:
    with bench("tick_deadline:=0.000001", "deadline_misses:=2") as made:
        made.move()  # the first tick is cold and never late
        assert made.engine.status.deadline_misses == 0
        made.show_until(lambda: made.engine.status.deadline_misses >= 2, "two late ticks")
        status = made.held("deadline missed: a tick took")
        assert status.deadline_misses >= 1
        made.event(HOLD, "deadline missed")
        sent = len(made.moves())
        made.tick()  # it goes on ticking, to find out,
        made.settle()
        assert len(made.moves()) == sent  # but what it says is not executed
        set_parameter(made, Parameter("tick_deadline", value=10.0))
        made.move()
        made.event(RECOVER, "deadline missed")
        made.running()


def test_tick_that_does_not_end_holds_before_it_ends_and_its_chunk_is_not_executed() -> None:
    with bench("tick_deadline:=0.3", "deadline_misses:=2") as made:
        made.move()
        made.policy.gate.clear()
        made.policy.started.clear()
        made.show_until(made.policy.started.is_set, "a tick begins")
        sent, moved = len(made.commands.all()), len(made.moves())
        held = made.commands.wait_count(sent + 1, "a hold")[-1]
        assert len(held.points) == 1
        assert not made.policy.gate.is_set()  # the tick is still under way
        made.policy.gate.set()
        made.event(HOLD, "deadline missed")
        assert len(made.moves()) == moved
        made.move()
        made.event(RECOVER, "deadline missed")


def test_chunk_that_is_over_when_it_is_there_holds_until_one_is_in_time() -> None:
    with bench() as made:
        made.move()
        made.policy.gate.clear()
        made.policy.started.clear()
        made.show_until(made.policy.started.is_set, "a tick begins")
        time.sleep(0.3)  # a chunk lasts 0.15 s
        moved = len(made.moves())
        made.policy.gate.set()
        made.event(HOLD, "the chunk was over when it was there")
        assert len(made.moves()) == moved
        made.move()
        made.event(RECOVER, "the chunk was over when it was there")


def set_parameter(made: SafetyBench, parameter: Parameter) -> None:
    caller = ServiceCaller(made.other, timeout=60.0)
    request = SetParameters.Request(parameters=[parameter.to_parameter_msg()])
    answer = caller.call(SetParameters, "policy_node/set_parameters", request)
    assert answer.results[0].successful, answer.results[0].reason
    caller.close()


# -- limits ------------------------------------------------------------------------------------


@pytest.fixture
def limits(tmp_path: Path) -> str:
    """0.1 rad from the instruction "go home" away in a jump of 0.2; slow."""
    path = tmp_path / "limits.yaml"
    one = "{min_position: -1, max_position: 1, max_velocity: 0.5, max_acceleration: 5}"
    path.write_text(f"joint_limits:\n  shoulder: {one}\n  elbow: {one}\n")
    return f"limits:={path}"


def test_breach_is_clamped_counted_and_reported(limits: str) -> None:
    with bench(limits) as made:
        made.client.set_instruction("go home")  # 0.2 rad further within 0.05 s
        made.move()
        chunk = made.chunks.wait_count(1, "a chunk")[0]
        assert chunk.limited_points == len(chunk.points)
        path = np.vstack((made.positions, points(chunk)))
        times = [p.time_from_start.sec + p.time_from_start.nanosec * 1e-9 for p in chunk.points]
        speeds = np.diff(path, axis=0) / np.diff(times, prepend=0.0)[:, None]
        assert np.max(np.abs(speeds)) <= 0.5 + 1e-6
        assert np.max(speeds) > 0.05  # it moves all the same
        status = made.client.wait_for_status(lambda each: each.limit_breaches >= 1, 60.0)
        assert status.state == RuntimeStatus.RUNNING
        made.diagnostics.wait(
            lambda sent: any(
                "velocity limit: point 0 asks 'shoulder'" in value.value
                for message in sent
                for part in message.status
                for value in part.values
            ),
            "a diagnostic that names the breach",
        )


def test_breach_that_holds_does_so_until_a_chunk_is_within_the_limits(limits: str) -> None:
    with bench(limits, "limit_action:=hold") as made:
        made.client.set_instruction("go home")
        made.show_until(lambda: made.engine.status.limit_breaches > 0, "a breach")
        made.held("velocity limit: point 0 asks 'shoulder'")
        made.event(HOLD, "velocity limit")
        made.settle()
        assert made.moves() == []
        assert all(np.allclose(points(sent), made.positions) for sent in made.commands.all())
        made.client.set_instruction("wait")
        made.move()
        made.event(RECOVER, "velocity limit")
        made.running()


def test_limits_come_from_a_urdf_and_a_joint_that_it_lacks_is_named(tmp_path: Path) -> None:
    joint = '<joint name="{}" type="revolute"><limit lower="-1" upper="0.15" velocity="9"/></joint>'
    path = tmp_path / "arm.urdf"
    path.write_text(f"<robot name='arm'>{joint.format('shoulder')}{joint.format('elbow')}</robot>")
    with bench(f"urdf:={path}") as made:
        made.positions = np.array([0.1, 0.1])
        made.client.set_instruction("go home")
        assert np.max(points(made.move())) == 0.15
        status = made.client.wait_for_status(lambda each: each.limit_breaches >= 1, 60.0)
        assert status.state == RuntimeStatus.RUNNING
    path.write_text(f"<robot name='arm'>{joint.format('elbow')}</robot>")
    refused = "configure failed: .*arm.urdf: the URDF lacks shoulder; it has elbow"
    with pytest.raises(AssertionError, match=refused), bench(f"urdf:={path}"):
        pass


def test_limits_come_from_the_latched_description_and_without_one_nothing_is_activated() -> None:
    def description(upper: float, *names: str) -> String:
        limit = f"<limit lower='-1' upper='{upper}' velocity='9'/>"
        joints = [f"<joint name='{name}' type='revolute'>{limit}</joint>" for name in names]
        return String(data=f"<robot name='arm'>{''.join(joints)}</robot>")

    with bench("robot_description_topic:=robot_description", active=False) as made:
        publisher = made.other.create_publisher(String, "robot_description", LATCHED)

        def say(message: String) -> None:
            input_ = made.node._parts.description
            assert input_ is not None
            publisher.publish(message)
            until(lambda: input_._newest == message.data, "the description has come")

        def refused(reason: str) -> None:
            failed = TransitionCallbackReturn.FAILURE
            on_executor(made.node, made.node.trigger_activate, failed)
            made.client.wait_for_status(lambda status: reason in status.last_error, 60.0)

        refused("no robot description has come on")
        say(description(0.15, "elbow"))
        refused("the URDF lacks shoulder; it has elbow")
        say(description(0.15, "shoulder", "elbow"))
        on_executor(made.node, made.node.trigger_activate)
        say(description(0.9, "shoulder", "elbow"))  # comes too late, also for another activation
        on_executor(made.node, made.node.trigger_deactivate)
        on_executor(made.node, made.node.trigger_activate)
        made.positions = np.array([0.1, 0.1])
        made.client.set_instruction("go home")
        assert np.max(points(made.move())) == 0.15
        assert made.engine.safety.guard.limits.upper.tolist() == [0.15, 0.15]


def test_joint_outside_its_limits_is_sent_nothing_and_named(limits: str) -> None:
    with bench(limits) as made:
        made.positions = np.array([1.3, 0.0])
        made.tick()
        made.held("joint 'shoulder' is at 1.3, outside its limits -1 to 1")
        made.settle()
        assert made.commands.all() == []
        made.positions = np.array([0.9, 0.0])  # moved back by hand
        assert np.max(points(made.move())) <= 1.0


# -- ramp and motion ---------------------------------------------------------------------------


def test_first_command_after_a_resume_is_ramped_from_where_the_joints_stay() -> None:
    with bench("ramp_duration:=10.0") as made:
        made.client.set_instruction("go home")
        first = points(made.move())  # ramped, too: the first motion of all
        assert np.max(np.abs(first - made.positions)) < 0.01
        set_parameter(made, Parameter("ramp_duration", value=0.0))
        made.client.reset()
        made.client.set_instruction("go home")
        held = points(made.move())
        assert np.max(held - made.positions) > 0.1
        set_parameter(made, Parameter("ramp_duration", value=10.0))
        for verb in (
            lambda: (made.client.interrupt(), made.client.resume(Motion.REPLAN)),
            lambda: made.client.rollback(count=1),
            made.client.reset,
        ):
            verb()
            made.settle()
            staying = points(made.commands.all()[-1])[-1]
            made.client.set_instruction("go home")
            made.commands.clear()
            made.positions = staying
            assert np.max(np.abs(points(made.move()) - staying)) < 0.01


def test_continue_out_of_tolerance_becomes_replan_and_says_so() -> None:
    with bench() as made:
        made.move()
        made.client.snapshot("here")
        made.positions = made.positions + 0.3
        made.tick()
        answer = made.client.restore("here", motion=Motion.CONTINUE)
        assert answer.result.motion == Motion.REPLAN
        made.settle()
        restored = [each for each in made.boundaries.all() if each.event == Boundary.RESTORE]
        assert restored[-1].motion == Motion.REPLAN
        assert len(made.commands.all()[-1].points) == 1  # a hold until the next observation


# -- inputs and time ---------------------------------------------------------------------------


def test_nothing_is_sent_before_the_first_complete_observation() -> None:
    with bench() as made:
        for _ in range(5):
            made.show_joints()
            time.sleep(0.02)
        made.client.set_instruction("go home")
        with pytest.raises(VerbRefused):
            made.client.resume(Motion.REPLAN)
        made.settle()
        assert made.commands.all() == []
        assert made.engine.status.ticks == 0
        made.client.wait_for_status(lambda each: each.state == RuntimeStatus.WAITING)
        made.diagnostics.wait(
            lambda sent: any(
                "nothing yet from camera" in s.message for m in sent for s in m.status
            ),
            "a diagnostic that names the camera",
        )
        made.show_image("no encoding")
        made.held("no encoding")
        made.client.interrupt()
        on_executor(made.node, made.node.trigger_deactivate)
        on_executor(made.node, made.node.trigger_activate)
        made.settle()
        assert made.commands.all() == []
        made.move()


@pytest.mark.parametrize("missing", ["camera", "joints"])
def test_input_that_falls_silent_holds_and_its_return_recovers(missing: str) -> None:
    with bench("observation_timeout:=0.3") as made:
        made.move()
        show = made.show_joints if missing == "camera" else made.show_image
        deadline = time.monotonic() + 60.0
        while made.engine.status.reason == "" and time.monotonic() < deadline:
            show()
            time.sleep(0.03)
        name = "camera" if missing == "camera" else "joint_states"
        reason = made.held("no complete observation for").reason
        assert f"{name} is " in reason
        assert "s old" in reason
        made.event(HOLD, "no complete observation for")
        staying = made.commands.wait(lambda sent: len(sent[-1].points) == 1, "a hold")[-1]
        assert np.all(points(staying) > 0.0)  # where it was, and not zero
        made.move()
        made.event(RECOVER, "no complete observation for")


def test_joint_that_is_missing_from_the_joint_states_holds_and_is_named() -> None:
    with bench() as made:
        made.move()
        publisher = made.other.create_publisher(JointState, "joint_states", 10)
        until(lambda: publisher.get_subscription_count() > 0, "a subscription")
        publisher.publish(JointState(header=made.stamp(), name=["shoulder"], position=[0.1]))
        made.held("lacks elbow")
        made.move()
        made.running()


class SimTime:
    """A clock that goes when a test says so."""

    def __init__(self, made: SafetyBench) -> None:
        self._publisher = made.other.create_publisher(Clock, "/clock", 10)
        self._made = made
        until(lambda: self._publisher.get_subscription_count() > 0, "the node listens to the clock")
        self.now_ns = 100_000_000_000

    def set(self, now_ns: int) -> None:
        self.now_ns = now_ns

        def told() -> bool:
            self._publisher.publish(Clock(clock=to_time(now_ns)))
            return self._made.node._now_ns() == now_ns

        until(told, f"the node's clock at {now_ns}")

    def go(self, seconds: float = 0.1) -> None:
        self.set(self.now_ns + round(seconds * 1e9))


def move_in_sim_time(made: SafetyBench, clock: SimTime) -> None:
    before = len(made.moves())

    def moved() -> bool:
        clock.go()
        return len(made.moves()) > before

    made.show_until(moved, "a motion")


def test_clock_that_stands_still_holds_and_going_on_recovers() -> None:
    with bench("use_sim_time:=true", "clock_timeout:=0.3", "observation_timeout:=0.5") as made:
        clock = SimTime(made)
        clock.go()
        move_in_sim_time(made, clock)
        made.held("the clock stands still at 10")
        made.event(HOLD, "the clock stands still")
        sent = len(made.moves())
        made.show_joints()
        made.show_image()  # an observation alone does not end it
        made.settle()
        assert len(made.moves()) == sent
        move_in_sim_time(made, clock)
        made.event(RECOVER, "the clock stands still")


def test_clock_that_jumps_back_voids_what_was_and_goes_on() -> None:
    with bench("use_sim_time:=true", "clock_timeout:=0.0") as made:
        clock = SimTime(made)
        clock.go()
        move_in_sim_time(made, clock)
        epoch = made.engine.status.epoch
        clock.set(1_000_000_000)
        jump = made.boundaries.wait(
            lambda sent: any(each.event == Boundary.CLOCK_JUMP for each in sent), "a clock jump"
        )
        assert jump[-1].epoch == epoch + 1
        made.commands.clear()
        move_in_sim_time(made, clock)
        assert all("epoch=0" not in each.header.frame_id for each in made.moves())


# -- outputs of velocities ---------------------------------------------------------------------


@pytest.fixture
def twist(tmp_path: Path) -> str:
    """The toy's two actions as a twist."""
    path = tmp_path / "contract.yaml"
    path.write_text(
        "version: 1\n"
        "inputs:\n"
        "  cameras:\n"
        "    camera: {topic: camera/image_raw}\n"
        "  joints:\n"
        "    - {topic: joint_states}\n"
        "  instruction: {topic: instruction}\n"
        "outputs:\n"
        "  - {type: twist, topic: cmd_vel, components: [linear.x, angular.z]}\n"
    )
    return f"contract:={path}"


def velocities(message: Twist) -> tuple[float, float]:
    return (message.linear.x, message.angular.z)


def test_twist_is_braked_to_zero_by_every_fault_and_nothing_is_sent_before_an_observation(
    twist: str, tmp_path: Path
) -> None:
    limits = tmp_path / "limits.yaml"
    one = "{max_velocity: 0.15, max_acceleration: 2}"
    limits.write_text(f"joint_limits:\n  shoulder: {one}\n  elbow: {one}\n")
    with bench(twist, f"limits:={limits}", "command_rate:=100.0") as made:
        sent = Inbox(made.other, Twist, "cmd_vel")

        def moving() -> bool:
            return any(min(velocities(each)) > 0.05 for each in sent.all()[-1:])

        def rested() -> None:
            sent.wait(lambda seen: velocities(seen[-1]) == (0.0, 0.0), "zero")

        made.show_joints()
        made.settle()
        assert sent.all() == []
        made.show_until(moving, "a motion")
        made.policy.poison = float("nan")
        made.show_until(lambda: made.engine.session.needs_reset, "a poisoned tick")
        rested()
        made.policy.poison = None
        made.client.reset()
        made.show_until(moving, "a motion")
        on_executor(made.node, made.node.trigger_deactivate)
        rested()
        made.settle()
        values = np.array([velocities(each) for each in sent.all()])
        assert np.all(np.isfinite(values))
        assert np.max(values) <= 0.15
        assert velocities(sent.all()[-1]) == (0.0, 0.0)  # what the base goes on with
        sent.clear()
        on_executor(made.node, made.node.trigger_activate)
        made.show_joints()
        made.settle()
        assert sent.all() == []
        made.show_until(moving, "a motion")
