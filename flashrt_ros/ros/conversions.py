# SPDX-License-Identifier: Apache-2.0
"""Messages from and to the types of the policy and runtime layers."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from builtin_interfaces.msg import Duration, Time
from sensor_msgs.msg import JointState
from std_msgs.msg import Header
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from flashrt_ros.msg import ActionChunk, Boundary
from flashrt_ros.msg import CapsuleInfo as CapsuleInfoMsg
from flashrt_ros.policies import ChunkOutput, CommandOutput, EngineEvent, Trajectory
from flashrt_ros.policies.contract import JointField
from flashrt_ros.ros.decoding import joint_values
from flashrt_ros.runtime import CapsuleInfo

# Events whose name in the session is another one; the others are constants of Boundary themselves.
_EVENTS = {"DROP": "DELETE"}


def to_time(stamp_ns: int) -> Time:
    """Nanoseconds to builtin_interfaces/Time."""
    return Time(sec=stamp_ns // 1_000_000_000, nanosec=stamp_ns % 1_000_000_000)


def to_ns(stamp: Time) -> int:
    """builtin_interfaces/Time to nanoseconds."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def to_duration(seconds: float) -> Duration:
    """Seconds to builtin_interfaces/Duration, rounded to a nanosecond."""
    ns = round(seconds * 1e9)
    return Duration(sec=ns // 1_000_000_000, nanosec=ns % 1_000_000_000)


def joint_positions(message: JointState, names: Sequence[str]) -> np.ndarray:
    """Positions of the named joints, in that order, float64 `[joints]`, rad or m.

    A message may have them in any order and have other joints too.

    Raises:
        ValueError: see `decoding.joint_values`.
    """
    return joint_values(message, names, {}, JointField.POSITION)


def to_points(
    trajectory: Trajectory,
    positions: np.ndarray | None = None,
    velocities: np.ndarray | None = None,
) -> list[JointTrajectoryPoint]:
    """The points of a trajectory.

    positions: `[points, joints]`, None: the trajectory's; velocities: of that shape, None: none.
    """
    chosen = trajectory.positions if positions is None else positions
    points = [
        JointTrajectoryPoint(positions=row.tolist(), time_from_start=to_duration(float(time)))
        for time, row in zip(trajectory.times, chosen, strict=True)
    ]
    if velocities is not None:
        for point, row in zip(points, velocities, strict=True):
            point.velocities = row.tolist()
    return points


def commit_text(command: CommandOutput) -> str:
    """A command's commit id as text; `commit_id` reads it."""
    return f"epoch={command.epoch} boundary={command.boundary} sequence={command.sequence}"


def to_joint_trajectory(
    command: CommandOutput,
    names: Sequence[str],
    positions: np.ndarray | None = None,
    velocities: np.ndarray | None = None,
) -> JointTrajectory:
    """A command for joint_trajectory_controller.

    positions: of the named joints, `[points, joints]`, one for each point that is due; None: those
    of the command. velocities:
    of the same shape; None: the controller goes in straight lines. The message has no field for
    the commit id; it travels in `header.frame_id`, which that controller does not read.
    """
    trajectory = command.due or command.trajectory
    # A stamp of zero means: when it arrives.
    stamp = Time() if command.immediate else to_time(trajectory.start_ns)
    return JointTrajectory(
        header=Header(stamp=stamp, frame_id=commit_text(command)),
        joint_names=list(names),
        points=to_points(trajectory, positions, velocities),
    )


def commit_id(message: JointTrajectory) -> dict[str, int]:
    """Read the commit id that `to_joint_trajectory` wrote: epoch, boundary, sequence.

    Raises:
        ValueError: the message carries none.
    """
    try:
        pairs = dict(item.split("=") for item in message.header.frame_id.split())
        return {key: int(pairs[key]) for key in ("epoch", "boundary", "sequence")}
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"frame_id '{message.header.frame_id}' is no commit id, expected "
            "'epoch=<e> boundary=<b> sequence=<s>'"
        ) from error


def to_action_chunk(chunk: ChunkOutput, names: Sequence[str]) -> ActionChunk:
    """A chunk, with what it was computed from."""
    command = chunk.command
    return ActionChunk(
        header=Header(stamp=to_time(command.trajectory.start_ns)),
        epoch=command.epoch,
        sequence=command.sequence,
        boundary=command.boundary,
        step=command.step,
        instruction=chunk.instruction,
        joint_names=list(names),
        points=to_points(command.trajectory),
        input_names=list(chunk.stamps),
        input_stamps=[to_time(stamp) for stamp in chunk.stamps.values()],
        hold=command.is_hold,
        limited_points=command.limited_points,
        inference_duration=chunk.inference_s,
        execution=chunk.execution,
        frozen_points=chunk.frozen_points,
    )


def to_boundary(event: EngineEvent, session: str, seed: int, now: Time) -> Boundary:
    """A committed boundary or an applied verb."""
    source = event.source
    capsule = source.capsule if source is not None else None
    return Boundary(
        header=Header(stamp=now),
        event=getattr(Boundary, _EVENTS.get(event.kind, event.kind)),
        event_index=event.index,
        session=session,
        boundary=event.boundary,
        parent=event.parent,
        step=event.step,
        epoch=event.epoch,
        seed=seed,
        instruction=event.instruction,
        capsule=capsule.id if capsule is not None else "",
        name=capsule.name if capsule is not None else "",
        motion=int(event.motion),
        inputs_digest=event.inputs_digest,
        input_names=list(event.stamps),
        input_stamps=[to_time(stamp) for stamp in event.stamps.values()],
        input_digests=[event.digests.get(name, "") for name in event.stamps],
        detail=json.dumps(dict(event.detail), sort_keys=True) if event.detail else "",
    )


def to_capsule_info(info: CapsuleInfo) -> CapsuleInfoMsg:
    """Metadata of a capsule."""
    return CapsuleInfoMsg(
        id=info.id,
        name=info.name,
        session=info.session,
        parent=info.parent,
        boundary=info.boundary,
        step=info.step,
        stamp=to_time(info.stamp_ns),
        instruction=str(info.state("instruction", "")),
        fingerprint=info.fingerprint,
        inputs_digest=info.inputs_digest,
        tier=str(info.tier),
        own_bytes=info.own_bytes,
        shared_bytes=info.shared_bytes,
        tags=list(info.tags),
        pinned=info.pinned,
    )
