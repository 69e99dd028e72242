# SPDX-License-Identifier: Apache-2.0
"""The security policy permits what the node has, all of it and nothing else."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from rclpy.node import Node
from ros_host import OK, hosted, until

from flashrt_ros.ros.policy_node import PolicyNode

POLICY = Path(__file__).parents[1] / "config" / "sros2" / "policy_node.policy.xml"
LIFE_CYCLE = ("change_state", "set_parameters", "set_parameters_atomically", "set_logger_levels")
Permitted = set[tuple[str, str]]


def profiles(enclave: str) -> dict[str, Permitted]:
    """(kind, name) of everything that each node of an enclave is allowed, names made absolute."""
    found: dict[str, Permitted] = {}
    root = ElementTree.parse(POLICY).getroot()
    for profile in root.findall(f"./enclaves/enclave[@path='{enclave}']/profiles/profile"):
        node = profile.attrib["node"]
        assert profile.attrib["ns"] == "/"
        permitted = found.setdefault(node, set())
        for group in profile:
            (permission,) = group.attrib
            assert group.attrib[permission] == "ALLOW"
            for item in group:
                name = str(item.text).replace("~", f"/{node}")
                assert (permission, name) not in permitted, f"{name} is there twice"
                permitted.add((permission, name if name.startswith("/") else f"/{name}"))
    return found


def endpoints(observer: Node, node: str, namespace: str) -> Permitted:
    """What a node has in the graph; an action's topics and services are the action."""
    found: Permitted = set()
    for permission, ask in (
        ("publish", observer.get_publisher_names_and_types_by_node),
        ("subscribe", observer.get_subscriber_names_and_types_by_node),
        ("reply", observer.get_service_names_and_types_by_node),
        ("request", observer.get_client_names_and_types_by_node),
    ):
        for name, _ in ask(node, namespace):
            relative = name.removeprefix(namespace)
            action, inside, _ = relative.partition("/_action/")
            found.add(("execute", action) if inside else (permission, relative))
    return found


@pytest.fixture(scope="module")
def graph() -> dict[str, Permitted]:
    """What the nodes of a policy process have, by their names."""
    with hosted(PolicyNode, "use_sim_time:=true") as (node, other):
        assert node.trigger_configure() == OK
        assert node.trigger_activate() == OK
        namespace = node.get_namespace()

        def mine() -> list[str]:
            return [
                name
                for name, its in other.get_node_names_and_namespaces()
                if its == namespace and name != "test"
            ]

        wanted = profiles("/policy_node")
        found: dict[str, Permitted] = {}

        def complete() -> bool:
            found.clear()
            for name in mine():
                found[name] = endpoints(other, name, namespace)
            return all(permitted <= found.get(name, set()) for name, permitted in wanted.items())

        try:
            until(complete, "the graph that the policy describes")
        except AssertionError:
            pass  # the tests tell what is missing
        return dict(found)


def test_every_endpoint_of_the_node_is_permitted_and_nothing_else(graph: Any) -> None:
    permitted = profiles("/policy_node")
    assert permitted.keys() == graph.keys()
    for name, has in graph.items():
        lacking, unused = has - permitted[name], permitted[name] - has
        assert not lacking, f"{name} has, and {POLICY.name} does not permit: {sorted(lacking)}"
        assert not unused, f"{POLICY.name} permits, and {name} does not have: {sorted(unused)}"


def test_only_a_planner_may_call_the_verbs_and_only_an_operator_the_life_cycle(graph: Any) -> None:
    served = {name for permission, name in graph["policy_node"] if permission == "reply"}
    requests = {
        enclave: {
            name
            for permission, name in profiles(f"/{enclave}")[enclave]
            if permission in ("request", "call")
        }
        for enclave in ("planner", "operator", "observer")
    }
    assert requests["planner"] - {"/policy_node/run"} <= served
    assert requests["operator"] <= served
    assert requests["observer"] == set()
    verbs = {name for name in served if "/capsule/" in name} | {
        f"/policy_node/{verb}"
        for verb in ("interrupt", "resume", "reset", "set_instruction", "start_run", "cancel_run")
    }
    assert verbs <= requests["planner"]
    assert not verbs & requests["operator"]
    assert not {f"/policy_node/{name}" for name in LIFE_CYCLE} & requests["planner"]
    assert verbs | requests["operator"] == served  # nothing that nobody may call


def test_nobody_but_the_node_publishes_commands() -> None:
    for enclave in ("planner", "operator", "observer"):
        allowed = profiles(f"/{enclave}")[enclave]
        published = {name for permission, name in allowed if permission == "publish"}
        assert "/joint_trajectory" not in published
        assert not any(name.startswith("/policy_node/") for name in published)
