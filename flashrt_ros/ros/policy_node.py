# SPDX-License-Identifier: Apache-2.0
"""`policy_node`: a lifecycle node that hosts a policy and offers its capsules.

configure loads the checkpoint, allocates the buffers, captures and warms up; activate starts
ticking; deactivate holds the arm; cleanup frees everything; errors go through the same teardown.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration

from flashrt_ros.models import load_policy
from flashrt_ros.policies import EngineOptions, PolicyEngine
from flashrt_ros.policies.contract_file import load_contract
from flashrt_ros.ros.emergency_stop import EmergencyStopInput
from flashrt_ros.ros.managed_node import ManagedNode
from flashrt_ros.ros.meters import Meters
from flashrt_ros.ros.parameters import read
from flashrt_ros.ros.planner_surface import PlannerSurface
from flashrt_ros.ros.policy_execution import prepare_execution, spaces_of, tick_period
from flashrt_ros.ros.policy_inputs import PolicyInputs
from flashrt_ros.ros.policy_outputs import PolicyOutputs
from flashrt_ros.ros.policy_parameters import PARAMETERS
from flashrt_ros.ros.policy_parts import Parts
from flashrt_ros.ros.policy_safety import limit_by_description, make_safety
from flashrt_ros.ros.policy_status import PolicyReporter
from flashrt_ros.ros.process import leave, run_node
from flashrt_ros.ros.robot_description import RobotDescriptionInput
from flashrt_ros.ros.run_info import RunInfoPublisher
from flashrt_ros.runtime import Arena, AutoSnapshots, Session, Store
from flashrt_ros.runtime.threads import pin_from_environment

_STEADY = Clock(clock_type=ClockType.STEADY_TIME)
_ENGINE_OPTIONS = ("continue_tolerance", "observation_timeout", "hold_duration")


class PolicyNode(ManagedNode):
    """Hosts one policy; see docs/ros.md for its topics, services and parameters."""

    def __init__(self, name: str = "policy_node", **options: Any) -> None:
        self._parts = Parts()
        super().__init__(name, PARAMETERS, **options)
        self._surface = PlannerSurface(self)
        self._reporter = PolicyReporter(self, self._report)
        # Wall time: an operator is told of a node whose simulated clock stands still, too.
        self._timer = self.create_timer(
            read(self, "diagnostics_period"),
            self._report_periodically,
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )
        self._jump = self.get_clock().create_jump_callback(
            JumpThreshold(
                min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False
            ),
            post_callback=self._on_clock_jump,
        )
        self._emergency_stop = EmergencyStopInput(self)
        self._report()

    def destroy_node(self) -> None:
        """Remove the node, and the one that hears the emergency stop."""
        self._emergency_stop.destroy()
        super().destroy_node()

    @property
    def answering(self) -> int:
        """Calls of planners that wait for their answer."""
        return self._surface.answering

    # -- life cycle, see ManagedNode ---------------------------------------------------------

    def _begin(self) -> None:
        """Start ticking with the next observation."""
        assert self._parts.engine is not None
        assert self._parts.inputs is not None
        self._limit_by_description()
        self._parts.inputs.assembler.clear()
        self._parts.engine.activate()

    def _pause(self) -> None:
        """Hold the arm and stop; the state stays."""
        try:
            if self._parts.engine is not None:
                self._surface.pause()
                self._parts.engine.deactivate(timeout=read(self, "verb_timeout"))
        finally:
            if self._parts.outputs is not None:
                self._parts.outputs.finish()

    def _adjust(self, changes: Mapping[str, Any]) -> None:
        """Take new values of live parameters, from the next tick on."""
        parts = self._parts
        options = {name: changes[name] for name in _ENGINE_OPTIONS if name in changes}
        if parts.engine is not None and options:
            engine = parts.engine
            engine.submit(lambda session: engine.adjust(**options))
        if parts.engine is not None and parts.safety is not None:
            safety = parts.safety
            parts.engine.submit(lambda session: safety.adjust(**changes))
        if parts.inputs is not None and "max_skew" in changes:
            parts.inputs.assembler.max_skew_s = changes["max_skew"]
        auto = self._boundary_snapshots()
        if parts.engine is not None and auto is not None and "boundary_budget_mb" in changes:
            parts.engine.submit(lambda session: session.keep_automatically(auto))
        if "diagnostics_period" in changes:
            self._timer.timer_period_ns = round(changes["diagnostics_period"] * 1e9)

    # -- building --------------------------------------------------------------------------

    def _configure(self) -> None:
        free_memory()  # the executor referred to the older parts until it waited again
        parts = self._parts
        if topic := read(self, "robot_description_topic"):
            parts.description = RobotDescriptionInput(self, topic)
        threads = read(self, "threads")
        if threads:
            torch.set_num_threads(threads)
        pin_from_environment()
        name = read(self, "model")
        self._stage(f"loading '{name}'")
        parts.model = load_policy(name, device=read(self, "device"))
        # Before plans are captured, which may take minutes.
        parts.contract = load_contract(read(self, "contract"), parts.model.spec)
        spaces = spaces_of(parts.contract, parts.model)
        parts.safety = make_safety(self, parts.model.spec.joint_names, spaces.velocity)
        parts.execution = prepare_execution(self, parts.model, parts.contract)
        arena = Arena(parts.model.buffer_specs(), device=read(self, "device"))
        self._stage(f"capturing and warming up plans ({read(self, 'backend')})")
        seed = read(self, "seed")
        parts.model.bind(arena, seed=seed, backend=read(self, "backend"))
        arena.seal()
        self._stage("opening topics and services")
        parts.store = Store(arena.device, directory=read(self, "capsule_directory") or None)
        parts.session = Session(
            arena,
            fingerprint=parts.model.fingerprint,
            store=parts.store,
            seed=seed,
            auto=self._boundary_snapshots(),
        )
        self._open(parts)

    def _limit_by_description(self) -> None:
        parts = self._parts
        if parts.description is None:
            return
        assert parts.model is not None
        assert parts.contract is not None
        assert parts.safety is not None
        velocity = spaces_of(parts.contract, parts.model).velocity
        names = parts.model.spec.joint_names
        limit_by_description(self, parts.description, parts.safety, names, velocity)

    def _boundary_snapshots(self) -> AutoSnapshots | None:
        keep = read(self, "boundary_snapshots")
        if keep == 0:
            return None
        budget_bytes = round(read(self, "boundary_budget_mb") * 1e6)
        return AutoSnapshots(keep=keep, budget_bytes=budget_bytes)

    def _open(self, parts: Parts) -> None:
        assert parts.model is not None
        assert parts.session is not None
        assert parts.contract is not None
        spec = parts.model.spec
        lockstep = read(self, "lockstep")
        parts.outputs = PolicyOutputs(
            self,
            spec.joint_names,
            parts.session,
            self._reporter.changed,
            outputs=parts.contract.outputs,
            command_rate=read(self, "command_rate"),
            clock=self._now_ns,
        )
        meters = Meters(parts.outputs, self._now_ns)
        parts.engine = PolicyEngine(
            parts.model,
            parts.session,
            meters,
            clock=self._now_ns,
            options=EngineOptions(
                instruction=read(self, "instruction"),
                lockstep=lockstep,
                continue_tolerance=read(self, "continue_tolerance"),
                observation_timeout=read(self, "observation_timeout"),
                hold_duration=read(self, "hold_duration"),
                execution=parts.execution,
                tick_period=tick_period(self, parts.model),
            ),
            safety=parts.safety,
            spaces=spaces_of(parts.contract, parts.model),
        )
        parts.engine.start()
        self._emergency_stop.bind(
            parts.engine,
            required=read(self, "emergency_stop_required"),
            timeout=read(self, "emergency_stop_timeout"),
        )
        parts.inputs = PolicyInputs(
            self, parts.engine, parts.contract, lockstep=lockstep, max_skew=read(self, "max_skew")
        )
        parts.engine.explain_silence = parts.inputs.explain_silence
        self._surface.attach(
            parts.engine,
            self._now_ns,
            parts.contract,
            timeout=read(self, "verb_timeout"),
            backend=read(self, "backend"),
            evaluate=read(self, "evaluate"),
            digests=read(self, "state_digest_every") > 0,
        )
        parts.run_info = RunInfoPublisher(
            self,
            parts.engine,
            read(self, "model"),
            parts.inputs.sources,
            parts.contract.text,
        )
        self._reporter.open(parts, meters, read(self, "backend"))

    def _teardown(self) -> None:
        """Free whatever exists, newest first; tolerates a half-built state."""
        parts, self._parts = self._parts, Parts()
        self._attempt("ending evaluations", self._surface.detach)
        self._attempt("leaving the emergency stop", self._emergency_stop.unbind)
        for endpoints in (parts.run_info, parts.inputs, parts.description):
            if endpoints is not None:
                self._attempt("destroying endpoints", endpoints.destroy)
        if parts.engine is not None:
            close = partial(parts.engine.close, timeout=read(self, "verb_timeout"))
            self._attempt("closing", close)
        elif parts.session is not None:
            self._attempt("closing", parts.session.close)
        if parts.store is not None:
            self._attempt("closing", parts.store.close)
        self._attempt("ending runs", self._surface.close)
        if parts.outputs is not None:
            self._attempt("destroying publishers", parts.outputs.destroy)
        self._attempt("ending diagnostics", self._reporter.close)
        parts = close = endpoints = None  # type: ignore[assignment]
        free_memory()

    # -- status ----------------------------------------------------------------------------

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def _on_clock_jump(self, jump: Any) -> None:
        parts = self._parts
        if parts.engine is not None and parts.inputs is not None:
            self.get_logger().warning(
                "the clock jumped back: inputs dropped, epoch raised", throttle_duration_sec=1.0
            )
            parts.inputs.assembler.clear()
            parts.engine.clock_jumped()

    def _report(self) -> None:
        self._reporter.publish_status(self._parts, self._last_error)

    def _report_periodically(self) -> None:
        self._report()
        self._reporter.publish_diagnostics(self._parts)


def free_memory() -> None:
    """Give back what nothing refers to any more; an engine and its session know each other."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main(args: list[str] | None = None) -> int:
    """Entry point of the executable `policy_node`."""
    # One thread: a verb that waits for the replay thread gives it back meanwhile.
    return run_node(PolicyNode, args, threads=1)


if __name__ == "__main__":
    leave(main())
