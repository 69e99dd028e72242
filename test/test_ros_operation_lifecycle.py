# SPDX-License-Identifier: Apache-2.0
"""The life cycle of policy_node: round and round, through errors, with another model."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

import torch
from lifecycle_msgs.msg import State, Transition
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from ros_host import OK, Sensors, hosted, until
from safety_bench import bench, on_executor
from std_srvs.srv import Trigger
from tiny_pi0 import JOINTS as PI0_JOINTS
from tiny_pi0 import write_checkpoint
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.client import ServiceCaller
from flashrt_ros.demo.lifecycle import change_state, get_state
from flashrt_ros.msg import RuntimeStatus
from flashrt_ros.ros.policy_node import PolicyNode
from flashrt_ros.ros.process import Ending, _spin

FAILURE = TransitionCallbackReturn.FAILURE
UNCONFIGURED, INACTIVE = State.PRIMARY_STATE_UNCONFIGURED, State.PRIMARY_STATE_INACTIVE


@pytest.fixture(scope="module")
def pi0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy with three joints and two cameras."""
    return write_checkpoint(tmp_path_factory.mktemp("pi0"))


def state_of(node: PolicyNode) -> int:
    return int(node._state_machine.current_state[0])


def endpoints(node: PolicyNode) -> tuple[int, ...]:
    """How many publishers, subscriptions, services, timers, guards the node has."""
    kinds = (node.publishers, node.subscriptions, node.services, node.timers, node.guards)
    return tuple(len(list(kind)) for kind in kinds)


def live_tensors() -> int:
    gc.collect()
    return sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor)


def freed(arenas: list[weakref.ref[Any]]) -> bool:
    """The executor refers to what it waited for until it waits again."""
    gc.collect()
    return all(arena() is None for arena in arenas)


def own_threads() -> Counter[str]:
    """Threads that this package started, by name; libraries keep pools of their own for a while."""
    names = (thread.name for thread in threading.enumerate())
    return Counter(name for name in names if name.startswith(("flashrt", "emergency-stop")))


def test_round_and_round_leaves_nothing_behind(pi0: Path) -> None:
    with hosted(PolicyNode, f"model:={pi0}", "instruction:=pick up the red cube") as (node, other):
        sensors = Sensors(other, node)
        arenas: list[weakref.ref[Any]] = []
        counts = []
        threads = own_threads()
        for _ in range(3):
            assert node.trigger_configure() == OK
            assert node.trigger_activate() == OK
            assert node._parts.session is not None
            arenas.append(weakref.ref(node._parts.session.arena))
            sensors.tick()
            node._parts.session.submit(lambda session: session.snapshot()).result(30.0)
            assert node.trigger_deactivate() == OK
            assert node.trigger_cleanup() == OK
            until(lambda: freed(arenas), "the end of its arena")
            counts.append((live_tensors(), endpoints(node)))
            assert not own_threads() - threads, "more threads than before it was configured"
        assert len(set(counts[1:])) == 1, counts  # the first round has filled caches of libraries


def test_reconfigured_with_another_model_it_commands_other_joints(pi0: Path) -> None:
    with hosted(PolicyNode) as (node, other):
        sent: list[JointTrajectory] = []
        other.create_subscription(JointTrajectory, "joint_trajectory", sent.append, 10)
        sensors = Sensors(other, node)
        joints = []
        for model, instruction in (("cued_reach", "wait"), (str(pi0), "pick"), ("cued_reach", "")):
            assert node.set_parameters([Parameter("model", value=model)])[0].successful
            if instruction:
                node.set_parameters([Parameter("instruction", value=instruction)])
            else:
                node.set_parameters([Parameter("instruction", value="wait")])
            assert node.trigger_configure() == OK
            assert node.trigger_activate() == OK
            sent.clear()
            sensors.tick()
            until(lambda: bool(sent), "a command")
            joints.append(tuple(sent[-1].joint_names))
            assert node.trigger_deactivate() == OK
            assert node.trigger_cleanup() == OK
        assert joints[0] == joints[2] != joints[1] == PI0_JOINTS


