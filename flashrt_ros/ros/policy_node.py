# SPDX-License-Identifier: Apache-2.0
"""`policy_node`: a lifecycle node that hosts a policy and offers its capsules.

configure loads the checkpoint, allocates the buffers, captures and warms up; activate starts
ticking; deactivate holds the arm; cleanup frees everything; errors go through the same teardown.
"""

from __future__ import annotations

import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any

import torch
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from std_msgs.msg import Header

from flashrt_ros.models import load_policy
from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.msg import RuntimeStatus
from flashrt_ros.policies import EngineOptions, Motion, PolicyEngine
from flashrt_ros.ros import qos
from flashrt_ros.ros.capsule_services import CapsuleServices, expected, motion_of
from flashrt_ros.ros.diagnostics import DiagnosticsPublisher
from flashrt_ros.ros.parameters import Parameter, read
from flashrt_ros.ros.policy_io import PolicyInputs, PolicyOutputs
from flashrt_ros.ros.process import run_node
from flashrt_ros.ros.verbs import VerbRunner, answer
from flashrt_ros.runtime import Arena, AutoSnapshots, Session, Store
from flashrt_ros.srv import SetInstruction, Verb

PARAMETERS = (
    Parameter("model", "cued_reach", "Checkpoint: a directory, or the name of a shipped one."),
    Parameter("device", "cpu", "torch device of the buffers, such as cpu or cuda:0."),
    Parameter(
        "backend",
        "eager",
        "How plans are replayed.",
        constraints="eager, compiled or cuda_graph",
    ),
    Parameter("seed", 0, "Seed of the policy's noise.", 0, 2**31 - 1),
    Parameter("threads", 0, "CPU threads of torch; 0: torch's default.", 0, 1024),
    Parameter("instruction", "wait", "Instruction before anyone gave one."),
    Parameter(
        "lockstep",
        False,
        "The world waits for an answer to each observation (a simulator in lockstep).",
    ),
    Parameter(
        "max_skew", 0.1, "Largest difference of the stamps in one observation, s.", 0.0, 10.0
    ),
    Parameter(
        "observation_timeout",
        0.5,
        "Hold when no complete observation came for this long, s; 0: never.",
        0.0,
        60.0,
    ),
    Parameter(
        "continue_tolerance",
        0.05,
        "CONTINUE is allowed while each joint is this near to where the capsule saw it, rad or m.",
        0.0,
        3.2,
    ),
    Parameter("hold_duration", 0.1, "Time to the one point of a hold, s.", 0.001, 10.0),
    Parameter("verb_timeout", 5.0, "Longest wait of a service for the replay thread, s.", 0.1, 600),
    Parameter(
        "capsule_directory",
        "",
        "Directory of capsules on disk (made if need be); empty: capsules live in memory only.",
    ),
    Parameter("boundary_snapshots", 64, "Automatic snapshots kept for rollback.", 0, 100_000),
    Parameter("boundary_budget_mb", 256.0, "Bytes they may take, MB (10^6).", 0.0, 1e6),
)


@dataclass
class Parts:
    """What configure makes and teardown frees, in the order in which it is made."""

    model: PolicyModel | None = None
    session: Session | None = None
    engine: PolicyEngine | None = None
    outputs: PolicyOutputs | None = None
    inputs: PolicyInputs | None = None
    capsules: CapsuleServices | None = None


