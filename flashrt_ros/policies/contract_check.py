# SPDX-License-Identifier: Apache-2.0
"""A contract against the policy that it is for, and the contract of a node that was given none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.policies.contract import (
    INSTRUCTION,
    BelowRate,
    CameraInput,
    Contract,
    ContractError,
    Input,
    JointsInput,
    MessageType,
    Output,
    OutputType,
    Problem,
    Timing,
    VectorInput,
    default_joints,
)


def default_contract(spec: PolicySpec) -> Contract:
    """Topics of a node without a contract file.

    `<camera>/image_raw` for each camera, `joint_states`, `<vector>` (Float64MultiArray) for each
    vector, `instruction`, and one `joint_trajectory` of every joint.
    """
    contract = Contract(
        cameras=tuple(
            CameraInput(name, f"{name}/image_raw", MessageType.IMAGE, timing=Timing(await_new=True))
            for name in spec.cameras
        ),
        joints=(default_joints(),),
        vectors=tuple(
            VectorInput(name, name, MessageType.ARRAY, required=name not in spec.optional)
            for name in spec.vectors
        ),
        instruction=Input(INSTRUCTION, "instruction", MessageType.STRING),
        outputs=(Output(OutputType.JOINT_TRAJECTORY, "joint_trajectory"),),
        source="the default contract",
    )
    return resolve(contract, spec)


def resolve(contract: Contract, spec: PolicySpec, problems: Iterable[Problem] = ()) -> Contract:
    """Fill in what only the policy knows: image sizes, lengths, joints that are not named.

    Args:
        contract: as it was read.
        spec: of the policy.
        problems: found before, to be reported together with those found here.

    Raises:
        ContractError: with every problem.
    """
    check = _Check(contract, spec, list(problems))
    resolved = check.run()
    if check.problems:
        raise ContractError(check.problems)
    return resolved


class _Check:
    def __init__(self, contract: Contract, spec: PolicySpec, problems: list[Problem]) -> None:
        self._contract = contract
        self._spec = spec
        self.problems = problems

    def run(self) -> Contract:
        contract = self._contract
        self._check_names()
        cameras = tuple(self._camera(camera) for camera in contract.cameras)
        self._check_present("cameras", "camera", self._spec.cameras, contract.cameras)
        joints = self._joints()
        vectors = tuple(self._vector(vector) for vector in contract.vectors)
        self._check_present("vectors", "vector", self._spec.vectors, contract.vectors)
        # A policy without a camera ticks on whatever the contract awaits, else on joint states.
        if joints and not any(each.timing.await_new for each in (*cameras, *joints, *vectors)):
            first = replace(joints[0], timing=replace(joints[0].timing, await_new=True))
            joints = (first, *joints[1:])
        outputs = tuple(self._output(output) for output in contract.outputs)
        return replace(
            contract,
            cameras=cameras,
            joints=joints,
            vectors=vectors,
            outputs=outputs,
            joint_names=self._spec.joint_names,
        )

    def _complain(self, line: int, text: str) -> None:
        self.problems.append(Problem(self._contract.source, line, text))

    def _check_names(self) -> None:
        counts = Counter(each.name for each in self._contract.inputs)
        for each in self._contract.inputs:
            if counts[each.name] > 1:
                self._complain(
                    each.line, f"input '{each.name}' is there more than once, expected once"
                )
            elif each.name == INSTRUCTION:
                self._complain(each.line, f"no sensor may be called '{INSTRUCTION}'")
        types: dict[str, MessageType] = {}
        for each in self._contract.inputs:
            first = types.setdefault(each.topic, each.type)
            if each.type is not first:
                self._complain(
                    each.line,
                    f"'{each.name}' reads {each.type} from '{each.topic}', which another input "
                    f"reads as {first}: a topic has one type",
                )

    def _check_present(
        self, section: str, kind: str, wanted: Iterable[str], given: Iterable[Input]
    ) -> None:
        names = [each.name for each in given]
        for name in wanted:
            if name not in names and name not in self._spec.optional:
                self._complain(
                    self._contract.lines.get(section, self._contract.lines.get("inputs", 0)),
                    f"{section} lacks '{name}', which the policy needs; it has "
                    f"{_listed(names)}: add a topic for this {kind}",
                )

    def _check_optional(self, source: Input) -> None:
        if not source.required and source.name not in self._spec.optional:
            self._complain(
                source.line,
                f"'{source.name}' is not required, but the policy cannot do without it; expected "
                f"required: true (optional for this policy: {_listed(self._spec.optional)})",
            )
        for asked, key in (
            (source.timing.await_new, "await_new: true"),
            (source.timing.below_rate is BelowRate.HOLD, "below_rate: hold"),
        ):
            if asked and not source.required:
                self._complain(
                    source.line,
                    f"'{source.name}' has {key} and is not required; an optional input cannot "
                    "stop the policy: it is left out",
                )

    def _camera(self, camera: CameraInput) -> CameraInput:
        if camera.name not in self._spec.cameras:
            self._complain(
                camera.line,
                f"camera '{camera.name}' is none of the policy's, expected one of "
                f"{_listed(self._spec.cameras)}",
            )
            return camera
        self._check_optional(camera)
        height, width, _ = self._spec.cameras[camera.name]
        crop = camera.crop
        if (
            crop is not None
            and camera.resize is None
            and (crop.height, crop.width)
            != (
                height,
                width,
            )
        ):
            self._complain(
                camera.line,
                f"camera '{camera.name}' is cropped to {crop.width} x {crop.height}, the policy "
                f"takes {width} x {height}: crop to that, or add resize",
            )
        return replace(camera, size=(height, width))

    def _joints(self) -> tuple[JointsInput, ...]:
        spec, sources = self._spec, self._contract.joints
        line = self._contract.lines.get("joints", self._contract.lines.get("inputs", 0))
        open_ended = [source for source in sources if not source.joints]
        for source in open_ended[1:]:
            self._complain(
                source.line,
                f"joints '{source.name}' names no joints, as '{open_ended[0].name}' does not; "
                "expected joints: [...] in all sources but one",
            )
        for source in sources:
            self._check_joints(source.line, f"joints '{source.name}'", source.joints, spec)
            self._check_renamed(source.line, f"joints '{source.name}'", source)
            if not source.required:
                self._complain(
                    source.line, f"joints '{source.name}' is not required, but joint states are"
                )
        counts = Counter(joint for source in sources for joint in source.joints)
        for joint, count in counts.items():
            if count > 1:
                self._complain(line, f"joint '{joint}' has {count} sources, expected one")
        left = tuple(joint for joint in spec.joint_names if joint not in counts)
        if left and not open_ended:
            self._complain(
                line,
                f"joints lacks {', '.join(left)}; the policy has {_listed(spec.joint_names)}: "
                "each needs a source",
            )
        if open_ended and not left:
            self._complain(open_ended[0].line, "no joint is left for this source")
        return tuple(
            source if source.joints else replace(source, joints=left) for source in sources
        )

    def _check_joints(
        self, line: int, where: str, joints: Iterable[str], spec: PolicySpec, what: str = "joint"
    ) -> None:
        for joint in joints:
            if joint not in spec.joint_names:
                self._complain(
                    line,
                    f"{where}: {what} '{joint}' is none of the policy's, expected one of "
                    f"{_listed(spec.joint_names)}",
                )

    def _check_renamed(self, line: int, where: str, source: JointsInput | VectorInput) -> None:
        known = source.joints or self._spec.joint_names
        for joint in source.names:
            if joint not in known:
                self._complain(
                    line,
                    f"{where}: names has '{joint}', which is no joint of this source, expected "
                    f"one of {_listed(known)}",
                )

    def _vector(self, vector: VectorInput) -> VectorInput:
        spec = self._spec
        if vector.name not in spec.vectors:
            self._complain(
                vector.line,
                f"vector '{vector.name}' is none of the policy's, expected one of "
                f"{_listed(spec.vectors)}",
            )
            return vector
        self._check_optional(vector)
        length = spec.vectors[vector.name]
        resolved = replace(vector, length=length)
        if vector.type is MessageType.JOINT_STATE:
            # Not only the policy's joints: a force sensor's driver may name its own.
            resolved = replace(resolved, joints=vector.joints or spec.joint_names)
            self._check_renamed(vector.line, f"vector '{vector.name}'", resolved)
            given = len(resolved.joints)
        else:
            given = 6 if vector.type is MessageType.WRENCH else length
        if given != length:
            self._complain(
                vector.line,
                f"vector '{vector.name}' gets {given} numbers of {vector.type}, the policy takes "
                f"{length}",
            )
        return resolved

    def _output(self, output: Output) -> Output:
        where = f"output '{output.topic}'"
        self._check_joints(output.line, where, output.actions, self._spec, what="action")
        resolved = replace(output, actions=output.actions or self._spec.joint_names)
        if output.type.is_twist and len(output.components) != len(resolved.actions):
            self._complain(
                output.line,
                f"{where} has {len(output.components)} components for {len(resolved.actions)} "
                f"actions ({_listed(resolved.actions)}), expected one for each",
            )
        for name in output.names:
            if name not in resolved.actions:
                self._complain(
                    output.line,
                    f"{where}: names has '{name}', which is none of its actions, expected one of "
                    f"{_listed(resolved.actions)}",
                )
        gripper = output.gripper
        if gripper is not None and gripper.action not in resolved.actions:
            self._complain(
                output.line,
                f"{where}: gripper's action '{gripper.action}' is none of its actions, expected "
                f"one of {_listed(resolved.actions)}",
            )
        return resolved


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
