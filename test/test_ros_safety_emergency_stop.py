# SPDX-License-Identifier: Apache-2.0
"""The emergency stop over DDS: pressed before, while and after; by publishers of every kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from rclpy.qos import QoSProfile, ReliabilityPolicy
from ros_host import until
from ros_rig import PATIENCE, POLICY, Inbox, rig
from safety_bench import LATCHED, SafetyBench, StopButton, bench, on_executor
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.client import ServiceCaller, VerbRefused
from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.msg import Boundary, RuntimeStatus
from flashrt_ros.policies import Motion
from flashrt_ros.ros.conversions import to_ns
from flashrt_ros.runtime import Code


def released(made: SafetyBench) -> RuntimeStatus:
    return made.client.wait_for_status(
        lambda status: not status.emergency_stop and "released" in status.reason, 60.0
    )


def assert_moves_only_after_a_resume(made: SafetyBench) -> None:
    """After the release: held still, and a resume ends it."""
    released(made)
    sent, ticks = len(made.moves()), made.engine.status.ticks
    made.show()
    made.settle()
    assert (len(made.moves()), made.engine.status.ticks) == (sent, ticks)
    made.client.resume(Motion.REPLAN)
    made.move()


def test_pressed_before_the_node_came_it_is_known_and_nothing_moves(tmp_path: Path) -> None:
    """The policy's own process, a latched publisher, and the release."""
    with rig("/stopped", tmp_path) as made:
        publisher = made.node.create_publisher(Bool, "emergency_stop", LATCHED)
        publisher.publish(Bool(data=True))
        made.start_sim("mode:=realtime", "seed:=3")
        limits = Path(__file__).parents[1] / "config" / "limits_example.yaml"
        made.start_policy(
            "instruction:=go home", "use_sim_time:=true", "evaluate:=false", f"limits:={limits}"
        )
        bring_up(made.caller, POLICY)
        status = made.policy.wait_for_status(lambda each: bool(each.emergency_stop), 60.0)
        assert status.state == RuntimeStatus.HOLDING
        assert status.reason == "emergency stop"
        joints = Inbox(made.node, JointState, "joint_states")
        joints.wait_count(20, "joint states")
        assert [each for each in made.commands.all() if len(each.points) > 1] == []
        for verb in (made.policy.resume, made.policy.reset):
            with pytest.raises(VerbRefused) as refusal:
                verb()
            assert refusal.value.code is Code.EMERGENCY_STOP
        publisher.publish(Bool(data=False))
        made.policy.wait_for_status(lambda each: not each.emergency_stop, 60.0)
        made.policy.resume(Motion.REPLAN)
        made.commands.wait(lambda sent: len(sent[-1].points) > 1, "a motion")
        joints.clear()
        joints.wait(
            lambda seen: any(max(map(abs, each.velocity), default=0.0) > 0.05 for each in seen),
            "the simulated arm moves",
        )
        publisher.publish(Bool(data=True))
        made.policy.wait_for_status(lambda each: bool(each.emergency_stop), 60.0)
        joints.clear()
        joints.wait(
            lambda seen: (
                len(seen) > 5
                and all(max(map(abs, each.velocity), default=0.0) < 0.02 for each in seen[-5:])
            ),
            "the simulated arm rests",
        )
        last = joints.all()[-1].position
        joints.clear()
        again = joints.wait_count(10, "more joint states")[-1].position
        np.testing.assert_allclose(again, last, atol=2e-3)


