# SPDX-License-Identifier: Apache-2.0
"""Calls of services from any thread, and what a refused one raises."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import rclpy
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

from flashrt_ros.runtime.errors import Code

T = TypeVar("T")
_LOOK_AGAIN = 0.02  # s


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


class Answer(Generic[T]):
    """An answer that may still be on its way.

    `await` it in asyncio, or `result()` it in a thread that does not spin the node.
    """

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether it has come."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> T:
        """Wait for it; raises what the call raised, or TimeoutError."""
        try:
            return self._future.result(timeout)
        except FutureTimeout:
            raise TimeoutError(f"no answer within {timeout} s") from None

    def add_done_callback(self, callback: Callable[[Answer[T]], None]) -> None:
        """Call `callback(self)` when it has come, on the thread that brought it."""
        self._future.add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self._future).__await__()


class ServiceCaller:
    """Calls for threads that don't spin the node themselves. Thread-safe.

    Args:
        node: spun by another thread.
        timeout: longest wait for a server and for its answer, s.
    """

    def __init__(self, node: Node, timeout: float = 10.0) -> None:
        self._node = node
        self._timeout = timeout
        self._group = ReentrantCallbackGroup()
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def client(self, kind: Any, name: str) -> Any:
        """The client of a service, made when it is first asked for."""
        with self._lock:
            client = self._clients.get(name)
            if client is None:
                client = self._node.create_client(kind, name, callback_group=self._group)
                self._clients[name] = client
            return client

    def send(self, kind: Any, name: str, request: Any) -> Future[Any]:
        """Send a request to a server that is there; its answer.

        Raises:
            TimeoutError: no server is known.
        """
        client = self.client(kind, name)
        if not client.service_is_ready():
            raise TimeoutError(f"no server for {client.srv_name} is known yet: wait for one first")
        answer: Future[Any] = Future()
        client.call_async(request).add_done_callback(lambda done: answer.set_result(done.result()))
        return answer

    def call(self, kind: Any, name: str, request: Any) -> Any:
        """Call a service and wait for the answer.

        Raises:
            TimeoutError: no server, or no answer in time.
        """
        client = self.client(kind, name)
        self.wait_for_server(kind, name)
        answered = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(self._timeout):
            client.remove_pending_request(future)
            raise TimeoutError(f"{client.srv_name} did not answer within {self._timeout} s")
        return future.result()

    def wait_for_server(self, kind: Any, name: str) -> None:
        """Wait until a server is there.

        Raises:
            TimeoutError: none in time.
        """
        client = self.client(kind, name)
        deadline = time.monotonic() + self._timeout
        while not client.service_is_ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no server for {client.srv_name} within {self._timeout} s")
            time.sleep(_LOOK_AGAIN)

    def close(self) -> None:
        """Remove the clients from the node."""
        with self._lock:
            for client in self._clients.values():
                self._node.destroy_client(client)
            self._clients.clear()


@contextmanager
def spinning(name: str, **options: Any) -> Iterator[Node]:
    """A node that a thread of its own spins until the block ends."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = Node(name, context=context, **options)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    ending = threading.Event()

    def spin() -> None:
        # A callback that raises is told of and ends neither the thread nor what others wait for.
        while not ending.is_set():
            try:
                executor.spin_once(timeout_sec=0.1)
            except ExternalShutdownException:
                return
            except Exception:
                if not ending.is_set():
                    node.get_logger().error(f"callback failed:\n{traceback.format_exc()}")

    thread = threading.Thread(target=spin, name=f"spin-{name}", daemon=True)
    thread.start()
    try:
        yield node
    finally:
        ending.set()
        executor.wake()
        thread.join(5.0)
        executor.shutdown()
        node.destroy_node()
        rclpy.shutdown(context=context)
