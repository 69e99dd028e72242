# SPDX-License-Identifier: Apache-2.0
"""A planner's node goes on spinning, whatever its callbacks raise and whatever is destroyed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from std_srvs.srv import Trigger

from flashrt_ros.client import CapsuleClient, ServiceCaller, spinning

PATIENCE = 60.0


def answer(request: Trigger.Request, response: Trigger.Response) -> Any:
    response.success = True
    return response


def test_a_callback_that_raises_does_not_end_the_spinning() -> None:
    raised = threading.Event()

    def fail() -> None:
        raised.set()
        raise ValueError("a planner's own fault")

    with spinning("server") as server, spinning("planner") as node:
        server.create_service(Trigger, "ping", answer)
        timer = node.create_timer(0.01, fail)
        assert raised.wait(PATIENCE)
        timer.cancel()
        assert ServiceCaller(node, PATIENCE).call(Trigger, "ping", Trigger.Request()).success


def test_clients_that_come_and_go_do_not_end_the_spinning() -> None:
    with spinning("server") as server, spinning("planner") as node:
        server.create_service(Trigger, "ping", answer)
        for _ in range(20):
            with CapsuleClient(node, "nobody") as client:
                assert not client._runs.is_ready  # makes the action client
        assert ServiceCaller(node, PATIENCE).call(Trigger, "ping", Trigger.Request()).success
