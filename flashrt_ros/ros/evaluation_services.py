# SPDX-License-Identifier: Apache-2.0
"""`~/capsule/evaluate` and `~/capsule/cancel_evaluation`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from std_msgs.msg import Header

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.msg import ActionChunk, RecordedObservation
from flashrt_ros.msg import BranchResult as BranchResultMsg
from flashrt_ros.policies import Motion, Observation, Trajectory
from flashrt_ros.policies.assembler import compose
from flashrt_ros.policies.contract import Contract, JointsInput, MessageType, SensorInput
from flashrt_ros.policies.evaluation import (
    Branch,
    BranchReport,
    Evaluation,
    EvaluationReport,
    Evaluator,
)
from flashrt_ros.ros.conversions import to_ns, to_points, to_time
from flashrt_ros.ros.decoding import decode
from flashrt_ros.ros.verbs import Outcome, VerbRunner, answer, expectations, result_of
from flashrt_ros.runtime import Code
from flashrt_ros.runtime.errors import InvalidArgument, RuntimeFault
from flashrt_ros.srv import CancelEvaluation, Evaluate


def to_observation(message: RecordedObservation, contract: Contract) -> Observation:
    """An observation that a caller gives: what live messages would become by the same contract.

    Images are raw, whatever type the contract's topics have; the one joint state serves every
    source of joints by the names that its own messages would have. Optional cameras may be left
    out. Vectors always are, as the message has no field for them.

    Raises:
        InvalidArgument: an input is missing, unknown or cannot be used.
    """
    names = list(message.camera_names)
    known = {camera.name: camera for camera in contract.cameras}
    lacking = [name for name, camera in known.items() if camera.required and name not in names]
    unknown = lacking or len(set(names)) != len(names) or not known.keys() >= set(names)
    if unknown or len(message.images) != len(names):
        raise InvalidArgument(
            f"observation has {len(message.images)} images for the cameras "
            f"{', '.join(names) or 'none'}; expected one for each of {', '.join(known)}"
        )
    vectors = [vector.name for vector in contract.vectors if vector.required]
    if vectors:
        raise InvalidArgument(
            f"observation cannot have {', '.join(vectors)}, which the policy takes: leave "
            "observations empty, the newest one that the node has seen is then used"
        )
    given: list[tuple[SensorInput, Any]] = [
        (replace(known[name], type=MessageType.IMAGE), image)
        for name, image in zip(names, message.images, strict=True)
    ]
    given += [(source, message.joint_states) for source in _joint_sources(contract)]
    stamp_ns = to_ns(message.header.stamp)
    try:
        arrived = {source.name: decode(source, each, stamp_ns) for source, each in given}
    except ValueError as error:
        raise InvalidArgument(f"observation: {error}") from error
    return replace(compose(contract, arrived), stamp_ns=stamp_ns)


def _joint_sources(contract: Contract) -> Sequence[JointsInput]:
    """The sources of joints, none of whose joints have the same name in their messages."""
    owners: dict[str, str] = {}
    for source in contract.joints:
        for joint in source.joints:
            name = source.names.get(joint, joint)
            other = owners.setdefault(name, joint)
            if other != joint:
                raise InvalidArgument(
                    f"observation has one joint state, but '{name}' means {other} and {joint}, by "
                    "their topics: leave observations empty, the newest one is then used"
                )
    return contract.joints


def to_evaluation(request: Evaluate.Request, request_id: str, contract: Contract) -> Evaluation:
    """What is to be evaluated; the contract says how given observations are read.

    Raises:
        InvalidArgument: a field has a value that cannot be meant.
    """
    unmeant = [branch.seed for branch in request.branches if branch.seed < -1]
    if unmeant:
        raise InvalidArgument(f"seed of a branch is {unmeant[0]}: give -1 (the capsule's) or more")
    if not np.isfinite(request.deadline) or request.deadline < 0.0:
        raise InvalidArgument(f"deadline is {request.deadline} s, expected 0 (none) or more")
    return Evaluation(
        id=request_id,
        branches=tuple(
            Branch(
                branch.label,
                branch.instruction or None,
                None if branch.seed == -1 else int(branch.seed),
            )
            for branch in request.branches
        ),
        capsule=request.capsule,
        ticks=request.ticks,
        observations=tuple(to_observation(message, contract) for message in request.observations),
        keep=request.keep,
        deadline=request.deadline or None,
        **expectations(request),
    )


def to_branch_result(report: BranchReport, spec: PolicySpec) -> BranchResultMsg:
    """What a branch came to."""
    times = (np.arange(spec.chunk_length) + 1) * spec.chunk_dt
    chunks = []
    for chunk in report.chunks:
        seen = chunk.observation
        positions = np.asarray(chunk.positions, dtype=np.float64)
        trajectory = Trajectory(seen.stamp_ns, times, positions, seen.positions)
        chunks.append(
            ActionChunk(
                header=Header(stamp=to_time(seen.stamp_ns)),
                boundary=chunk.boundary,
                step=chunk.step,
                instruction=report.instruction,
                joint_names=list(spec.joint_names),
                points=to_points(trajectory),
                input_names=list(seen.stamps),
                input_stamps=[to_time(stamp) for stamp in seen.stamps.values()],
                inference_duration=chunk.inference_s,
            )
        )
    return BranchResultMsg(
        label=report.label,
        instruction=report.instruction,
        seed=report.seed,
        chunks=chunks,
        complete=report.complete,
        state_digest=report.state_digest,
        capsule=report.capsule,
        duration=report.duration_s,
    )


class EvaluationServices:
    """Tries futures out for planners; UNSUPPORTED where nothing can evaluate.

    Args:
        node: the node that offers the services, for its whole life.
        runner: runs verbs for callbacks.
        group: lets its callbacks run while others wait.
    """

    def __init__(self, node: Node, runner: VerbRunner, group: CallbackGroup) -> None:
        self._runner = runner
        self._evaluator: Evaluator | None = None
        self._spec: PolicySpec | None = None
        self._contract = Contract()
        node.create_service(Evaluate, "~/capsule/evaluate", self._evaluate, callback_group=group)
        node.create_service(
            CancelEvaluation, "~/capsule/cancel_evaluation", self._cancel, callback_group=group
        )

    def attach(
        self, evaluator: Evaluator | None, spec: PolicySpec | None, contract: Contract
    ) -> None:
        """Serve an evaluator; None: none any more. `contract`: checked against the spec."""
        self._evaluator, self._spec, self._contract = evaluator, spec, contract

    async def _evaluate(self, request: Evaluate.Request, response: Evaluate.Response) -> Any:
        response.request_id = request.request_id or secrets.token_hex(8)
        evaluator, spec = self._evaluator, self._spec
        if evaluator is None or spec is None:
            return answer(response, self._no_evaluator())
        try:
            evaluation = to_evaluation(request, response.request_id, self._contract)
        except RuntimeFault as fault:
            return answer(response, self._runner.outcome(fault.code, str(fault)))
        outcome = await self._runner.follow(
            "evaluate", request, lambda: self._begin(evaluator, evaluation), limited=False
        )
        report: EvaluationReport | None = outcome.value
        if report is not None:
            response.branches = [to_branch_result(branch, spec) for branch in report.branches]
        return answer(response, outcome, report.message if report is not None else "")

    def _begin(self, evaluator: Evaluator, evaluation: Evaluation) -> Future[Outcome]:
        started = time.perf_counter()
        outcome: Future[Outcome] = Future()

        def done(reported: Future[EvaluationReport]) -> None:
            report: EvaluationReport | None = None
            try:
                report = reported.result()
                code, message = report.code, report.message
            except RuntimeFault as fault:
                code, message = fault.code, str(fault)
            except Exception as error:
                outcome.set_exception(error)
                return
            result = result_of(evaluator.session, code, Motion.UNCHANGED, started)
            outcome.set_result(Outcome(code, message, report, result))

        evaluator.submit(evaluation).add_done_callback(done)
        return outcome

    async def _cancel(
        self, request: CancelEvaluation.Request, response: CancelEvaluation.Response
    ) -> Any:
        if self._evaluator is None:
            return answer(response, self._no_evaluator())
        try:
            ended = self._evaluator.cancel(request.request_id)
        except RuntimeFault as fault:
            return answer(response, self._runner.outcome(fault.code, str(fault)))
        message = f"evaluation '{ended}' ends at its next tick border"
        return answer(response, self._runner.outcome(Code.OK, ""), message)

    def _no_evaluator(self) -> Outcome:
        if self._runner.is_attached:
            message = "this node has nothing that it could evaluate beside the live state"
            return self._runner.outcome(Code.UNSUPPORTED, message)
        return self._runner.outcome(Code.NOT_READY, "evaluate: configure the node first")
