# SPDX-License-Identifier: Apache-2.0
"""A planner against a running node over DDS: random scenarios, and many callers at once.

After every answer the node must be where a session of the runtime is to which the same was done.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from lifecycle_msgs.msg import Transition
from planner_bench import Mirror, ToySensors, Watch, toy_robot
from ros_rig import POLICY, Rig, bits, commit_id
from toy_policy import INSTRUCTIONS

from flashrt_ros.client import CapsuleClient, VerbRefused, requests
from flashrt_ros.demo.lifecycle import change_state
from flashrt_ros.msg import Branch
from flashrt_ros.policies import Motion
from flashrt_ros.runtime import Code

SCENARIOS = 200
NAMES = "abcdef"


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, ToySensors]]:
    with toy_robot("/planner", tmp_path_factory.mktemp("planner")) as made:
        yield made


class Planner:
    """Does the same to the node and to the model of it, and compares."""

    def __init__(self, made: Rig, sensors: ToySensors, seed: int) -> None:
        self.random = random.Random(seed)
        self.rig, self.sensors = made, sensors
        self.watch, self.mirror = Watch(made), Mirror()
        self.asked: list[tuple[requests.Call[Any], Any]] = []
        self.codes: dict[str, set[Code]] = {}
        self._ids = 0

    def begin(self) -> None:
        """Until events come: the subscription needs a while to be known."""
        while self.watch.newest is None:
            self.rig.policy.set_instruction("wait")
            self.watch.pause(0.05)

    # -- one verb

    def ask(self, call: requests.Call[Any], model: Callable[[], Any]) -> Any:
        """Ask the node for what is done to the model, too; their codes and places agree."""
        expected = self.mirror.attempt(model)
        code, response = self._send(call)
        self.codes.setdefault(call.name, set()).add(code)
        assert code is expected, f"{call}: {response.message}"
        assert not response.result.repeated
        self.agree(response.result)
        if call.request.request_id:
            self.asked.append((call, response))
        return response

    def _send(self, call: requests.Call[Any]) -> tuple[Code, Any]:
        try:
            return Code.OK, self.rig.policy.call(call)
        except VerbRefused as refusal:
            return refusal.code, refusal.response

    def agree(self, result: Any) -> None:
        session = self.mirror.session
        place = (session.live.number, session.live.step, session.epoch)
        assert (result.boundary, result.step, result.epoch) == place
        expected, view = self.mirror.buffers(), self.watch.view
        self.watch.wait(
            lambda: (
                (view.live, view.epoch) == (place[0], place[2])
                and expected.items() <= self.watch.buffers.items()
            ),
            f"the state at {place}",
        )

    def cas(self) -> dict[str, int]:
        """Mostly none, else a compare-and-swap that holds or one that is stale."""
        session = self.mirror.session
        return self.random.choice(
            [{}] * 6
            + [
                {"expected_boundary": session.live.number, "expected_epoch": session.epoch},
                {"expected_boundary": session.live.number + 1},
                {"expected_epoch": session.epoch + 1},
            ]
        )

    def fields(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Compare-and-swap and perhaps an id for a request; the former for the model."""
        cas = self.cas()
        self._ids += 1
        named = {"request_id": f"r{self._ids}"} if self.random.random() < 0.4 else {}
        return cas | named, cas

    def name(self) -> str:
        return self.random.choice(NAMES)

    # -- what planners do

    def tick(self) -> None:
        if self.mirror.held:
            return
        value = self.random.randrange(256)
        number = self.mirror.session._history.lineage.next_number
        while number not in self.watch.stamps:
            # An image that overtook the first joint state makes no observation: show it again.
            self.sensors.show(value)
            self.watch.has_come(lambda: number in self.watch.stamps, 3.0)
        self.mirror.tick(value, self.watch.stamps[number])
        self.agree(self.rig.policy.list().result)

    def interrupt(self) -> None:
        fields, cas = self.fields()

        def model() -> None:
            self.mirror.session.require(**cas)
            self.mirror.session.raise_epoch()
            self.mirror.held = True

        self.ask(requests.interrupt(**fields), model)

    def resume(self) -> None:
        fields, cas = self.fields()

        def model() -> None:
            self.mirror.session.require(**cas)
            if not self.mirror.held:
                raise _not_ready()
            self.mirror.held = False

        self.ask(requests.resume(Motion.REPLAN, **fields), model)

    def snapshot(self) -> None:
        fields, cas = self.fields()
        name, overwrite = self.name(), self.random.random() < 0.5

        def model() -> None:
            self.mirror.session.require(**cas)
            self.mirror.session.snapshot(name, overwrite=overwrite)

        self.ask(requests.snapshot(name, overwrite=overwrite, **fields), model)

    def errand(self) -> None:
        """Something else for a moment."""
        self.interrupt()
        self.set_instruction()
        self.resume()
        self.tick()

    def set_instruction(self) -> None:
        fields, cas = self.fields()
        text = self.random.choice(INSTRUCTIONS)

        def model() -> None:
            self.mirror.session.require(**cas)
            self.mirror.set_instruction(text)

        self.ask(requests.set_instruction(text, **fields), model)

    def restore(self) -> None:
        fields, cas = self.fields()
        name, motion = self.name(), self.random.choice([Motion.REPLAN, Motion.HOLD])

        def model() -> None:
            self.mirror.session.restore(name, **cas)
            self.mirror.held = motion is Motion.HOLD

        self.ask(requests.restore(name, motion=motion, **fields), model)

    def rollback(self) -> None:
        fields, cas = self.fields()
        live = self.mirror.session.live
        where: dict[str, Any] = self.random.choice(
            [
                {"count": self.random.randint(1, 4)},
                {"boundary": self.random.randint(0, live.number)},
                {"name": self.name()},
                {"before_ns": max(live.stamp_ns - self.random.randrange(3), 1)},
            ]
        )
        nearest = self.random.random() < 0.5

        def model() -> None:
            self.mirror.session.rollback(**where, nearest=nearest, **cas)
            self.mirror.held = False

        self.ask(requests.rollback(**where, nearest=nearest, **fields), model)

    def reset(self) -> None:
        fields, cas = self.fields()

        def model() -> None:
            self.mirror.session.reset(**cas)
            self.mirror.held = False

        self.ask(requests.reset(**fields), model)

    def fork(self) -> None:
        fields, cas = self.fields()
        source = self.random.choice(["", self.name()])
        names = self.random.sample(NAMES, 2)

        def model() -> None:
            self.mirror.session.require(**cas)
            self.mirror.session.fork(source or None, count=2, names=names)

        self.ask(requests.fork(source, names=names, **fields), model)

    def delete(self) -> None:
        fields, cas = self.fields()
        name = self.name()

        def model() -> None:
            self.mirror.session.require(**cas)
            self.mirror.session.drop(name)

        self.ask(requests.delete(name, **fields), model)

    def evaluate(self) -> None:
        fields, cas = self.fields()
        source = self.random.choice(["", self.name()])
        tries = [(self.random.choice(["", *INSTRUCTIONS]), self.random.choice([-1, 7]))] * 2
        values = [self.random.randrange(256) for _ in range(2)]
        seen = [self.sensors.observation(value, 1_000 + value) for value in values]
        expected: list[list[bytes]] = []

        def model() -> None:
            self.mirror.session.require(**cas)
            for instruction, seed in tries:
                expected.append(self.mirror.future(source, instruction, seed, values))

        branches = [Branch(instruction=text, seed=seed) for text, seed in tries]
        response = self.ask(
            requests.evaluate(branches, capsule=source, ticks=2, observations=seen, **fields), model
        )
        got = [[bits(chunk) for chunk in branch.chunks] for branch in response.branches]
        assert got == expected

    def repeat(self) -> None:
        """An answer was lost, thinks the planner; nothing must happen a second time."""
        if not self.asked:
            return
        call, earlier = self.random.choice(self.asked[-20:])
        code, response = self._send(call)
        assert code is Code(earlier.result.code)
        assert response.result.repeated
        assert response.result.boundary == earlier.result.boundary
        other = requests.interrupt(expected_boundary=9_999, request_id=call.request.request_id)
        assert self._send(other)[0] is Code.INVALID_ARGUMENT

    def scenario(self) -> None:
        for step in self.random.choices(
            [
                self.tick, self.interrupt, self.resume, self.snapshot, self.errand, self.restore,
                self.rollback, self.fork, self.evaluate, self.repeat, self.delete, self.reset,
            ],
            [6, 1, 2, 3, 1, 3, 2, 1, 1, 2, 1, 0.3],
            k=4,
        ):  # fmt: skip
            step()


