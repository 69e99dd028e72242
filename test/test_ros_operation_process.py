# SPDX-License-Identifier: Apache-2.0
"""Signals at bad moments, and several policies in one process: over DDS, in real processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from planner_bench import toy_robot
from ros_host import until
from ros_rig import PATIENCE, POLICY, FakeCamera, Inbox, Rig, commit_id, moves, rig
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.client import VerbRefused
from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.ros.container import PolicyContainer


def ends(made: Rig, name: str, number: signal.Signals) -> int:
    """Send a signal; the exit status, once nothing of the process's group is left."""
    process = made.processes._running[name]
    process.send_signal(number)
    status = process.wait(PATIENCE)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    return status


def test_sigterm_in_a_tick_and_in_service_calls_leaves_a_held_arm(tmp_path: Path) -> None:
    with rig("/traffic", tmp_path) as made:
        made.start_policy("observation_timeout:=0.0")
        camera = FakeCamera(made)
        bring_up(made.caller, POLICY)
        camera.wait_for_subscribers()
        stop = threading.Event()
        made.policy._caller._timeout = 3.0  # a call that a gone process leaves unanswered

        def stream() -> None:
            while not stop.is_set():  # faster than a tick: a replay is nearly always in flight
                camera.publish(camera.joint_state())
                camera.publish(camera.image())
                time.sleep(0.005)

        def call() -> None:
            try:
                while not stop.is_set():
                    made.policy.snapshot("traffic", overwrite=True)
                    made.policy.list()  # nothing here holds the arm
            except (TimeoutError, VerbRefused):
                pass  # the process is gone

        threads = [threading.Thread(target=target) for target in (stream, call, call)]
        for thread in threads:
            thread.start()
        made.commands.wait(lambda sent: len(moves(sent)) > 5, "chunks")
        assert ends(made, POLICY, signal.SIGTERM) == 0
        made.commands.wait(lambda sent: len(sent[-1].points) == 1, "a hold at the end")
        stop.set()
        for thread in threads:
            thread.join()
        sequences = [commit_id(command)["sequence"] for command in made.commands.all()]
        assert sequences[-1] == max(sequences)
        assert len(made.commands.all()[-1].points) == 1


def test_sigterm_in_a_tick_that_never_ends_leaves_a_held_arm(tmp_path: Path) -> None:
    with toy_robot("/hanging", tmp_path, "model:=hanging", "verb_timeout:=0.5") as (made, sensors):
        until(lambda: sensors.show(1) > 0 and bool(moves(made.commands.all())), "a motion")
        until(
            lambda: sensors.show(2) > 0 and "hanging" in made.processes.log_tail(POLICY),
            "the tick that hangs",
        )
        assert ends(made, POLICY, signal.SIGTERM) == 0
        made.commands.wait(lambda sent: len(sent[-1].points) == 1, "a hold at the end")


def test_sigint_while_it_is_configured_ends_in_order(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    os.mkfifo(checkpoint / "config.json")  # reading it waits for this test
    with rig("/configuring", tmp_path) as made:
        made.start_policy(f"model:={checkpoint}")
        client = made.node.create_client(ChangeState, f"{POLICY}/change_state")
        assert client.wait_for_service(PATIENCE)
        configure = Transition(id=Transition.TRANSITION_CONFIGURE)
        answer = client.call_async(ChangeState.Request(transition=configure))
        until(lambda: "loading" in made.processes.log_tail(POLICY), "the begin of configure")
        process = made.processes._running[POLICY]
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert process.poll() is None  # reading; nothing is torn down below it
        (checkpoint / "config.json").write_text("{}")
        assert process.wait(PATIENCE) == 0
        until(answer.done, "the answer to the configure that was under way")
        assert not answer.result().success


def test_a_container_runs_two_policies_apart_and_holds_both_at_the_end(tmp_path: Path) -> None:
    names = ("left", "right")
    with rig("/site", tmp_path) as made:
        arguments = made._arguments(["policies:=[left/policy_node, right/policy_node]"])
        arguments += ["-p", "observation_timeout:=0.0", "-r", "__node:=box"]
        made.processes.start("box", "flashrt_ros.ros.container", arguments)
        commands = {
            name: Inbox(made.node, JointTrajectory, f"{name}/joint_trajectory") for name in names
        }
        for name in names:
            bring_up(made.caller, f"{name}/{POLICY}")
        hosted = {f"{ns}/{name}" for name, ns in made.node.get_node_names_and_namespaces()}
        assert {"/site/box", "/site/left/policy_node", "/site/right/policy_node"} <= hosted
        cameras = {name: FakeCamera(made, prefix=f"{name}/") for name in names}
        for name in names:
            cameras[name].wait_for_subscribers()
            while not moves(commands[name].all()):
                cameras[name].show()
            if name == "left":
                assert commands["right"].all() == []
        assert ends(made, "box", signal.SIGTERM) == 0
        for name in names:
            commands[name].wait(lambda sent: len(sent[-1].points) == 1, f"a hold of {name}")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["a", "b", "a"], "names a, b, a, expected one or more different names"),
        ([""], "has '', expected a node name"),
        (["left arm"], "has 'left arm', expected a node name"),
    ],
)
def test_names_that_cannot_be_hosted_are_refused(given: list[str], reason: str) -> None:
    import rclpy

    context = rclpy.Context()
    rclpy.init(context=context, args=["--ros-args", "-p", f"policies:={given}"])
    try:
        container = PolicyContainer(context=context)
        with pytest.raises(ValueError, match=reason):
            container.names()
        container.destroy_node()
    finally:
        rclpy.shutdown(context=context)


def test_names_are_relative_to_the_container_or_absolute() -> None:
    import rclpy

    context = rclpy.Context()
    rclpy.init(context=context, args=["--ros-args", "-p", "policies:=[arm, l/arm, /far/arm]"])
    try:
        container = PolicyContainer(context=context, namespace="/site")
        assert container.names() == [("/site", "arm"), ("/site/l", "arm"), ("/far", "arm")]
        container.destroy_node()
    finally:
        rclpy.shutdown(context=context)
