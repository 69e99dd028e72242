# SPDX-License-Identifier: Apache-2.0
"""`flashrt record`: a bag that can be replayed bit for bit, of a policy node that runs."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rosbags.rosbag2 import StoragePlugin, WriterError

from flashrt_ros.msg import ActionChunk, Boundary, RunInfo, RuntimeStatus
from flashrt_ros.replay.capsule_keeper import CapsuleKeeper
from flashrt_ros.replay.recorder import BagRecorder, Topic, message_class, type_name
from flashrt_ros.replay.shelf import BESIDE

RECORDED, REFUSED = 0, 2
"""Exit statuses."""
_LATCHED = QoSProfile(
    depth=10,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


class CannotRecord(Exception):
    """What is missing; the message names it."""


def main(arguments: Sequence[str], program: str = "flashrt record") -> int:
    """Record until SIGINT or SIGTERM; returns the exit status."""
    options, ros = _parse(arguments, program)
    ending = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ending.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    # rclpy's own handlers would end the context before the last messages are here.
    rclpy.init(args=["flashrt", *ros], signal_handler_options=SignalHandlerOptions.NO)
    try:
        with _spun(Node("flashrt_recorder")) as node:
            _record(node, options, ending)
    except (CannotRecord, WriterError, OSError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return REFUSED
    finally:
        rclpy.try_shutdown()
    return RECORDED


def policy_topics(node: Node, policy: str, info: RunInfo) -> list[Topic]:
    """What a replay of a policy node needs, and what it sends.

    Args:
        node: sees the graph.
        policy: full name of the policy node.
        info: its run info, which names its inputs.
    """
    found = {
        f"{policy}/run_info": Topic(f"{policy}/run_info", RunInfo, latched=True),
        f"{policy}/boundary": Topic(f"{policy}/boundary", Boundary),
        f"{policy}/action_chunk": Topic(f"{policy}/action_chunk", ActionChunk),
        f"{policy}/status": Topic(f"{policy}/status", RuntimeStatus, latched=True),
    }
    for topic, kind in zip(info.input_topics, info.input_types, strict=True):
        found[topic] = _input(node, topic, message_class(kind))
    namespace, _, name = policy.rpartition("/")
    for topic, kinds in node.get_publisher_names_and_types_by_node(name, namespace or "/"):
        plain = not topic.startswith(f"{policy}/") and topic not in ("/rosout", "/parameter_events")
        if plain and topic not in found and "/msg/" in kinds[0]:
            found[topic] = Topic(topic, message_class(kinds[0]), reliable=False)
    return list(found.values())


def wait_for_run_info(
    node: Node, policy: str | None, timeout: float, cancelled: Callable[[], bool]
) -> tuple[str, RunInfo]:
    """The full name of the policy node and what it said of its run.

    Args:
        policy: its name; None: the one that there is.

    Raises:
        CannotRecord: there is none within `timeout` s, or there are several.
    """
    deadline = time.monotonic() + timeout
    name = None if policy is None else node.resolve_topic_name(policy)
    while name is None:
        names = sorted(
            topic.removesuffix("/run_info")
            for topic, kinds in node.get_topic_names_and_types()
            if type_name(RunInfo) in kinds and topic.endswith("/run_info")
        )
        if len(names) == 1:
            name = names[0]
        elif names:
            raise CannotRecord(f"there are {len(names)} policy nodes ({', '.join(names)}): --node")
        elif time.monotonic() > deadline or cancelled():
            raise CannotRecord(f"no policy node was configured within {timeout:.0f} s")
        else:
            time.sleep(0.1)
    arrived: list[RunInfo] = []
    subscription = node.create_subscription(RunInfo, f"{name}/run_info", arrived.append, _LATCHED)
    try:
        while not arrived:
            if time.monotonic() > deadline or cancelled():
                raise CannotRecord(f"{name} did not say what it runs within {timeout:.0f} s")
            time.sleep(0.05)
        return name, arrived[-1]
    finally:
        node.destroy_subscription(subscription)


def _record(node: Node, options: argparse.Namespace, ending: threading.Event) -> None:
    policy, info = wait_for_run_info(node, options.node, options.wait, ending.is_set)
    try:
        topics = policy_topics(node, policy, info)
        topics += [_extra(node, name) for name in options.topics]
    except (ModuleNotFoundError, AttributeError) as error:
        raise CannotRecord(f"a message type is not installed here: {error}") from error
    recorder = BagRecorder(
        node,
        options.out,
        topics,
        storage=StoragePlugin.MCAP if options.storage == "mcap" else StoragePlugin.SQLITE3,
        compressed=options.compress,
    )
    keeper = None
    try:
        if options.capsules_every:
            keeper = CapsuleKeeper(node, policy, info, options.capsules_every)
        sys.stderr.write(
            f"recording {len(topics)} topics of {policy} to {options.out}; end with Ctrl-C\n"
        )
        ending.wait()
        recorder.drain()
    finally:
        recorder.close()
        if keeper is not None:
            kept = keeper.close(options.out / BESIDE)
            sys.stderr.write(f"{kept} capsules in {options.out / BESIDE}\n")
    counts = ", ".join(f"{name} {count}" for name, count in sorted(recorder.counts.items()))
    sys.stderr.write(f"wrote {options.out}: {counts or 'nothing'}\n")


def _input(node: Node, topic: str, kind: Any) -> Topic:
    """Reliable if every publisher is: what the policy got must be in the bag."""
    offers = node.get_publishers_info_by_topic(topic)
    reliable = bool(offers) and all(
        offer.qos_profile.reliability == ReliabilityPolicy.RELIABLE for offer in offers
    )
    return Topic(topic, kind, reliable=reliable)


def _extra(node: Node, topic: str) -> Topic:
    name = node.resolve_topic_name(topic)
    kinds = dict(node.get_topic_names_and_types()).get(name)
    if not kinds:
        raise CannotRecord(f"nobody publishes {name}: its type is not known")
    return Topic(name, message_class(kinds[0]), reliable=False)


def _parse(arguments: Sequence[str], program: str) -> tuple[argparse.Namespace, list[str]]:
    given = list(arguments)
    cut = given.index("--ros-args") if "--ros-args" in given else len(given)
    parser = argparse.ArgumentParser(
        prog=program,
        description="Records what a replay bit for bit needs of a policy node, until Ctrl-C. "
        "See docs/replay.md. ROS arguments (remappings, namespace) follow --ros-args.",
    )
    parser.add_argument("out", type=Path, help="folder of the bag; it must not exist")
    parser.add_argument("--node", help="name of the policy node (default: the one that there is)")
    parser.add_argument("--topics", nargs="*", default=[], help="others to record as well")
    parser.add_argument("--storage", choices=("mcap", "sqlite3"), default="mcap")
    parser.add_argument("--compress", action="store_true", help="with zstd")
    parser.add_argument(
        "--capsules-every", type=int, default=0, metavar="N",
        help="a capsule beside the bag every so many ticks, to jump to (0: none)",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=float, default=60.0, metavar="S", help="for the policy node (default 60 s)"
    )
    options = parser.parse_args(given[:cut])
    if options.capsules_every < 0:
        parser.error(f"--capsules-every is {options.capsules_every}, expected 0 or more")
    if options.out.exists():
        parser.error(f"{options.out} exists already")
    return options, given[cut:]


@contextmanager
def _spun(node: Node) -> Iterator[Node]:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    thread = threading.Thread(target=executor.spin, name="recorder", daemon=True)
    thread.start()
    try:
        yield node
    finally:
        executor.shutdown()
        thread.join(5.0)
        node.destroy_node()