def test_press_holds_at_once_while_a_tick_is_under_way_and_that_tick_is_void() -> None:
    with bench() as made:
        button = StopButton(made)
        button.wait_for_listeners()
        moving = made.move()
        epoch = made.engine.status.epoch
        made.policy.gate.clear()
        made.policy.started.clear()
        made.show_until(made.policy.started.is_set, "a tick begins")
        sent = len(made.commands.all())
        button.press()
        held = made.commands.wait_count(sent + 1, "a hold")[-1]
        assert len(held.points) == 1
        assert held.header.stamp.sec == 0  # from when it arrives on
        assert not made.policy.gate.is_set()  # the tick is still under way
        np.testing.assert_allclose(held.points[0].positions, moving.points[-1].positions, atol=0.01)
        moves = len(made.moves())
        made.policy.gate.set()
        assert made.held("emergency stop").emergency_stop
        # The tick that was under way ends refused; then, between replays, its epoch is made void.
        made.client.wait_for_status(lambda status: status.epoch == epoch + 1, PATIENCE)
        made.event(Boundary.HOLD, "emergency stop")
        made.settle()
        assert len(made.moves()) == moves
        button.release()
        assert_moves_only_after_a_resume(made)


def test_every_verb_that_would_move_is_refused_and_those_that_would_not_are_served() -> None:
    with bench() as made:
        button = StopButton(made)
        button.wait_for_listeners()
        made.move()
        made.client.snapshot("here")
        button.press()
        made.held("emergency stop")
        client = made.client
        refused: list[Callable[[], object]] = [
            client.resume,
            client.reset,
            lambda: client.resume(Motion.CONTINUE),
            lambda: client.restore("here"),
            lambda: client.restore("here", motion=Motion.CONTINUE),
            lambda: client.rollback(count=1),
            client.start_run,
        ]
        before = client.list().result
        for verb in refused:
            with pytest.raises(VerbRefused, match="emergency stop: release it") as refusal:
                verb()
            assert refusal.value.code is Code.EMERGENCY_STOP
        caller = ServiceCaller(made.other, timeout=60.0)
        assert not caller.call(Trigger, "policy_node/reset", Trigger.Request()).success
        caller.close()
        after = client.list().result
        assert (after.boundary, after.epoch) == (before.boundary, before.epoch)
        client.snapshot("stopped")
        client.set_instruction("reach")
        client.interrupt()
        assert client.restore("here", motion=Motion.HOLD).result.motion == Motion.HOLD
        assert made.held("emergency stop").emergency_stop
        button.release()
        assert_moves_only_after_a_resume(made)


def test_pressed_during_a_verb_the_verb_is_refused() -> None:
    with bench() as made, ThreadPoolExecutor(1) as pool:
        button = StopButton(made)
        button.wait_for_listeners()
        made.move()
        made.client.snapshot("here")
        made.policy.gate.clear()
        made.policy.started.clear()
        made.show_until(made.policy.started.is_set, "a tick begins")
        verb = pool.submit(made.client.restore, "here")
        time.sleep(0.2)  # it waits behind the tick by now; if not yet, it comes later still
        button.press()
        until(lambda: made.engine.safety.emergency.pressed, "the press is known")
        made.policy.gate.set()
        with pytest.raises(VerbRefused) as refusal:
            verb.result(60.0)
        assert refusal.value.code is Code.EMERGENCY_STOP
        made.settle()
        restores = [each for each in made.boundaries.all() if each.event == Boundary.RESTORE]
        assert restores == []


@pytest.mark.parametrize("required", [True, False])
def test_publisher_that_vanishes_counts_as_pressed_where_one_is_required(required: bool) -> None:
    with bench(f"emergency_stop_required:={required}".lower()) as made:
        if required:
            made.held("nobody has said yet that it is released")
            made.show()
            made.settle()
            assert made.commands.all() == [] or made.moves() == []
        button = StopButton(made)
        button.wait_for_listeners()
        button.release()
        if required:
            assert_moves_only_after_a_resume(made)
        made.move()
        button.vanish()
        if required:
            assert made.held("whoever published it is gone").emergency_stop
            another = StopButton(made)
            another.wait_for_listeners()
            another.release()
            assert_moves_only_after_a_resume(made)
            another.vanish()
        else:
            made.settle()
            made.move()
            assert not made.engine.status.emergency_stop