class PolicyNode(LifecycleNode):
    """Hosts one policy; see docs/ros.md for its topics, services and parameters."""

    def __init__(self, name: str = "policy_node", **options: Any) -> None:
        super().__init__(name, **options)
        for parameter in PARAMETERS:
            parameter.declare(self)
        self._parts = Parts()
        self._verb_services: list[Any] = []
        self._verb_group = ReentrantCallbackGroup()
        self._status = self.create_publisher(RuntimeStatus, "~/status", qos.LATCHED)
        self._diagnostics: DiagnosticsPublisher | None = None
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
        self._runner = VerbRunner(self, parts.engine, read(self, "verb_timeout"))
        parts.capsules = CapsuleServices(self, parts.engine, self._runner, self._verb_group)
        self._verb_services = [
            self.create_service(kind, name, callback, callback_group=self._verb_group)
            for kind, name, callback in (
                (Verb, "~/interrupt", self._on_interrupt),
                (Verb, "~/resume", self._on_resume),
                (SetInstruction, "~/set_instruction", self._on_set_instruction),
            )
        ]
        self._diagnostics = DiagnosticsPublisher(self, parts.model.name)

    def _teardown(self) -> None:
        """Free whatever exists, newest first; tolerates a half-built state."""
        parts, self._parts = self._parts, Parts()
        for service in self._verb_services:
            self.destroy_service(service)
        self._verb_services = []
        for part in (parts.capsules, parts.inputs):
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
        if self._diagnostics is not None:
            self._diagnostics.destroy()
            self._diagnostics = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._publish_status()

    # -- services --------------------------------------------------------------------------

    def _on_interrupt(self, request: Verb.Request, response: Verb.Response) -> Any:
        engine = self._parts.engine

        def verb(session: Session) -> tuple[None, Motion]:
            assert engine is not None
            return None, engine.interrupt(
                expected_boundary=expected(request.expected_boundary),
                expected_epoch=expected(request.expected_epoch),
            )

        outcome = self._runner.run("interrupt", verb)
        return answer(response, outcome, "holding")

    def _on_resume(self, request: Verb.Request, response: Verb.Response) -> Any:
        engine = self._parts.engine

        def verb(session: Session) -> tuple[None, Motion]:
            assert engine is not None
            return None, engine.resume(
                motion_of(request.motion),
                expected_boundary=expected(request.expected_boundary),
                expected_epoch=expected(request.expected_epoch),
            )

        outcome = self._runner.run("resume", verb)
        return answer(response, outcome, f"resumed, motion {Motion(outcome.result.motion).name}")

    def _on_set_instruction(
        self, request: SetInstruction.Request, response: SetInstruction.Response
    ) -> Any:
        engine = self._parts.engine

        def verb(session: Session) -> tuple[None, Motion]:
            assert engine is not None
            engine.set_instruction(
                request.instruction, expected_boundary=expected(request.expected_boundary)
            )
            return None, Motion.UNCHANGED

        outcome = self._runner.run("set_instruction", verb)
        return answer(response, outcome, f"instruction is '{request.instruction}'")

    # -- status ----------------------------------------------------------------------------

    def _on_clock_jump(self, jump: Any) -> None:
        parts = self._parts
        if parts.engine is not None and parts.inputs is not None:
            self.get_logger().warning("the clock jumped back: inputs dropped, epoch raised")
            parts.inputs.assembler.clear()
            parts.engine.clock_jumped()

    def _publish_status(self) -> None:
        now = self.get_clock().now().to_msg()
        message = RuntimeStatus(header=Header(stamp=now), last_error=self._last_error)
        parts = self._parts
        if parts.engine is not None and parts.model is not None and parts.session is not None:
            status = parts.engine.status
            capsules = parts.session.capsules()
            message.state = status.state.value
            message.reason = status.reason
            message.model = parts.model.name
            message.fingerprint = parts.session.fingerprint.digest()
            message.session = parts.session.id
            message.seed = parts.session.seed
            message.boundary = status.boundary
            message.step = status.step
            message.epoch = status.epoch
            message.sequence = status.sequence
            message.instruction = status.instruction
            message.capsules = len(capsules)
            message.capsule_bytes = sum(info.own_bytes for info in capsules)
            message.last_error = status.last_error or self._last_error
        self._status.publish(message)

    def _publish_periodically(self) -> None:
        self._publish_status()
        parts = self._parts
        if parts.engine is None or parts.inputs is None or parts.outputs is None:
            return
        if self._diagnostics is None:
            return
        median, worst = parts.outputs.latency()
        capsules = parts.engine.session.capsules()
        engine = self._diagnostics.engine(
            parts.engine.status,
            {
                "inference p50 ms": f"{median * 1e3:.2f}",
                "inference p99 ms": f"{worst * 1e3:.2f}",
                "capsules": len(capsules),
                "capsule bytes": sum(info.own_bytes for info in capsules),
            },
        )
        self._diagnostics.publish(engine, self._inputs_diagnostics(parts.inputs))

    def _inputs_diagnostics(self, inputs: PolicyInputs) -> DiagnosticStatus:
        assert self._diagnostics is not None
        now_ns = self.get_clock().now().nanoseconds
        values: dict[str, object] = {
            f"{name} age s": f"{(now_ns - stamp_ns) * 1e-9:.3f}"
            for name, stamp_ns in inputs.assembler.newest_ns().items()
        }
        values |= {f"{name} received": count for name, count in inputs.received.items()}
        values |= {f"{name} refused": count for name, count in inputs.errors.items()}
        values["out of order or duplicate"] = inputs.assembler.dropped
        values["last refusal"] = inputs.last_error
        missing = inputs.assembler.missing()
        if missing:
            message = f"nothing yet from {', '.join(missing)}"
            return self._diagnostics.status("inputs", DiagnosticStatus.WARN, message, values)
        level = DiagnosticStatus.WARN if inputs.errors else DiagnosticStatus.OK
        return self._diagnostics.status("inputs", level, inputs.last_error or "complete", values)


def main(args: list[str] | None = None) -> int:
    """Entry point of the executable `policy_node`."""
    # One thread: a verb waits for the replay thread, which needs no callback, one tick at most.
    return run_node(PolicyNode, args, threads=1)


if __name__ == "__main__":
    sys.exit(main())
