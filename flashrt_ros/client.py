# SPDX-License-Identifier: Apache-2.0
"""A planner's view of a policy node: its verbs as methods, its newest status and boundary.

    with CapsuleClient(node, "policy_node") as policy:
        policy.interrupt()
        policy.snapshot("before_errand")
        policy.set_instruction("go home")
        policy.resume()
        ...
        policy.restore("before_errand", motion=Motion.REPLAN)

The node must be spun by another thread; `spinning` does that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import rclpy
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from flashrt_ros.msg import RuntimeStatus
from flashrt_ros.policies.motion import Motion
from flashrt_ros.runtime.errors import Code
from flashrt_ros.srv import (
    DeleteCapsule,
    ListCapsules,
    MoveCapsule,
    Restore,
    Rollback,
    SetInstruction,
    Snapshot,
    Verb,
)


class VerbRefused(RuntimeError):
    """A verb answered `success: false`.

    Attributes:
        code: why, as a number to switch on.
        response: the whole answer.
    """

    def __init__(self, verb: str, response: Any) -> None:
        self.code = Code(response.result.code)
        self.response = response
        super().__init__(f"{verb}: {self.code.name}: {response.message}")


class ServiceCaller:
    """Blocking calls for threads that don't spin the node themselves.

    Args:
        node: spun by another thread.
        timeout: longest wait for a server and for its answer, s.
    """

    def __init__(self, node: Node, timeout: float = 10.0) -> None:
        self._node = node
        self._timeout = timeout
        self._group = ReentrantCallbackGroup()
        self._clients: dict[str, Any] = {}

    def call(self, kind: Any, name: str, request: Any) -> Any:
        """Call a service and wait for the answer.

        Raises:
            TimeoutError: no server, or no answer in time.
        """
        client = self._clients.get(name)
        if client is None:
            client = self._node.create_client(kind, name, callback_group=self._group)
            self._clients[name] = client
        if not client.wait_for_service(timeout_sec=self._timeout):
            raise TimeoutError(f"no server for {client.srv_name} within {self._timeout} s")
        answered = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(self._timeout):
            client.remove_pending_request(future)
            raise TimeoutError(f"{client.srv_name} did not answer within {self._timeout} s")
        return future.result()

    def close(self) -> None:
        """Remove the clients from the node."""
        for client in self._clients.values():
            self._node.destroy_client(client)
        self._clients.clear()


class CapsuleClient:
    """The verbs of a policy node.

    Every method returns the service's response and raises `VerbRefused` where it was refused.

    Args:
        node: spun by another thread.
        policy: name of the policy node, relative to the node's namespace or absolute.
        timeout: longest wait for an answer, s.
    """

    def __init__(self, node: Node, policy: str = "policy_node", timeout: float = 10.0) -> None:
        self._node = node
        self._policy = policy
        self._caller = ServiceCaller(node, timeout)
        self._changed = threading.Condition()
        self._status: RuntimeStatus | None = None
        latched = QoSProfile(
            depth=1,
            reliability=ReliabilityPolicy.RELIABLE,
            durability=DurabilityPolicy.TRANSIENT_LOCAL,
        )
        self._subscription = node.create_subscription(
            RuntimeStatus, f"{policy}/status", self._on_status, latched
        )

    def __enter__(self) -> CapsuleClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove clients and subscription from the node."""
        self._caller.close()
        self._node.destroy_subscription(self._subscription)

    @property
    def status(self) -> RuntimeStatus | None:
        """The newest status, None before the first."""
        return self._status

    def wait_for_status(
        self, condition: Callable[[RuntimeStatus], bool], timeout: float = 10.0
    ) -> RuntimeStatus:
        """Wait until a status fulfils a condition.

        Raises:
            TimeoutError: none did in time; the message has the last one.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._status is not None and condition(self._status), timeout
            ):
                raise TimeoutError(f"no such status within {timeout} s; last: {self._status}")
            assert self._status is not None
            return self._status

    def snapshot(
        self,
        name: str = "",
        *,
        overwrite: bool = False,
        expected_boundary: int = -1,
        tags: Sequence[str] = (),
        pin: bool = False,
    ) -> Snapshot.Response:
        """Freeze the state at the live boundary."""
        request = Snapshot.Request(
            name=name,
            overwrite=overwrite,
            expected_boundary=expected_boundary,
            tags=list(tags),
            pin=pin,
        )
        return self._verb(Snapshot, "capsule/snapshot", request)

    def restore(
        self,
        capsule: str,
        *,
        motion: Motion = Motion.REPLAN,
        expected_boundary: int = -1,
        expected_epoch: int = -1,
        ablate_only_roles: Sequence[str] = (),
    ) -> Restore.Response:
        """Make a capsule's state the live state."""
        request = Restore.Request(
            capsule=capsule,
            motion=int(motion),
            expected_boundary=expected_boundary,
            expected_epoch=expected_epoch,
            ablate_only_roles=list(ablate_only_roles),
        )
        return self._verb(Restore, "capsule/restore", request)

    def rollback(
        self,
        *,
        count: int = 0,
        boundary: int = -1,
        name: str = "",
        nearest: bool = False,
        motion: Motion = Motion.REPLAN,
        expected_boundary: int = -1,
    ) -> Rollback.Response:
        """Go back along the lineage, by count, boundary number or capsule name."""
        request = Rollback.Request(
            count=count,
            boundary=boundary,
            name=name,
            nearest=nearest,
            motion=int(motion),
            expected_boundary=expected_boundary,
        )
        return self._verb(Rollback, "capsule/rollback", request)

    def list(self, *, name_prefix: str = "", unnamed: bool = False) -> ListCapsules.Response:
        """List capsules, oldest boundary first."""
        request = ListCapsules.Request(name_prefix=name_prefix, include_unnamed=unnamed)
        return self._verb(ListCapsules, "capsule/list", request)

    def delete(self, capsule: str) -> DeleteCapsule.Response:
        """Delete a capsule."""
        return self._verb(DeleteCapsule, "capsule/delete", DeleteCapsule.Request(capsule=capsule))

    def move(self, capsule: str, tier: str) -> MoveCapsule.Response:
        """Move a capsule to a tier: device, host or disk."""
        request = MoveCapsule.Request(capsule=capsule, tier=tier)
        return self._verb(MoveCapsule, "capsule/move", request)

    def interrupt(self, *, expected_boundary: int = -1) -> Verb.Response:
        """Stop ticking and hold the arm."""
        request = Verb.Request(motion=int(Motion.HOLD), expected_boundary=expected_boundary)
        return self._verb(Verb, "interrupt", request)

    def resume(self, motion: Motion = Motion.UNCHANGED) -> Verb.Response:
        """End a hold."""
        return self._verb(Verb, "resume", Verb.Request(motion=int(motion)))

    def reset(self, motion: Motion = Motion.REPLAN) -> Verb.Response:
        """Back to the first boundary."""
        return self._verb(Verb, "capsule/reset", Verb.Request(motion=int(motion)))

    def set_instruction(self, instruction: str) -> SetInstruction.Response:
        """Change the instruction from the next tick on."""
        request = SetInstruction.Request(instruction=instruction)
        return self._verb(SetInstruction, "set_instruction", request)

    def _verb(self, kind: Any, name: str, request: Any) -> Any:
        response = self._caller.call(kind, f"{self._policy}/{name}", request)
        if not response.success:
            raise VerbRefused(name, response)
        return response

    def _on_status(self, message: RuntimeStatus) -> None:
        with self._changed:
            self._status = message
            self._changed.notify_all()


@contextmanager
def spinning(name: str, **options: Any) -> Iterator[Node]:
    """A node that a thread of its own spins until the block ends."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = Node(name, context=context, **options)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    thread = threading.Thread(target=executor.spin, name=f"spin-{name}", daemon=True)
    thread.start()
    try:
        yield node
    finally:
        executor.shutdown()
        thread.join(5.0)
        node.destroy_node()
        rclpy.shutdown(context=context)
