# SPDX-License-Identifier: Apache-2.0
"""The lineage that a client rebuilds from boundary events is the session's own."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from builtin_interfaces.msg import Time
from test_policies_engine import Bench

from flashrt_ros.client import LineageView
from flashrt_ros.policies import EngineEvent, Motion
from flashrt_ros.ros.boundary_detail import describe
from flashrt_ros.ros.conversions import to_boundary
from flashrt_ros.runtime import RuntimeFault, Session

NAMES = "abcd"


class Seen:
    """A bench whose events go to a view as the messages that a node would send."""

    def __init__(self) -> None:
        self.view = LineageView()
        self.bench = Bench(observation_timeout=0.0)
        self.bench.out.on_event = self.tell  # type: ignore[method-assign]

    def tell(self, event: EngineEvent) -> None:
        session = self.bench.session
        message = to_boundary(event, session.id, session.seed, Time())
        self.view.add(describe(message, event))


def verb(session: Session, bench: Bench, rng: random.Random) -> None:
    """Some verb, perhaps one that is refused."""
    engine, name = bench.engine, rng.choice(NAMES)
    where = rng.choice(
        [{"count": rng.randint(1, 5)}, {"boundary": rng.randint(0, session.live.number)}]
    )
    rng.choice(
        [
            lambda: session.snapshot(name, overwrite=rng.random() < 0.5),
            lambda: session.fork(name, count=2),
            lambda: session.fork(names=[name]),
            lambda: engine.restore(name, Motion.REPLAN),
            lambda: engine.rollback(Motion.REPLAN, nearest=True, **where),
            lambda: engine.restore(name, Motion.REPLAN, roles=["recurrent"]),
            lambda: session.drop(name),
            lambda: session.move(name, "host"),
            engine.interrupt,
            lambda: engine.resume(Motion.REPLAN),
            lambda: engine.set_instruction("reach"),
        ]
    )()


@pytest.mark.parametrize("seed", range(5))
def test_tree_and_capsules_are_those_of_the_session_after_random_verbs(seed: int) -> None:
    rng, seen = random.Random(seed), Seen()
    bench = seen.bench

    def step(session: Session) -> None:
        try:
            verb(session, bench, rng)
        except RuntimeFault:
            pass

    try:
        for _ in range(150):
            if rng.random() < 0.4:
                bench.engine.offer(bench.observation(rng.randrange(256)))
                bench.settle()
            bench.engine.call(step)
        view, session = seen.view, bench.session
        lineage = session._history.lineage
        assert view.lost == 0
        assert (view.live, view.epoch) == (session.live.number, session.epoch)
        numbers = [number for number in range(lineage.next_number) if number in lineage]
        assert sorted({0, *view.boundaries}) == numbers
        for number, boundary in view.boundaries.items():
            record = lineage[number]
            assert (boundary.parent, boundary.step) == (record.parent, record.step)
            assert (boundary.inputs_digest, boundary.origin) == (
                record.inputs_digest,
                record.origin,
            )
        assert [b.number for b in view.ancestors()] == [b.number for b in lineage.ancestors()]
        stored = {info.id: info for info in session.capsules() if "first" not in info.tags}
        assert {
            capsule.id: (capsule.name, capsule.boundary, capsule.parent, capsule.tier)
            for capsule in view.capsules.values()
        } == {
            info.id: (info.name, info.boundary, info.parent, str(info.tier))
            for info in stored.values()
        }
    finally:
        bench.engine.close()


def test_lost_event_is_counted_and_another_session_starts_anew() -> None:
    seen = Seen()
    try:
        bench, view = seen.bench, seen.view
        bench.snapshot("a")
        bench.out.on_event = lambda event: None  # type: ignore[method-assign]
        bench.snapshot("b")
        bench.out.on_event = seen.tell  # type: ignore[method-assign]
        bench.snapshot("c")
        assert view.lost == 1
        assert sorted(capsule.name for capsule in view.capsules.values()) == ["a", "c"]
    finally:
        bench.engine.close()
    other = Seen()
    try:
        other.view = view
        other.bench.snapshot("d")
        assert [capsule.name for capsule in view.capsules.values()] == ["d"]
        assert view.lost == 0
    finally:
        other.bench.engine.close()