def _not_ready() -> Exception:
    from flashrt_ros.runtime.errors import NotReady

    return NotReady("not held")


def test_200_scenarios_leave_the_node_where_the_same_verbs_leave_a_session(
    robot: tuple[Rig, ToySensors],
) -> None:
    made, sensors = robot
    planner = Planner(made, sensors, seed=5)
    planner.begin()
    for _ in range(SCENARIOS):
        planner.scenario()
    seen = set().union(*planner.codes.values())
    wanted = {
        Code.OK, Code.STALE_BOUNDARY, Code.STALE_EPOCH, Code.UNKNOWN_CAPSULE, Code.NAME_TAKEN,
        Code.NOT_READY, Code.INVALID_ARGUMENT,
    }  # fmt: skip
    assert wanted <= seen
    # Nothing of an older epoch comes after something of a newer one, and nothing comes twice.
    chunks = [(chunk.epoch, chunk.sequence) for chunk in made.chunks.all()]
    ids = [commit_id(command) for command in made.commands.all()]
    for numbers in (chunks, [(id["epoch"], id["sequence"]) for id in ids]):
        assert all(
            newer[0] >= older[0] and newer[1] > older[1] for older, newer in pairwise(numbers)
        )
    # The tree that the events alone make is the session's own.
    view, session = planner.watch.view, planner.mirror.session
    lineage = session._history.lineage
    assert view.lost == 0
    numbers = [number for number in range(lineage.next_number) if number in lineage]
    assert sorted({0, *view.boundaries}) == numbers
    for number in view.boundaries:
        assert view.boundaries[number].parent == lineage[number].parent
    capsules = {info.name: info.boundary for info in session.capsules() if info.name}
    named = {seen.name: seen.boundary for seen in view.capsules.values() if seen.name}
    assert named == capsules
    listed = made.policy.list()
    assert {info.name: info.boundary for info in listed.capsules} == capsules
    page = made.policy.list(offset=1, limit=2)
    assert [info.id for info in page.capsules] == [info.id for info in listed.capsules[1:3]]
    assert page.total == len(capsules)


