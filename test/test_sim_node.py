# SPDX-License-Identifier: Apache-2.0
"""The simulated arm's node, in its own process, over DDS."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

rclpy = pytest.importorskip("rclpy", reason="needs ROS 2")

from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy  # noqa: E402
from rclpy.time import Time  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import Image, JointState  # noqa: E402
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint  # noqa: E402

from flashrt_ros.msg import SimState  # noqa: E402
from flashrt_ros.sim.messages import read_command  # noqa: E402
from flashrt_ros.sim.scene import COLOURS, CONTROL_NS, HOME, JOINT_NAMES, TICK_NS  # noqa: E402
from flashrt_ros.sim.world import ArmWorld, SimObservation  # noqa: E402
from flashrt_ros.srv import SimGrant, SimLamp, SimReset, SimWorld  # noqa: E402

PATIENCE = 30.0  # s until a test gives up waiting; no test measures time by it
QUIET = 0.3  # s in which a message that must not come would have come
RELIABLE = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
LATCHED = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


@contextmanager
def sim_process(*parameters: str, namespace: str) -> Iterator[subprocess.Popen[str]]:
    """sim_arm_node with parameters such as "mode:=lockstep"; ended by SIGINT."""
    command = [sys.executable, "-m", "flashrt_ros.sim.node", "--ros-args"]
    command += ["-r", f"__ns:={namespace}", "-r", f"/clock:={namespace}/clock"]
    for parameter in parameters:
        command += ["-p", parameter]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


class Peer:
    """The other end: a policy's and a planner's view of the simulated arm."""

    def __init__(self, namespace: str) -> None:
        self.node = rclpy.create_node("peer", namespace=namespace)
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.images: list[Image] = []
        self.joints: list[JointState] = []
        self.clocks: list[int] = []
        self.states: list[SimState] = []
        self.subscribe()
        self.node.create_subscription(
            Clock,
            f"{namespace}/clock",
            lambda message: self.clocks.append(Time.from_msg(message.clock).nanoseconds),
            10,
        )
        self.node.create_subscription(SimState, "sim_arm_node/state", self.states.append, LATCHED)
        self.commands = self.node.create_publisher(JointTrajectory, "joint_trajectory", RELIABLE)
        self.clients = {
            name: self.node.create_client(kind, f"sim_arm_node/{name}")
            for name, kind in (
                ("reset", SimReset),
                ("grant", SimGrant),
                ("lamp", SimLamp),
                ("world", SimWorld),
            )
        }

    def subscribe(self) -> None:
        self.image_subscription = self.node.create_subscription(
            Image, "camera/image_raw", self.images.append, RELIABLE
        )
        self.joint_subscription = self.node.create_subscription(
            JointState, "joint_states", self.joints.append, RELIABLE
        )

    def unsubscribe(self) -> None:
        self.node.destroy_subscription(self.image_subscription)
        self.node.destroy_subscription(self.joint_subscription)

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Spin until a condition holds."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if result := condition():
                return result
            self.executor.spin_once(timeout_sec=0.05)
        raise AssertionError(f"{what} did not come within {PATIENCE} s")

    def quiet(self, seconds: float = QUIET) -> None:
        """Let everything that is under way arrive."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.executor.spin_once(timeout_sec=0.02)

    def call(self, name: str, **fields: Any) -> Any:
        client = self.clients[name]
        self.until(client.service_is_ready, f"service {name}")
        future = client.call_async(client.srv_type.Request(**fields))
        self.until(future.done, f"answer of {name}")
        return future.result()

    def connect(self) -> None:
        """Wait until commands and observations have both their ends."""
        self.until(self.commands.get_subscription_count, "the command's subscription")
        self.until(
            lambda: (
                self.node.count_publishers(self.image_subscription.topic_name)
                and self.node.count_publishers(self.joint_subscription.topic_name)
            ),
            "the observation's publishers",
        )
        for name, client in self.clients.items():
            self.until(client.service_is_ready, f"service {name}")

    def begin(self, seed: int, lamp_colour: str = "") -> None:
        """A paused new episode, with nothing received yet."""
        assert self.call("grant", ticks=0).success
        assert self.call("reset", seed=seed, lamp_colour=lamp_colour).success
        self.quiet(0.1)
        self.forget()

    def forget(self) -> None:
        self.images.clear()
        self.joints.clear()
        self.clocks.clear()

    def observation(self, after_ns: int = 0) -> tuple[int, bytes, tuple[float, ...]]:
        """The next pair of image and joint state: stamp, pixels, positions.

        One that is not later than after_ns is skipped: on a slow machine an observation may have
        been published again before its answer arrived.
        """
        while True:
            self.until(lambda: self.images and self.joints, "an observation")
            image, joints = self.images.pop(0), self.joints.pop(0)
            assert image.header.stamp == joints.header.stamp
            if stamp_of(image) > after_ns:
                return stamp_of(image), bytes(image.data), tuple(joints.position)

    def send(self, stamp_ns: int, positions: np.ndarray, **changes: Any) -> None:
        self.commands.publish(trajectory(stamp_ns, positions, **changes))


