# SPDX-License-Identifier: Apache-2.0
"""What the node says of itself, and that saying it costs the replay thread nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from ros_host import OK, Sensors, hosted, until
from tiny_pi0 import write_checkpoint

from flashrt_ros.msg import RuntimeStatus
from flashrt_ros.ros import qos
from flashrt_ros.ros.meters import WINDOW, Rates, Samples
from flashrt_ros.ros.policy_node import PolicyNode
from flashrt_ros.ros.policy_status import PolicyReporter
from flashrt_ros.runtime import Fingerprint, Session, Store


@pytest.fixture(scope="module")
def active(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PolicyNode, Node, Sensors]]:
    """An active policy node, its sensors beside it."""
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("pi0"))
    given = (f"model:={checkpoint}", "instruction:=pick", "observation_timeout:=0.0", "seed:=3")
    given = (*given, "tick_period:=0.0")
    with hosted(PolicyNode, *given, "diagnostics_period:=0.2") as (node, other):
        assert node.trigger_configure() == OK
        assert node.trigger_activate() == OK
        yield node, other, Sensors(other, node)


def newest(other: Node, kind: Any, topic: str, profile: Any, good: Callable[[Any], bool]) -> Any:
    """The first message on a topic that a test takes."""
    found: list[Any] = []

    def receive(message: Any) -> None:
        if good(message):
            found.append(message)

    subscription = other.create_subscription(kind, topic, receive, profile)
    until(lambda: bool(found), f"a message on {topic}")
    other.destroy_subscription(subscription)
    return found[0]


def test_ticks_ask_neither_the_store_nor_the_fingerprint(
    active: tuple[PolicyNode, Node, Sensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _, sensors = active
    sensors.tick()
    calls: Counter[tuple[str, str]] = Counter()

    def count(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def counting(*args: Any, **options: Any) -> Any:
            calls[threading.current_thread().name, name] += 1
            return original(*args, **options)

        monkeypatch.setattr(kind, name, counting)

    count(Store, "infos")
    count(Store, "statistics")
    count(Session, "capsules")
    count(Fingerprint, "digest")
    count(PolicyReporter, "publish_status")
    assert node._parts.engine is not None
    engine = node._parts.engine
    sensors.tick(5)
    engine.call(lambda session: engine.interrupt(), 30.0)  # changes of the status
    engine.call(lambda session: engine.resume(engine._motion.__class__.REPLAN), 30.0)
    sensors.tick(5)
    replay = {name: n for (thread, name), n in calls.items() if thread == "flashrt-replay"}
    assert replay == {}
    assert not any(name == "digest" for _, name in calls)  # once, at configure
    assert any(name == "publish_status" for _, name in calls)


def test_status_is_latched_and_has_every_field(active: tuple[PolicyNode, Node, Sensors]) -> None:
    node, other, sensors = active
    sensors.tick()
    status = newest(other, RuntimeStatus, "policy_node/status", qos.LATCHED, lambda s: s.ticks > 0)
    assert node._parts.session is not None
    totals = node._parts.session.store.totals()
    assert status.state == RuntimeStatus.RUNNING
    assert (status.plan, status.seed, status.instruction) == ("eager", 3, "pick")
    assert status.fingerprint == node._parts.session.fingerprint.digest()
    assert list(status.tiers) == ["device", "host", "disk"]
    assert status.tier_bytes[0] > 0
    assert status.capsule_bytes == sum(status.tier_bytes)
    assert 0 < status.capsules <= totals.capsules
    assert status.faults == 0
    assert status.run == ""


def test_diagnostics_have_rates_ages_latencies_and_memory_by_tier(
    active: tuple[PolicyNode, Node, Sensors],
) -> None:
    _, other, sensors = active
    sensors.tick(3)
    message = newest(other, DiagnosticArray, "/diagnostics", 10, lambda m: len(m.status) == 4)
    found = {
        status.name.rpartition(": ")[2]: {pair.key: pair.value for pair in status.values}
        for status in message.status
    }
    assert set(found) == {"policy", "timing", "inputs", "capsules"}
    assert {"state", "epoch", "ticks", "faults", "deadline misses", "last error"} <= set(
        found["policy"]
    )
    for quantity in ("inference", "replay", "tick to publish", "observation to command"):
        p50, p99 = (float(found["timing"][f"{quantity} {p} ms"]) for p in ("p50", "p99"))
        assert 0.0 < p50 <= p99
    assert float(found["timing"]["replay p50 ms"]) <= float(found["timing"]["inference p50 ms"])
    assert {"chunk rate Hz", "command rate Hz", "deadline misses"} <= set(found["timing"])
    for source in ("top", "wrist", "joint_states"):
        assert float(found["inputs"][f"{source} age s"]) >= 0.0
        assert int(found["inputs"][f"{source} received"]) > 0
        assert f"{source} rate Hz" in found["inputs"]
    for tier in ("device", "host", "disk"):
        assert {f"{tier} capsules", f"{tier} bytes", f"{tier} budget bytes"} <= set(
            found["capsules"]
        )
    assert all(status.hardware_id for status in message.status)


def test_percentiles_are_of_the_newest_samples() -> None:
    samples = Samples()
    assert all(value != value for value in samples.percentiles())  # NaN: nothing is invented
    for number in range(2 * WINDOW):
        samples.add(float(number))
    median, worst = samples.percentiles()
    assert WINDOW + 0.45 * WINDOW < median < WINDOW + 0.55 * WINDOW
    assert worst == 2 * WINDOW - 1 - round(0.01 * (WINDOW - 1))


def test_a_rate_needs_two_looks() -> None:
    rates = Rates()
    assert rates.update({"a": 5}) == {"a": 0.0}
    assert rates.update({"a": 6, "b": 100})["a"] > 0.0


def test_a_failed_configure_is_in_the_latched_status(tmp_path: Path) -> None:
    with hosted(PolicyNode, "model:=/no/such/model") as (node, other):
        node.trigger_configure()
        status = newest(
            other, RuntimeStatus, "policy_node/status", qos.LATCHED, lambda s: bool(s.last_error)
        )
        assert status.state == RuntimeStatus.UNCONFIGURED
        assert "/no/such/model" in status.last_error
        assert (status.plan, status.fingerprint, list(status.tiers)) == ("", "", [])
