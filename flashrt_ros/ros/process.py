# SPDX-License-Identifier: Apache-2.0
"""Runs nodes in a process: signals end it in order, with every arm held."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

import rclpy
from rclpy.executors import Executor, MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

_PATIENCE = 2.0  # s, for the last answers
_LAST_HOLD = 0.5  # s a node, when the process does not end in order

INSIST_AFTER = 6.0
"""s from a signal to the end of the process, whatever still runs; `ros2 launch` kills after 10."""


class Ending:
    """Set by SIGINT and SIGTERM. A configure under way gives up at its next stage."""

    def __init__(self) -> None:
        self._asked = False
        self._nodes: Sequence[Node] = ()

    def __bool__(self) -> bool:
        return self._asked

    def watch(self) -> None:
        """Take the signals over.

        rclpy's own handlers would shut the context down first, and a last hold could not be sent.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def tell(self, nodes: Sequence[Node]) -> None:
        """Nodes that are told to give up a configure."""
        self._nodes = nodes

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Attributes alone: a lock could be held by the very code that the handler interrupts.
        self._asked = True
        for node in self._nodes:
            setattr(node, "abandoned", True)  # noqa: B010 - a node that has no configure ignores it


def run_node(make: Callable[[], Node], args: list[str] | None, threads: int) -> int:
    """Spin a node until SIGINT or SIGTERM, then `stop()` it while it can still publish.

    Prefer one thread. rclpy's executor with several spins while a callback of a mutually exclusive
    group runs and another one of it is ready, and every thread of the process waits for the
    interpreter's lock meanwhile: ticks took ten times as long.

    Returns:
        The exit status of the process: 0 after a signal, 1 when the node could not be made.
    """
    return run_nodes(lambda: [make()], args, threads)


def run_nodes(make: Callable[[], Sequence[Node]], args: list[str] | None, threads: int = 1) -> int:
    """Spin nodes until SIGINT or SIGTERM, each with an executor and threads of its own.

    So one that is configured or waits for a verb holds up no callback of another. When the process
    is to end, every arm is held before anything is freed.

    Returns:
        The exit status of the process: 0 after a signal, 1 when a node could not be made.
    """
    ending = Ending()
    ending.watch()
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        nodes = list(make())
    except Exception as error:
        sys.stderr.write(f"{os.path.basename(sys.argv[0])}: {error}\n")
        rclpy.try_shutdown()
        return 1
    ending.tell(nodes)
    threading.Thread(target=_insist, args=(ending, nodes), name="ending", daemon=True).start()
    executors = [_executor_of(node, threads) for node in nodes]
    spinners = [
        threading.Thread(target=_spin, args=(node, executor, ending), name=node.get_name())
        for node, executor in zip(nodes, executors, strict=True)
    ]
    try:
        if len(nodes) == 1:
            _spin(nodes[0], executors[0], ending)
        else:
            for spinner in spinners:
                spinner.start()
            while not ending:
                time.sleep(0.05)
    finally:
        _end(nodes, executors, [spinner for spinner in spinners if spinner.ident is not None])
    return 0


def leave(status: int) -> NoReturn:
    """End the process, with nothing left to do but the interpreter's own teardown.

    With torch loaded that takes seconds of a core, in which a launch system would kill it.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _executor_of(node: Node, threads: int) -> Executor:
    executor: Executor = SingleThreadedExecutor()
    if threads > 1:
        executor = MultiThreadedExecutor(num_threads=threads)
    executor.add_node(node)
    return executor


def _spin(node: Node, executor: Executor, ending: Ending) -> None:
    """A callback that raises is logged, and the node goes on."""
    while not ending:
        try:
            executor.spin_once(timeout_sec=0.1)
        except Exception:
            node.get_logger().error(
                f"callback failed:\n{traceback.format_exc()}", throttle_duration_sec=1.0
            )


def _insist(ending: Ending, nodes: Sequence[Node]) -> None:
    """End the process, with arms held, when a callback does not return: a model that is loaded."""
    while not ending:
        time.sleep(0.5)
    time.sleep(INSIST_AFTER)
    for node in nodes:  # each was held before, if its hold could be sent at all: only once more
        last = threading.Thread(target=_call, args=(node, "hold"), daemon=True)
        last.start()
        last.join(_LAST_HOLD)
    leave(0)


def _end(
    nodes: Sequence[Node], executors: Sequence[Executor], spinners: Sequence[threading.Thread]
) -> None:
    for node in nodes:
        _call(node, "hold")
    for spinner in spinners:  # of a node that still answers a call or configures
        spinner.join()
    for node in nodes:
        _call(node, "stop")
    for executor, node in zip(executors, nodes, strict=True):
        _answer(node, executor)
        executor.shutdown()
        node.destroy_node()
    rclpy.try_shutdown()


def _answer(node: Node, executor: Executor) -> None:
    """Let the calls that the node's end has settled have their answers."""
    deadline = time.monotonic() + _PATIENCE
    while getattr(node, "answering", 0) and time.monotonic() < deadline:
        executor.spin_once(timeout_sec=0.05)


def _call(node: Node, name: str) -> None:
    """`hold` or `stop` of a node that has it."""
    action = getattr(node, name, None)
    if action is not None:
        action()
