# SPDX-License-Identifier: Apache-2.0
"""`policy_node`: a lifecycle node that hosts a policy and offers its capsules.

configure loads the checkpoint, allocates the buffers, captures and warms up; activate starts
ticking; deactivate holds the arm; cleanup frees everything; errors go through the same teardown.
"""

from __future__ import annotations

import sys
import time
import traceback
from typing import Any

import torch
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from flashrt_ros.models import load_policy
from flashrt_ros.policies import EngineOptions, PolicyEngine
from flashrt_ros.ros.capsule_services import CapsuleServices
from flashrt_ros.ros.parameters import read
from flashrt_ros.ros.policy_inputs import PolicyInputs
from flashrt_ros.ros.policy_outputs import PolicyOutputs
from flashrt_ros.ros.policy_parameters import PARAMETERS
from flashrt_ros.ros.policy_parts import Parts
from flashrt_ros.ros.policy_services import PolicyServices
from flashrt_ros.ros.policy_status import PolicyReporter
from flashrt_ros.ros.process import run_node
from flashrt_ros.ros.run_info import RunInfoPublisher, default_sources
from flashrt_ros.ros.verbs import VerbRunner
from flashrt_ros.runtime import Arena, AutoSnapshots, Session, Store


class PolicyNode(LifecycleNode):
    """Hosts one policy; see docs/ros.md for its topics, services and parameters."""

    def __init__(self, name: str = "policy_node", **options: Any) -> None:
        super().__init__(name, **options)
        for parameter in PARAMETERS:
            parameter.declare(self)
        self._parts = Parts()
        self._verb_group = ReentrantCallbackGroup()
        self._reporter = PolicyReporter(self)
        self._timer = self.create_timer(1.0, self._publish_periodically)
        self._last_error = ""
        self._jump = self.get_clock().create_jump_callback(
            JumpThreshold(
                min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False
            ),
            post_callback=self._on_clock_jump,
        )
        self._publish_status()

    # -- transitions -----------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load, allocate, capture, warm up, and open topics and services."""
        started = time.perf_counter()
        try:
            self._configure()
        except Exception as error:
            self._last_error = f"configure failed: {error}"
            self.get_logger().error(f"{self._last_error}\n{traceback.format_exc()}")
            self._teardown()
            return TransitionCallbackReturn.FAILURE
        self.get_logger().info(f"configured in {time.perf_counter() - started:.1f} s")
        self._publish_status()
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start ticking with the next observation."""
        result = super().on_activate(state)
        if self._parts.engine is None or self._parts.inputs is None:
            return TransitionCallbackReturn.FAILURE
        self._parts.inputs.assembler.clear()
        self._parts.engine.activate()
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Hold the arm and stop; the state stays."""
        if self._parts.engine is not None:
            self._parts.engine.deactivate()  # while the publishers still publish
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything that configure made."""
        self._teardown()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Hold if moving, then free everything."""
        self.stop()
        return TransitionCallbackReturn.SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """One teardown path, also for a half-built state; the node can be configured again."""
        self._teardown()
        return TransitionCallbackReturn.SUCCESS

    def stop(self) -> None:
        """Hold the arm and free everything, from any state. Idempotent."""
        if self._parts.engine is not None:
            try:
                self._parts.engine.deactivate()
            except Exception:
                self.get_logger().error(f"hold failed:\n{traceback.format_exc()}")
        self._teardown()

    # -- building --------------------------------------------------------------------------

    def _configure(self) -> None:
        parts = self._parts
        threads = read(self, "threads")
        if threads:
            torch.set_num_threads(threads)
        name = read(self, "model")
        self.get_logger().info(f"loading '{name}'")
        parts.model = load_policy(name, device=read(self, "device"))
        arena = Arena(parts.model.buffer_specs(), device=read(self, "device"))
        self.get_logger().info(f"capturing and warming up plans ({read(self, 'backend')})")
        seed = read(self, "seed")
        parts.model.bind(arena, seed=seed, backend=read(self, "backend"))
        arena.seal()
        parts.session = Session(
            arena,
            fingerprint=parts.model.fingerprint,
            store=Store(arena.device, directory=read(self, "capsule_directory") or None),
            seed=seed,
            auto=self._boundary_snapshots(),
        )
        self._open(parts)

    def _boundary_snapshots(self) -> AutoSnapshots | None:
        keep = read(self, "boundary_snapshots")
        if keep == 0:
            return None
        budget_bytes = round(read(self, "boundary_budget_mb") * 1e6)
        return AutoSnapshots(keep=keep, budget_bytes=budget_bytes)

    def _open(self, parts: Parts) -> None:
        assert parts.model is not None
        assert parts.session is not None
        spec = parts.model.spec
        lockstep = read(self, "lockstep")
        parts.outputs = PolicyOutputs(self, spec.joint_names, parts.session, self._publish_status)
        parts.engine = PolicyEngine(
            parts.model,
            parts.session,
            parts.outputs,
            clock=lambda: self.get_clock().now().nanoseconds,
            options=EngineOptions(
                instruction=read(self, "instruction"),
                lockstep=lockstep,
                continue_tolerance=read(self, "continue_tolerance"),
                observation_timeout=read(self, "observation_timeout"),
                hold_duration=read(self, "hold_duration"),
            ),
        )
        parts.engine.start()
        parts.inputs = PolicyInputs(
            self, parts.engine, spec, lockstep=lockstep, max_skew=read(self, "max_skew")
        )
        runner = VerbRunner(self, parts.engine, read(self, "verb_timeout"))
        parts.capsules = CapsuleServices(self, parts.engine, runner, self._verb_group)
        parts.services = PolicyServices(self, parts.engine, runner, self._verb_group)
        parts.run_info = RunInfoPublisher(
            self, parts.engine, read(self, "model"), default_sources(self, spec)
        )
        self._reporter.open_diagnostics(parts.model.name)

    def _teardown(self) -> None:
        """Free whatever exists, newest first; tolerates a half-built state."""
        parts, self._parts = self._parts, Parts()
        for part in (parts.run_info, parts.services, parts.capsules, parts.inputs):
            if part is not None:
                part.destroy()
        if parts.engine is not None:
            parts.engine.close()
        elif parts.session is not None:
            parts.session.close()
        if parts.session is not None:
            parts.session.store.close()
        if parts.outputs is not None:
            parts.outputs.destroy()
        self._reporter.close_diagnostics()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._publish_status()

    # -- status ----------------------------------------------------------------------------

    def _on_clock_jump(self, jump: Any) -> None:
        parts = self._parts
        if parts.engine is not None and parts.inputs is not None:
            self.get_logger().warning("the clock jumped back: inputs dropped, epoch raised")
            parts.inputs.assembler.clear()
            parts.engine.clock_jumped()

    def _publish_status(self) -> None:
        self._reporter.publish_status(self._parts, self._last_error)

    def _publish_periodically(self) -> None:
        self._publish_status()
        self._reporter.publish_diagnostics(self._parts)


def main(args: list[str] | None = None) -> int:
    """Entry point of the executable `policy_node`."""
    # One thread: a verb waits for the replay thread, which needs no callback, one tick at most.
    return run_node(PolicyNode, args, threads=1)


if __name__ == "__main__":
    sys.exit(main())
