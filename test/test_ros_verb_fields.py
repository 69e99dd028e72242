# SPDX-License-Identifier: Apache-2.0
"""Fields that verbs have in common are honoured by every service that has them, whichever it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from ros_host import PATIENCE
from safety_bench import SafetyBench, bench

from flashrt_ros.client import ServiceCaller
from flashrt_ros.msg import Branch
from flashrt_ros.policies import Motion
from flashrt_ros.runtime import Code

# What each verb is asked for; in this order, as a resume needs a hold.
REQUESTS: dict[str, dict[str, Any]] = {
    "capsule/snapshot": {"name": "taken"},
    "capsule/fork": {"capsule": "here", "names": ["branch"]},
    "capsule/move": {"capsule": "here", "tier": "host"},
    "capsule/delete": {"capsule": "spare"},
    "capsule/evaluate": {"branches": [Branch(label="a", instruction="wait")], "keep": True},
    "set_instruction": {"instruction": "reach"},
    "capsule/rollback": {"count": 1, "motion": Motion.HOLD},
    "capsule/restore": {"capsule": "here", "motion": Motion.HOLD},
    "capsule/reset": {"motion": Motion.HOLD},
    "interrupt": {"motion": Motion.HOLD},
    "resume": {"motion": Motion.REPLAN},
    "start_run": {"instruction": "go home"},
}
STALE = {"expected_boundary": Code.STALE_BOUNDARY, "expected_epoch": Code.STALE_EPOCH}


class Verbs:
    """The node, and its services that have the fields in question."""

    def __init__(self, made: SafetyBench) -> None:
        self.made = made
        self._caller = ServiceCaller(made.other, timeout=PATIENCE)
        prefix = f"{made.node.get_namespace()}/{made.node.get_name()}/"
        self.kinds = {
            service.service_name.removeprefix(prefix): service.srv_type
            for service in made.node.services
            if STALE.keys() & service.srv_type.Request.get_fields_and_field_types().keys()
        }
        for _ in range(3):
            made.tick()
        for name in ("here", "spare"):
            made.client.snapshot(name)

    def ask(self, name: str, **fields: Any) -> Any:
        """The answer of a verb to what REQUESTS has for it, and these fields."""
        kind = self.kinds[name]
        request = kind.Request(**REQUESTS[name], **fields)
        return self._caller.call(kind, f"policy_node/{name}", request)

    def state(self) -> tuple[Any, ...]:
        """Whatever a verb could have changed."""
        engine = self.made.engine

        def look(session: Any) -> tuple[Any, ...]:
            capsules = sorted((each.id, each.name, str(each.tier)) for each in session.capsules())
            status = engine.picture()
            held = (status.state, status.reason, status.instruction, status.run, status.sequence)
            return session.live, session.epoch, capsules, held

        return engine.call(look, timeout=PATIENCE)

    def close(self) -> None:
        self._caller.close()


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    with bench("evaluate:=true") as made:
        verbs = Verbs(made)
        yield verbs
        verbs.close()


def test_every_verb_has_the_same_three_fields_and_is_asked_here(verbs: Verbs) -> None:
    assert verbs.kinds.keys() == REQUESTS.keys()
    for name, kind in verbs.kinds.items():
        has = kind.Request.get_fields_and_field_types().keys()
        assert {"expected_boundary", "expected_epoch", "request_id"} <= has, name


@pytest.mark.parametrize("field", STALE)
def test_verb_that_expects_another_state_is_refused_and_changes_nothing(
    verbs: Verbs, field: str
) -> None:
    for name in verbs.kinds:
        before = verbs.state()
        answer = verbs.ask(name, **{field: 77_777})
        assert not answer.success, name
        assert answer.result.code == STALE[field], f"{name}: {answer.message}"
        assert "77777" in answer.message, f"{name}: {answer.message}"
        assert verbs.state() == before, name


def test_verb_that_expects_what_is_live_is_applied_once_however_often_it_is_asked(
    verbs: Verbs,
) -> None:
    for name in REQUESTS:
        before = verbs.state()
        live, epoch = before[:2]
        fields = {
            "expected_boundary": live.number,
            "expected_epoch": epoch,
            "request_id": f"the {name}",
        }
        first = verbs.ask(name, **fields)
        assert first.success, f"{name}: {first.message}"
        assert not first.result.repeated, name
        after = verbs.state()
        assert after != before, f"{name} did nothing"
        again = verbs.ask(name, **fields)
        assert again.success, f"{name}: {again.message}"
        assert again.result.repeated, name
        assert again.result.boundary == first.result.boundary, name
        assert verbs.state() == after, f"{name} was applied again"