def test_publisher_that_falls_silent_counts_as_pressed_where_it_must_repeat_itself() -> None:
    with bench("emergency_stop_timeout:=1.5") as made:
        made.held("nobody has said yet that it is released")
        button, hangs = StopButton(made), threading.Event()

        def repeat() -> None:
            while not hangs.wait(0.1):
                button.release()

        repeating = threading.Thread(target=repeat)
        repeating.start()
        assert_moves_only_after_a_resume(made)
        hangs.set()
        repeating.join()
        made.held("nothing said about it for 1.5 s")
        button.release()
        released(made)  # and held all the same


def test_publisher_that_is_not_latched_is_heard_and_one_that_is_best_effort_stops() -> None:
    with bench() as made:
        made.move()
        plain = StopButton(made, QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE))
        until(lambda: plain._publisher.get_subscription_count() >= 1, "the node listens")
        plain.press()
        made.held("emergency stop")
        plain.release()
        assert_moves_only_after_a_resume(made)
        plain.vanish()
        deaf = StopButton(made, QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT))
        made.held("is best effort and cannot be relied on")
        deaf.vanish()


def test_in_lockstep_every_observation_is_answered_with_a_hold_while_it_is_pressed() -> None:
    with bench("lockstep:=true") as made:
        button = StopButton(made)
        button.wait_for_listeners()

        def answer(stamp_ns: int) -> JointTrajectory:
            """Shown until it is answered, as a simulator does; the last answer."""

            def answers() -> list[JointTrajectory]:
                return [
                    each for each in made.commands.all() if to_ns(each.header.stamp) == stamp_ns
                ]

            made.commands.clear()
            until(lambda: made.show_at(stamp_ns) or bool(answers()), f"an answer to {stamp_ns}")
            made.settle()
            return answers()[-1]

        assert len(answer(1_000_000_000).points) > 1
        button.press()
        made.held("emergency stop")
        assert len(answer(1_000_000_000).points) == 1  # its chunk is not sent again
        assert len(answer(1_100_000_000).points) == 1
        button.release()
        released(made)
        assert len(answer(1_200_000_000).points) == 1
        made.client.resume(Motion.REPLAN)
        assert len(answer(1_300_000_000).points) > 1


def test_press_outlives_deactivation() -> None:
    with bench() as made:
        button = StopButton(made)
        button.wait_for_listeners()
        made.move()
        button.press()
        made.held("emergency stop")
        on_executor(made.node, made.node.trigger_deactivate)
        on_executor(made.node, made.node.trigger_activate)
        made.commands.clear()
        assert made.held("emergency stop").emergency_stop
        made.show()
        made.settle()
        assert made.moves() == []
        button.release()
        assert_moves_only_after_a_resume(made)


def test_pressed_while_the_node_is_not_configured_it_holds_the_next_engine() -> None:
    with bench() as made:
        made.move()
        listening = [thread.ident for thread in threading.enumerate()]
        on_executor(made.node, made.node.trigger_deactivate)
        on_executor(made.node, made.node.trigger_cleanup)
        button = StopButton(made, QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE))
        until(lambda: button._publisher.get_subscription_count() >= 1, "it listens unconfigured")
        button.press()
        until(lambda: made.node._emergency_stop._heard is not None, "the press is known")
        button.vanish()  # nobody is left who could repeat it
        on_executor(made.node, made.node.trigger_configure)
        on_executor(made.node, made.node.trigger_activate)
        made.commands.clear()
        assert made.held("emergency stop").emergency_stop
        made.show()
        made.settle()
        assert made.moves() == []
        another = StopButton(made)
        another.wait_for_listeners()
        another.release()
        assert_moves_only_after_a_resume(made)
        names = [thread.name for thread in threading.enumerate() if thread.ident in listening]
        assert names.count("emergency-stop") == 1  # the one of before