def test_a_configure_that_fails_half_way_frees_what_it_made_and_can_be_repeated(
    pi0: Path, tmp_path: Path
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("no directory")
    given = (f"model:={pi0}", "instruction:=pick", f"capsule_directory:={occupied}")
    with hosted(PolicyNode, *given) as (node, _):
        before, threads = endpoints(node), threading.active_count()
        tensors = 0
        for attempt in range(3):
            assert node.trigger_configure() == FAILURE
            assert state_of(node) == UNCONFIGURED
            assert "configure failed" in node._last_error
            if attempt == 0:
                tensors = live_tensors()
        assert live_tensors() == tensors
        assert endpoints(node) == before
        until(lambda: threading.active_count() <= threads, "the end of the threads")
        directory = Parameter("capsule_directory", value=str(tmp_path / "capsules"))
        assert node.set_parameters([directory])[0].successful
        assert node.trigger_configure() == OK
        assert node._last_error == ""


class Fragile(PolicyNode):
    """Fails where a test says so."""

    fail = ""

    def _begin(self) -> None:
        super()._begin()
        if self.fail == "begin":
            raise RuntimeError("injected at activate")

    def _pause(self) -> None:
        super()._pause()
        if self.fail == "pause":
            raise RuntimeError("injected at deactivate")


def test_an_activate_that_fails_leaves_it_inactive_and_held(pi0: Path) -> None:
    with hosted(Fragile, f"model:={pi0}", "instruction:=pick") as (node, _):
        assert node.trigger_configure() == OK
        node.fail = "begin"
        assert node.trigger_activate() == FAILURE
        assert state_of(node) == INACTIVE
        assert node._parts.engine is not None
        assert node._parts.engine.status.state.value == RuntimeStatus.INACTIVE
        node.fail = ""
        assert node.trigger_activate() == OK


def test_a_deactivate_that_fails_tears_down_and_it_can_be_configured_again(pi0: Path) -> None:
    with hosted(Fragile, f"model:={pi0}", "instruction:=pick") as (node, _):
        assert node.trigger_configure() == OK
        assert node.trigger_activate() == OK
        node.fail = "pause"
        node.trigger_deactivate()
        assert state_of(node) == UNCONFIGURED
        assert node._parts.engine is None
        node.fail = ""
        assert node.trigger_configure() == OK


def test_a_deactivate_in_a_tick_that_hangs_holds_says_why_and_it_can_be_configured_again() -> None:
    with bench("verb_timeout:=0.3") as made:
        made.move()
        engine = made.engine
        made.policy.gate.clear()
        made.policy.started.clear()
        made.show_until(made.policy.started.is_set, "a tick begins")
        moves = len(made.moves())
        on_executor(made.node, made.node.trigger_deactivate, TransitionCallbackReturn.ERROR)
        made.commands.wait(lambda sent: len(sent[-1].points) == 1, "a hold")
        assert state_of(made.node) == UNCONFIGURED
        assert "did not end within 0.3 s" in made.node._last_error
        assert engine._thread.is_alive()  # it is left behind, and nothing comes of it
        made.policy.gate.set()
        engine._thread.join(60.0)
        on_executor(made.node, made.node.trigger_configure)
        made.settle()
        assert len(made.moves()) == moves
        on_executor(made.node, made.node.trigger_activate)
        made.move()


def test_a_configure_gives_up_at_its_next_stage_when_the_process_is_to_end(pi0: Path) -> None:
    with hosted(PolicyNode, f"model:={pi0}", "instruction:=pick") as (node, _):
        node.abandoned = True
        assert node.trigger_configure() == FAILURE
        assert node._parts.model is None


def test_a_callback_that_raises_is_logged_and_the_node_goes_on() -> None:
    calls = []

    def fragile(request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("injected")
        response.success = True
        return response

    from rclpy.executors import SingleThreadedExecutor

    with hosted(PolicyNode) as (node, other):
        caller = ServiceCaller(other, timeout=3.0)
        context = node.context
        node.executor.remove_node(node)
        node.create_service(Trigger, "~/fragile", fragile)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        ending = Ending()
        thread = threading.Thread(target=_spin, args=(node, executor, ending))
        thread.start()
        try:
            call: Callable[[], Any] = lambda: caller.call(  # noqa: E731
                Trigger, "policy_node/fragile", Trigger.Request()
            )
            with pytest.raises(TimeoutError):
                call()
            assert call().success
            assert get_state(caller, "policy_node").id == UNCONFIGURED
            with pytest.raises(RuntimeError, match="unconfigured"):
                change_state(caller, "policy_node", Transition.TRANSITION_ACTIVATE)
        finally:
            ending._asked = True
            thread.join()
            executor.shutdown()
