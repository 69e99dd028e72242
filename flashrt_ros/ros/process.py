# SPDX-License-Identifier: Apache-2.0
"""Runs one node in a process: signals end it in order, with the arm held."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable
from types import FrameType

import rclpy
from rclpy.executors import Executor, MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions


def run_node(make: Callable[[], Node], args: list[str] | None, threads: int) -> int:
    """Spin a node until SIGINT or SIGTERM, then `stop()` it while it can still publish.

    Prefer one thread. rclpy's executor with several spins while a callback of a mutually exclusive
    group runs and another one of it is ready, and every thread of the process waits for the
    interpreter's lock meanwhile: ticks took ten times as long.

    rclpy's own handlers would shut the context down first, and a last hold could not be sent.

    Returns:
        The exit status of the process: 0 after a signal.
    """
    ending = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ending.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    node = make()
    executor: Executor = SingleThreadedExecutor()
    if threads > 1:
        executor = MultiThreadedExecutor(num_threads=threads)
    executor.add_node(node)
    try:
        while not ending.is_set():
            try:
                executor.spin_once(timeout_sec=0.1)
            except Exception:
                node.get_logger().error(f"callback failed:\n{traceback.format_exc()}")
    finally:
        stop = getattr(node, "stop", None)
        if stop is not None:
            stop()
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
    return 0