def distance(peer: Peer, goal: np.ndarray) -> float:
    """How far the newest joint state is from the goal, rad, the joint that is farthest."""
    return float(np.abs(np.array(peer.joints[-1].position) - goal).max())


def stamp_of(message: Any) -> int:
    return Time.from_msg(message.header.stamp).nanoseconds


def trajectory(
    stamp_ns: int,
    positions: np.ndarray,
    *,
    names: tuple[str, ...] = JOINT_NAMES,
    times: tuple[float, ...] = (0.1, 0.2),
) -> JointTrajectory:
    """A command that reaches positions, [joints], at the first time and stays."""
    message = JointTrajectory(joint_names=list(names))
    message.header.stamp = Time(nanoseconds=stamp_ns).to_msg()
    for seconds in times:
        point = JointTrajectoryPoint(positions=[float(value) for value in positions])
        point.time_from_start.sec = int(seconds // 1)
        point.time_from_start.nanosec = round(seconds % 1 * 1e9)
        message.points.append(point)
    return message


def target(tick: int) -> np.ndarray:
    """Some motion, another one each tick."""
    return HOME + 0.05 * np.sin(0.7 * tick + np.arange(5))


def expected_run(seed: int, ticks: int) -> list[tuple[bytes, tuple[float, ...]]]:
    """The same episode in the world alone, without ROS."""
    world = ArmWorld(seed)
    run = []
    for tick in range(ticks):
        observation: SimObservation = world.observe()
        run.append((observation.image.tobytes(), tuple(observation.positions)))
        world.command(world.time_ns, np.array([0.1, 0.2]), np.tile(target(tick), (2, 1)))
        world.advance_tick()
    return run


def drive(peer: Peer, ticks: int, first: int = 0) -> list[tuple[bytes, tuple[float, ...]]]:
    run = []
    stamp = 0
    for tick in range(first, first + ticks):
        stamp, image, positions = peer.observation(stamp)
        run.append((image, positions))
        peer.send(stamp, target(tick))
    return run


@pytest.fixture(scope="module")
def ros() -> Iterator[None]:
    rclpy.init()
    yield
    rclpy.try_shutdown()


@pytest.fixture(scope="module")
def lockstep(ros: None) -> Iterator[Peer]:
    with sim_process(
        "mode:=lockstep", "republish_period:=0.2", "command_timeout:=0.3", namespace="/lockstep"
    ) as process:
        peer = Peer("/lockstep")
        peer.connect()
        yield peer
        assert process.poll() is None, "the node ended during the tests"
        peer.close()


@pytest.fixture(scope="module")
def realtime(ros: None) -> Iterator[Peer]:
    with sim_process("mode:=realtime", "seed:=3", namespace="/realtime") as process:
        peer = Peer("/realtime")
        peer.connect()
        yield peer
        assert process.poll() is None, "the node ended during the tests"
        peer.close()


# -- lockstep --------------------------------------------------------------------------------


def test_no_observation_comes_before_a_tick_is_granted(lockstep: Peer) -> None:
    lockstep.begin(seed=1)
    lockstep.quiet()
    assert not lockstep.images
    assert not lockstep.joints


def test_a_grant_gives_as_many_observations_as_ticks(lockstep: Peer) -> None:
    lockstep.begin(seed=1)
    lockstep.call("grant", ticks=3)
    drive(lockstep, ticks=3)
    lockstep.until(lambda: lockstep.states[-1].tick == 3, "the third tick")
    lockstep.forget()
    lockstep.quiet()
    assert not lockstep.images
    assert lockstep.states[-1].ticks_granted == 0


def test_a_run_over_dds_equals_the_world_alone_bit_for_bit(lockstep: Peer) -> None:
    expected = expected_run(seed=7, ticks=12)
    for _ in range(2):
        lockstep.begin(seed=7)
        lockstep.call("grant", ticks=12)
        assert drive(lockstep, ticks=12) == expected


def test_the_clock_is_the_stamp_of_the_observation(lockstep: Peer) -> None:
    lockstep.begin(seed=1)
    lockstep.call("grant", ticks=1)
    stamp, _, _ = lockstep.observation()
    assert stamp > 0, "a zero stamp means 'no time yet' in ROS"
    lockstep.until(lambda: stamp in lockstep.clocks, "the clock")


def test_only_the_pending_observations_command_lets_time_pass(lockstep: Peer) -> None:
    lockstep.begin(seed=1)
    lockstep.call("grant", ticks=2)
    stamp, _, _ = lockstep.observation()
    for wrong in (stamp - TICK_NS, stamp + TICK_NS, stamp + 1, 0):
        lockstep.send(wrong, HOME)
    lockstep.quiet()
    assert lockstep.states[-1].tick == 0
    lockstep.send(stamp, HOME)
    lockstep.until(lambda: lockstep.states[-1].tick == 1, "the tick")


def test_an_observation_without_an_answer_comes_again_unchanged(lockstep: Peer) -> None:
    lockstep.begin(seed=2)
    lockstep.unsubscribe()
    lockstep.call("grant", ticks=1)
    lockstep.quiet()
    lockstep.subscribe()
    first = lockstep.observation()
    second = lockstep.observation()
    assert first == second


def test_two_answers_to_a_repeated_observation_count_once(lockstep: Peer) -> None:
    lockstep.begin(seed=2)
    lockstep.call("grant", ticks=5)
    stamp, _, _ = lockstep.observation()
    lockstep.send(stamp, HOME)
    lockstep.send(stamp, HOME + 0.3)
    lockstep.until(lambda: lockstep.states[-1].tick == 1, "the tick")
    lockstep.quiet()
    assert lockstep.states[-1].tick == 1


def test_joints_are_taken_by_name(lockstep: Peer) -> None:
    lockstep.begin(seed=7)
    lockstep.call("grant", ticks=2)
    stamp, _, _ = lockstep.observation()
    lockstep.send(stamp, target(0)[::-1], names=JOINT_NAMES[::-1])
    _, image, positions = lockstep.observation(stamp)
    assert (image, positions) == expected_run(seed=7, ticks=2)[1]


BAD_COMMANDS = {
    "a position that is not a number": {"positions": HOME * np.nan},
    "an infinite position": {"positions": np.array([0, 0, 0, np.inf, 0])},
    "a joint missing": {"names": JOINT_NAMES[:4], "positions": HOME[:4]},
    "an unknown joint": {"names": (*JOINT_NAMES[:4], "gripper")},
    "a joint twice": {"names": (*JOINT_NAMES[:4], JOINT_NAMES[0])},
    "fewer positions than joints": {"positions": HOME[:3]},
    "no points": {"times": ()},
    "times that stand still": {"times": (0.1, 0.1)},
    "times that go back": {"times": (0.2, 0.1)},
    "a time before the start": {"times": (-0.1, 0.1)},
}


@pytest.mark.parametrize("fault", BAD_COMMANDS)
def test_a_bad_command_is_refused_and_the_tick_waits(lockstep: Peer, fault: str) -> None:
    lockstep.begin(seed=7)
    lockstep.call("grant", ticks=2)
    stamp, _, _ = lockstep.observation()
    lockstep.send(stamp, **{"positions": HOME, **BAD_COMMANDS[fault]})
    lockstep.quiet()
    assert lockstep.states[-1].tick == 0
    lockstep.send(stamp, target(0))
    assert lockstep.observation(stamp)[1:] == expected_run(seed=7, ticks=2)[1]


def test_a_pause_lets_the_pending_tick_end(lockstep: Peer) -> None:
    lockstep.begin(seed=1)
    lockstep.call("grant", ticks=-1)
    stamp, _, _ = lockstep.observation()
    assert lockstep.call("grant", ticks=0).success
    lockstep.send(stamp, HOME)
    lockstep.until(lambda: lockstep.states[-1].tick == 1, "the tick")
    lockstep.forget()
    lockstep.quiet()
    assert not lockstep.images


def test_a_reset_makes_the_pending_observations_answer_void(lockstep: Peer) -> None:
    lockstep.begin(seed=1)
    lockstep.call("grant", ticks=-1)
    old, _, _ = lockstep.observation()
    assert lockstep.call("reset", seed=5).success
    lockstep.until(lambda: lockstep.states[-1].seed == 5, "the new episode")
    lockstep.send(old, HOME)
    lockstep.quiet()
    assert lockstep.states[-1].tick == 0
    assert lockstep.observation(old)[1:] == expected_run(seed=5, ticks=1)[0]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_reset_can_force_the_cue(lockstep: Peer, colour: str) -> None:
    lockstep.begin(seed=1)
    answer = lockstep.call("reset", seed=9, lamp_colour=colour)
    assert (answer.success, answer.cue) == (True, colour)
    lockstep.until(lambda: lockstep.states[-1].seed == 9, "the new episode")
    assert lockstep.states[-1].lamp == colour


def test_a_reset_with_an_unknown_colour_changes_nothing(lockstep: Peer) -> None:
    lockstep.begin(seed=7)
    lockstep.call("grant", ticks=-1)
    stamp, _, _ = lockstep.observation()
    answer = lockstep.call("reset", seed=9, lamp_colour="mauve")
    assert not answer.success
    assert "mauve" in answer.message
    lockstep.forget()
    assert lockstep.observation()[0] == stamp
    lockstep.send(stamp, target(0))
    lockstep.until(lambda: lockstep.states[-1].tick == 1, "the tick")
    assert lockstep.states[-1].seed == 7


def test_a_world_put_back_continues_bit_for_bit(lockstep: Peer) -> None:
    expected = expected_run(seed=11, ticks=8)
    lockstep.begin(seed=11)
    lockstep.call("grant", ticks=4)
    drive(lockstep, ticks=4)
    lockstep.until(lambda: lockstep.states[-1].tick == 4, "the fourth tick")
    assert lockstep.call("world", slot="before", load=False).tick == 4
    for _ in range(2):
        lockstep.call("grant", ticks=4)
        assert drive(lockstep, ticks=4, first=4) == expected[4:]
        lockstep.until(lambda: lockstep.states[-1].tick == 8, "the eighth tick")
        answer = lockstep.call("world", slot="before", load=True)
        assert (answer.success, answer.tick) == (True, 4)


def test_an_unknown_world_is_refused_with_what_there_is(lockstep: Peer) -> None:
    lockstep.begin(seed=1)
    lockstep.call("world", slot="kept", load=False)
    answer = lockstep.call("world", slot="lost", load=True)
    assert not answer.success
    assert "'lost'" in answer.message
    assert "kept" in answer.message
    assert not lockstep.call("world", slot="", load=False).success


def test_the_lamp_lights_for_as_long_as_asked(lockstep: Peer) -> None:
    lockstep.begin(seed=1)
    lockstep.call("grant", ticks=12)
    drive(lockstep, ticks=12)  # the episode's own cue is over
    lockstep.until(lambda: lockstep.states[-1].tick == 12, "the twelfth tick")
    assert lockstep.states[-1].lamp == "dark"
    assert lockstep.call("lamp", colour="blue", ticks=2).success
    lamps = []
    for tick in range(12, 16):
        lockstep.call("grant", ticks=1)
        drive(lockstep, ticks=1, first=tick)
        lockstep.until(lambda tick=tick: lockstep.states[-1].tick == tick + 1, "the tick")
        lamps.append(lockstep.states[-1].lamp)
    assert lamps == ["blue", "blue", "dark", "dark"]
    assert lockstep.states[-1].last_cue == "blue"


@pytest.mark.parametrize(("colour", "ticks"), [("mauve", 3), ("red", 0)])
def test_a_lamp_request_that_cannot_be_meant_is_refused(
    lockstep: Peer, colour: str, ticks: int
) -> None:
    answer = lockstep.call("lamp", colour=colour, ticks=ticks)
    assert not answer.success
    assert (colour if ticks else "ticks is 0") in answer.message


def test_a_grant_below_minus_one_is_refused(lockstep: Peer) -> None:
    lockstep.begin(seed=1)
    answer = lockstep.call("grant", ticks=-2)
    assert not answer.success
    assert "-2" in answer.message
    lockstep.quiet()
    assert not lockstep.images


# -- real time -------------------------------------------------------------------------------


def test_realtime_stamps_follow_the_rates(realtime: Peer) -> None:
    realtime.forget()
    realtime.until(lambda: len(realtime.images) >= 4, "four images")
    last = stamp_of(realtime.images[-1])
    realtime.until(lambda: stamp_of(realtime.joints[-1]) >= last, "its joint state")
    joints = [stamp_of(message) for message in realtime.joints]
    images = [stamp_of(message) for message in realtime.images]
    assert set(np.diff(joints)) == {CONTROL_NS}
    assert set(np.diff(images)) == {TICK_NS}
    assert set(images[1:]) <= set(joints)
    assert realtime.images[0].encoding == "rgb8"
    assert realtime.images[0].step == 64 * 3
    assert realtime.images[0].header.frame_id == "camera_optical_frame"


def test_realtime_follows_a_trajectory_and_holds_its_end(realtime: Peer) -> None:
    goal = HOME + np.array([0.3, 0.1, -0.1, 0.1, 0.2])
    realtime.send(0, goal, times=(0.5,))
    realtime.until(
        lambda: realtime.joints and distance(realtime, goal) < 0.02,
        "the goal",
    )
    realtime.forget()
    realtime.until(lambda: len(realtime.joints) >= 10, "ten joint states")
    assert distance(realtime, goal) < 0.02


def test_realtime_refuses_a_trajectory_that_is_over(realtime: Peer) -> None:
    realtime.send(0, HOME, times=(0.5,))
    realtime.until(lambda: realtime.joints and distance(realtime, HOME) < 0.02, "home")
    realtime.send(realtime.clocks[-1] - 5 * TICK_NS, HOME + 0.5)
    realtime.forget()
    realtime.until(lambda: len(realtime.joints) >= 10, "ten joint states")
    assert distance(realtime, HOME) < 0.02


def test_a_trajectory_stamped_with_another_clock_is_refused() -> None:
    wall_clock_ns = 1_700_000_000 * 1_000_000_000
    with pytest.raises(ValueError, match="use_sim_time"):
        read_command(trajectory(wall_clock_ns, HOME), JOINT_NAMES, now_ns=TICK_NS)


def test_realtime_grants_nothing(realtime: Peer) -> None:
    answer = realtime.call("grant", ticks=3)
    assert not answer.success
    assert "lockstep" in answer.message


def test_realtime_reset_starts_a_new_episode(realtime: Peer) -> None:
    assert realtime.call("reset", seed=21).success
    realtime.until(lambda: realtime.states[-1].seed == 21, "the new episode")
    realtime.until(lambda: realtime.states[-1].tick >= 2, "its second tick")


# -- the process -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["lockstep", "realtime"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_process_with_zero(ros: None, mode: str, number: int) -> None:
    namespace = f"/end_{mode}"
    with sim_process(f"mode:={mode}", "initial_grant:=-1", namespace=namespace) as process:
        peer = Peer(namespace)
        peer.until(lambda: peer.images and peer.joints, "an observation")
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
        peer.close()
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("parameter", "named"),
    [("mode:=fast", "'fast'"), ("seed:=-1", "seed"), ("real_time_factor:=0.0", "real_time_factor")],
)
def test_a_bad_parameter_ends_the_process_with_its_name(parameter: str, named: str) -> None:
    with sim_process(parameter, namespace="/bad") as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert named in errors
    assert "Traceback" not in errors
