# SPDX-License-Identifier: Apache-2.0
"""`sim_arm_node`: the simulated arm as a robot on the ROS graph.

In real time it behaves as a robot does. In lockstep time passes only when the command for a tick
has arrived, so that a run over DDS is reproducible bit for bit.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import rclpy
from rclpy.exceptions import ParameterException
from rclpy.executors import SingleThreadedExecutor
from rclpy.logging import get_logger
from rclpy.node import Node
from rclpy.qos import QoSProfile, qos_profile_system_default
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.signals import SignalHandlerOptions
from rclpy.time import Time
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import Image, JointState
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.msg import SimState
from flashrt_ros.ros import qos
from flashrt_ros.ros.parameters import Parameter, read
from flashrt_ros.ros.process import leave
from flashrt_ros.sim.messages import read_command, to_image, to_joint_state, to_state
from flashrt_ros.sim.pacing import LockstepPacing, Pacing, RealTimePacing
from flashrt_ros.sim.scene import JOINT_NAMES, PHYSICS_NS, TICK_PERIOD
from flashrt_ros.sim.world import ArmWorld
from flashrt_ros.srv import SimGrant, SimLamp, SimReset, SimWorld

REALTIME, LOCKSTEP = "realtime", "lockstep"

PARAMETERS = (
    Parameter(
        "mode",
        REALTIME,
        "What lets time pass: the wall clock, or the command for each tick.",
        constraints=f"{REALTIME} or {LOCKSTEP}",
        read_only=True,
    ),
    Parameter(
        "seed", 0, "Seed of the first episode; ~/reset takes another.", 0, 2**63 - 1, read_only=True
    ),
    Parameter(
        "real_time_factor",
        1.0,
        "realtime: seconds of sim time in a second.",
        0.01,
        10.0,
        read_only=True,
    ),
    Parameter(
        "initial_grant",
        0,
        "lockstep: policy ticks granted at start; -1: without limit, 0: paused until ~/grant.",
        -1,
        2**31 - 1,
        read_only=True,
    ),
    Parameter(
        "republish_period",
        1.0,
        "lockstep: an observation without an answer is published again after this wall time, s.",
        0.05,
        60.0,
        read_only=True,
    ),
    Parameter(
        "command_timeout",
        5.0,
        "lockstep: warn when an observation has no answer for this wall time, s.",
        0.1,
        3600.0,
        read_only=True,
    ),
)

_OVERRIDABLE = QoSOverridingOptions.with_default_policies()
_WARNING_PERIOD = 2.0  # s between warnings of one kind


class SimArmNode(Node):
    """One simulated arm; docs/ros.md has its topics, services and parameters.

    Raises ValueError for a `mode` that does not exist.
    """

    def __init__(self, name: str = "sim_arm_node", **options: Any) -> None:
        super().__init__(name, **options)
        for parameter in PARAMETERS:
            parameter.declare(self)
        self.refused = 0
        """Commands that were not applied."""
        self._saved: dict[str, bytes] = {}
        self._world = self._first_world()
        mode = read(self, "mode")
        # REP-2003: a driver publishes with the system's default. In lockstep none may be lost.
        self._open_topics(qos_profile_system_default if mode == REALTIME else qos.LOCKSTEP_INPUT)
        self._open_services()
        self._pacing = self._make_pacing(mode)
        self.publish_state()
        self.get_logger().info(
            f"{mode}, seed {self._world.seed}, cue {self._world.lamp}, "
            f"ticks granted: {self._pacing.granted}"
        )

    # -- set-up ----------------------------------------------------------------------------

    def _first_world(self) -> ArmWorld:
        seed = read(self, "seed")
        world = ArmWorld(seed)
        # ROS reads a zero stamp as "no time yet" (and a trajectory's as "now"): no observation
        # may have one.
        world.advance(TICK_PERIOD)
        world.reset(seed)
        return world

    def _open_topics(self, observations: QoSProfile) -> None:
        self._images = self.create_publisher(
            Image, "camera/image_raw", observations, qos_overriding_options=_OVERRIDABLE
        )
        self._joints = self.create_publisher(
            JointState, "joint_states", observations, qos_overriding_options=_OVERRIDABLE
        )
        # The name is absolute as it is where nodes with use_sim_time listen.
        self._clock_topic = self.create_publisher(ClockMessage, "/clock", 10)
        self._states = self.create_publisher(SimState, "~/state", qos.LATCHED)
        self.create_subscription(JointTrajectory, "joint_trajectory", self._on_command, 10)

    def _open_services(self) -> None:
        self.create_service(SimReset, "~/reset", self._on_reset)
        self.create_service(SimGrant, "~/grant", self._on_grant)
        self.create_service(SimLamp, "~/lamp", self._on_lamp)
        self.create_service(SimWorld, "~/world", self._on_world)

    def _make_pacing(self, mode: str) -> Pacing:
        if mode == REALTIME:
            return RealTimePacing(self, self, self._world, read(self, "real_time_factor"))
        if mode == LOCKSTEP:
            return LockstepPacing(
                self,
                self,
                self._world,
                read(self, "initial_grant"),
                read(self, "republish_period"),
                read(self, "command_timeout"),
            )
        raise ValueError(
            f"{self.get_name()}: parameter mode is {mode!r}, expected {REALTIME} or {LOCKSTEP}"
        )

    # -- what a pacing publishes -----------------------------------------------------------

    def publish_clock(self) -> None:
        """Sim time now."""
        self._clock_topic.publish(
            ClockMessage(clock=Time(nanoseconds=self._world.time_ns).to_msg())
        )

    def publish_joints(self) -> None:
        """The joint state alone."""
        self._joints.publish(
            to_joint_state(self._world.time_ns, JOINT_NAMES, *self._world.joints())
        )

    def publish_observation(self) -> None:
        """Image and joint state with one stamp."""
        observation = self._world.observe()
        self._images.publish(to_image(observation))
        self.publish_joints()

    def publish_state(self) -> None:
        """Ground truth."""
        self._states.publish(
            to_state(self._world.truth(), self._world.time_ns, self._pacing.granted)
        )

    def warn(self, text: str) -> None:
        """Log a warning, not more often than every two seconds."""
        self.get_logger().warning(text, throttle_duration_sec=_WARNING_PERIOD)

    # -- command and services --------------------------------------------------------------

    def _on_command(self, message: JointTrajectory) -> None:
        try:
            self._pacing.command(read_command(message, JOINT_NAMES, self._world.time_ns))
        except ValueError as error:
            self.refused += 1
            self.get_logger().warning(
                f"command refused ({self.refused} so far), the arm goes on as before: {error}",
                throttle_duration_sec=_WARNING_PERIOD,
            )

    def _on_reset(
        self, request: SimReset.Request, response: SimReset.Response
    ) -> SimReset.Response:
        colour = request.lamp_colour or None
        try:
            self._world.reset(request.seed, colour)
        except ValueError as error:
            response.message = str(error)
            return response
        if self._pacing.pending_ns == self._world.time_ns:
            # The old episode's observation still waits for its command, which may be under way:
            # no observation of the new one may have the same stamp.
            self._world.advance(PHYSICS_NS * 1e-9)
            self._world.reset(request.seed, colour)
        self._pacing.after_jump()
        self.publish_state()
        response.success = True
        response.cue = self._world.lamp
        response.message = f"episode of seed {request.seed}, cue {response.cue}"
        return response

    def _on_grant(
        self, request: SimGrant.Request, response: SimGrant.Response
    ) -> SimGrant.Response:
        response.tick = self._world.tick
        try:
            self._pacing.grant(request.ticks)
        except ValueError as error:
            response.message = str(error)
            return response
        response.success = True
        response.message = f"ticks granted: {self._pacing.granted}"
        return response

    def _on_lamp(self, request: SimLamp.Request, response: SimLamp.Response) -> SimLamp.Response:
        try:
            self._world.light_lamp(request.colour, request.ticks)
        except ValueError as error:
            response.message = str(error)
            return response
        response.success = True
        response.message = f"{request.colour} for {request.ticks} ticks"
        return response

    def _on_world(
        self, request: SimWorld.Request, response: SimWorld.Response
    ) -> SimWorld.Response:
        slot = request.slot
        response.tick = self._world.tick
        if not slot:
            response.message = "slot is empty, expected a name"
        elif not request.load:
            self._saved[slot] = self._world.save()
            response.success = True
            response.message = f"saved tick {response.tick} as {slot!r}"
        elif slot not in self._saved:
            known = ", ".join(sorted(self._saved)) or "none"
            response.message = f"no world is saved as {slot!r}; saved are: {known}"
        else:
            # ROS time goes on: nodes take a clock that jumps back for a bag that starts again.
            self._world.load(self._saved[slot], now_ns=self._world.time_ns)
            self._pacing.after_jump()
            self.publish_state()
            response.tick = self._world.tick
            response.success = True
            response.message = f"put back tick {response.tick} of {slot!r}"
        return response


def main(args: list[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM. Returns the process's exit status."""
    ending = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ending.set()

    # rclpy's own handlers would take the context away from a callback that is publishing.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        try:
            node = SimArmNode()
        except (ValueError, ParameterException) as error:
            get_logger("sim_arm_node").fatal(str(error))
            return 1
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        while not ending.is_set():
            executor.spin_once(timeout_sec=0.1)
        executor.shutdown()
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    leave(main())