def test_eight_callers_are_all_answered_while_the_node_ticks_and_goes_through_its_life(
    robot: tuple[Rig, ToySensors],
) -> None:
    made, sensors = robot
    made.policy.reset()
    stop = threading.Event()
    answers: list[list[Code]] = [[] for _ in range(8)]
    lost: list[BaseException] = []

    def hammer(number: int) -> None:
        rng = random.Random(number)
        with CapsuleClient(made.node, POLICY, timeout=120.0) as policy:
            while not stop.is_set():
                name = rng.choice(NAMES)
                call = rng.choice(
                    [
                        requests.interrupt(),
                        requests.resume(),
                        requests.snapshot(name, overwrite=True),
                        requests.restore(name),
                        requests.rollback(count=1, nearest=True),
                        requests.fork(name, count=2),
                        requests.evaluate(["reach", "wait"], ticks=3),
                        requests.cancel_evaluation(),
                        requests.capsules(limit=5),
                        requests.delete(name),
                        requests.move(name, "host"),
                        requests.reset(),
                        requests.set_instruction("reach", request_id=f"{rng.randrange(50)}"),
                        requests.start_run("go home", duration=0.2),
                        requests.cancel_run(),
                    ]
                )
                try:
                    policy.call(call)
                except VerbRefused as refusal:
                    answers[number].append(refusal.code)
                except BaseException as error:
                    lost.append(error)
                    return
                else:
                    answers[number].append(Code.OK)

    def show() -> None:
        while not stop.wait(0.02):
            sensors.show(1)

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(8)]
    threads.append(threading.Thread(target=show))
    for thread in threads:
        thread.start()
    for _ in range(3):
        for transition in (
            Transition.TRANSITION_DEACTIVATE,
            Transition.TRANSITION_CLEANUP,
            Transition.TRANSITION_CONFIGURE,
            Transition.TRANSITION_ACTIVATE,
        ):
            change_state(made.caller, POLICY, transition)
            before = sum(map(len, answers))
            while sum(map(len, answers)) < before + 8 and not lost:
                stop.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert not lost
    codes = {code for caller in answers for code in caller}
    assert {Code.OK, Code.NOT_READY} <= codes
    assert Code.INTERNAL not in codes
    assert made.policy.list().success
