# SPDX-License-Identifier: Apache-2.0
"""Parameters: what may change while the node is configured, what is refused, and a dump's way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from rcl_interfaces.srv import ListParameters
from rclpy.node import Node
from rclpy.parameter import Parameter
from ros_host import OK, hosted, until
from tiny_pi0 import write_checkpoint

from flashrt_ros.client import ServiceCaller
from flashrt_ros.ros import language_node, policy_parameters
from flashrt_ros.ros.language_node import LanguageNode
from flashrt_ros.ros.policy_node import PolicyNode

DECLARED = {parameter.name for parameter in policy_parameters.PARAMETERS}
CONFIG = Path(__file__).parents[1] / "config"


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PolicyNode, Node]]:
    """A configured policy node."""
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("pi0"))
    with hosted(PolicyNode, f"model:={checkpoint}", "instruction:=pick") as (node, other):
        assert node.trigger_configure() == OK
        yield node, other


def changed(node: Node, **values: Any) -> list[Any]:
    return node.set_parameters([Parameter(name, value=value) for name, value in values.items()])


def test_live_parameters_take_effect_while_it_is_configured(
    configured: tuple[PolicyNode, Node],
) -> None:
    node, _ = configured
    parts = node._parts
    assert parts.engine is not None
    assert parts.inputs is not None
    assert parts.session is not None
    answers = changed(
        node,
        continue_tolerance=0.5,
        observation_timeout=7.0,
        hold_duration=0.3,
        max_skew=0.25,
        boundary_budget_mb=1.0,
        diagnostics_period=2.5,
    )
    assert [answer.reason for answer in answers] == [""] * 6
    parts.engine.call(lambda session: None, 30.0)  # the changes were queued before this
    options = parts.engine.options
    assert (options.continue_tolerance, options.observation_timeout) == (0.5, 7.0)
    assert options.hold_duration == parts.engine._pilot.hold_duration == 0.3
    assert parts.inputs.assembler.max_skew_s == 0.25
    assert parts.session._keeper is not None
    assert parts.session._keeper.auto.budget_bytes == 1_000_000
    assert node._timer.timer_period_ns == 2_500_000_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "another"),
        ("device", "cuda:0"),
        ("backend", "compiled"),
        ("seed", 7),
        ("instruction", "place"),
        ("lockstep", True),
        ("capsule_directory", "/tmp/elsewhere"),
        ("boundary_snapshots", 5),
    ],
)
def test_what_a_change_could_not_reach_is_refused_with_what_to_do(
    configured: tuple[PolicyNode, Node], name: str, value: Any
) -> None:
    node, _ = configured
    before = node.get_parameter(name).value
    (answer,) = changed(node, **{name: value})
    assert not answer.successful
    assert answer.reason.startswith(f"{name} is fixed while the node is configured")
    assert "deactivate and cleanup first" in answer.reason
    assert node.get_parameter(name).value == before


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("continue_tolerance", -0.1, "out of range"),
        ("continue_tolerance", math.nan, "out of range"),
        ("hold_duration", math.inf, "out of range"),
        ("observation_timeout", 1000.0, "out of range"),
        ("max_skew", "wide", "type"),
    ],
)
def test_a_value_out_of_its_range_is_refused(
    configured: tuple[PolicyNode, Node], name: str, value: Any, reason: str
) -> None:
    node, _ = configured
    before = node.get_parameter(name).value
    (answer,) = changed(node, **{name: value})
    assert not answer.successful
    assert reason in answer.reason
    assert node.get_parameter(name).value == before


def test_an_unknown_backend_is_refused_also_before_configure() -> None:
    with hosted(PolicyNode) as (node, _):
        (answer,) = changed(node, backend="quantum")
        assert answer.reason == (
            "backend is 'quantum', expected one of eager, compiled, cuda_graph"
        )
        assert changed(node, backend="compiled", seed=9)[0].successful


def listed(node: Node, other: Node) -> list[str]:
    """What `ros2 param dump` asks for."""
    caller = ServiceCaller(other, timeout=60.0)
    name = f"{node.get_name()}/list_parameters"
    answer = caller.call(ListParameters, name, ListParameters.Request())
    caller.close()
    return sorted(answer.result.names)


def dumped(node: Node, names: Sequence[str]) -> dict[str, Any]:
    return {name: node.get_parameter(name).value for name in names}


def test_a_dump_loads_into_another_node_and_into_the_same(
    configured: tuple[PolicyNode, Node], tmp_path: Path
) -> None:
    node, other = configured
    changed(node, continue_tolerance=0.125)
    values = dumped(node, listed(node, other))
    assert {"model", "seed", "continue_tolerance"} <= values.keys()
    own = {name: value for name, value in values.items() if name in DECLARED}
    again = changed(node, **own)
    assert [answer.reason for answer in again] == [""] * len(again)
    file = tmp_path / "dump.yaml"
    file.write_text(yaml.safe_dump({"/**": {"ros__parameters": values}}))
    with hosted(PolicyNode, arguments=["--params-file", str(file)]) as (copy, _):
        assert copy.trigger_configure() == OK
        until(lambda: copy._configured, "configure")
        for name, value in values.items():
            if copy.has_parameter(name):  # those of topics have the namespace in their name
                assert copy.get_parameter(name).value == value, name
        missing = [name for name in values if not copy.has_parameter(name)]
        assert all(name.startswith("qos_overrides.") for name in missing)


@pytest.mark.parametrize(
    ("file", "name", "parameters"),
    [
        ("policy_node.yaml", "policy_node", policy_parameters.PARAMETERS),
        ("language_node.yaml", "language_node", language_node.PARAMETERS),
    ],
)
def test_the_shipped_file_has_every_parameter_with_its_default(
    file: str, name: str, parameters: Sequence[Any]
) -> None:
    content: Mapping[str, Any] = yaml.safe_load((CONFIG / file).read_text())
    written = content["/**"][name]["ros__parameters"]
    assert written == {parameter.name: parameter.default for parameter in parameters}


def test_language_node_refuses_and_takes_changes_by_the_same_rules() -> None:
    with hosted(LanguageNode) as (node, _):
        assert not changed(node, dtype="float8")[0].successful
        assert changed(node, max_waiting=2, diagnostics_period=3.0)[0].successful
        node._configured = True  # as with a model
        assert changed(node, max_waiting=3, diagnostics_period=4.0)[0].successful
        assert node._timer.timer_period_ns == 4_000_000_000
        assert "deactivate and cleanup first" in changed(node, model="another")[0].reason
        node._configured = False


def test_descriptors_tell_range_choices_and_what_is_fixed() -> None:
    for parameter in (*policy_parameters.PARAMETERS, *language_node.PARAMETERS):
        descriptor = parameter.descriptor()
        assert descriptor.description.endswith("."), parameter.name
        fixed = "Fixed while the node is configured." in descriptor.additional_constraints
        assert fixed == (not parameter.live and not parameter.read_only)
        if isinstance(parameter.default, float):
            assert descriptor.floating_point_range, parameter.name
