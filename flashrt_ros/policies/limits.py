# SPDX-License-Identifier: Apache-2.0
"""Limits of position, velocity, acceleration and jump, a joint each, and what keeps to them.

A trajectory is taken as it is executed: positions joined by straight lines, from where the joints
are commanded to be when it begins. With `h` the time to a point from the one before, and `p`, `v`
the position and velocity with which the joint comes to it:

- position: `lower <= p <= upper`, and room to stop: `v**2 <= 2 * acceleration * (upper - p)`
  towards the upper limit, alike towards the lower one;
- velocity: `|v| <= velocity`;
- acceleration: `|v - v_before| <= acceleration * h`;
- jump: `|p - p_before| <= jump`, however much time there is.

**Algorithm.** Each of these is an interval of positions that depends on the point before alone.
Points are taken in order, and each is moved into the intersection of its intervals, as little as
possible.

**Guarantee.** From a start within the limits the intersection is never empty, so the result keeps
all of them. (Every interval but acceleration's contains the point before; acceleration's meets each
of them: braking at the limit needs at most `v**2 / (2 * acceleration)`, which the room to stop has
kept free: the sum of a decreasing speed over later steps, whatever their lengths, is below its
integral. Intervals of a line that meet pairwise have a point in common.) The exception is jump,
which yields where a joint is so fast that it can't stop within it. The result limited again is the
same, and what is within the limits is not touched: both bit for bit, as a point that lies in its
interval is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum

import numpy as np


class LimitKind(Enum):
    """What can be limited."""

    POSITION = "position"
    VELOCITY = "velocity"
    ACCELERATION = "acceleration"
    JUMP = "jump"


class LimitAction(Enum):
    """What a breach does."""

    CLAMP = "clamp"
    """The points are moved into the limits."""
    HOLD = "hold"
    """The trajectory is refused, and the joints stop within their limits."""


@dataclass(frozen=True)
class LimitActions:
    """What a breach of each kind does.

    A jump holds unless asked otherwise: it is a sign of a fault, where the others are at times
    only an eager policy.
    """

    position: LimitAction = LimitAction.CLAMP
    velocity: LimitAction = LimitAction.CLAMP
    acceleration: LimitAction = LimitAction.CLAMP
    jump: LimitAction = LimitAction.HOLD

    def of(self, kind: LimitKind) -> LimitAction:
        """What a breach of this kind does."""
        action: LimitAction = getattr(self, kind.value)
        return action

    @classmethod
    def parse(cls, items: Sequence[str]) -> LimitActions:
        """Read `["position=clamp", "jump=hold"]`; `["hold"]` alone means every kind.

        Raises:
            ValueError: an item is neither, or names a kind or an action that doesn't exist.
        """
        actions: dict[str, LimitAction] = {}
        for item in items:
            kind, _, action = item.strip().rpartition("=")
            kinds = [kind] if kind else [each.value for each in LimitKind]
            try:
                chosen = LimitAction(action)
                actions |= {LimitKind(each).value: chosen for each in kinds}
            except ValueError as error:
                raise ValueError(
                    f"limit action '{item}' is not known, expected clamp, hold, or "
                    f"<{'|'.join(each.value for each in LimitKind)}>=<clamp|hold>"
                ) from error
        return cls(**actions)


@dataclass(frozen=True)
class JointLimits:
    """Limits of each joint; infinite where there is none.

    Attributes:
        names: the joints, in the order of the arrays.
        lower, upper: positions, rad or m, float64 `[joints]`.
        velocity: largest speed, rad/s or m/s, `[joints]`.
        acceleration: largest change of velocity in a second, rad/s² or m/s², `[joints]`.
        jump: largest distance of a point to the one before, rad or m, `[joints]`.

    Raises:
        ValueError: an array has another length, a value is not a number, `lower` is not below
            `upper`, or one of the others is not above 0; the message names the joint.
    """

    names: tuple[str, ...]
    lower: np.ndarray
    upper: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    jump: np.ndarray

    def __post_init__(self) -> None:
        for item in fields(self)[1:]:
            values = getattr(self, item.name)
            if values.shape != (len(self.names),) or values.dtype != np.float64:
                raise ValueError(
                    f"limits '{item.name}' are {values.dtype} {values.shape}, expected float64 "
                    f"({len(self.names)},)"
                )
            signed = item.name in ("lower", "upper")
            for name, value in zip(self.names, values, strict=True):
                if np.isnan(value) or (not signed and value <= 0.0):
                    raise ValueError(
                        f"limit '{item.name}' of joint '{name}' is {value}, expected "
                        f"{'a number' if signed else 'a number above 0'}"
                    )
        for name, lower, upper in zip(self.names, self.lower, self.upper, strict=True):
            if not lower < upper:
                raise ValueError(
                    f"joint '{name}' has the lower limit {lower} and the upper limit {upper}, "
                    "expected the lower one below"
                )

    @classmethod
    def unlimited(cls, names: Sequence[str]) -> JointLimits:
        """No limit at all."""
        free = np.full(len(names), np.inf)
        return cls(tuple(names), -free, free, free.copy(), free.copy(), free.copy())

    @classmethod
    def of(cls, names: Sequence[str], limits: Mapping[str, JointLimit]) -> JointLimits:
        """The limits of these joints, in this order.

        Raises:
            ValueError: joints have none; the message names them.
        """
        missing = [name for name in names if name not in limits]
        if missing:
            raise ValueError(
                f"no limits for {', '.join(missing)}; there are some for "
                f"{', '.join(limits) or 'no joint'}"
            )
        columns = {
            item.name: np.array([getattr(limits[name], item.name) for name in names], float)
            for item in fields(JointLimit)
        }
        return cls(tuple(names), **columns)

    @property
    def are_set(self) -> bool:
        """Whether anything is limited at all."""
        return any(bool(np.any(np.isfinite(getattr(self, f.name)))) for f in fields(self)[1:])


@dataclass(frozen=True)
class JointLimit:
    """Limits of one joint, as a file tells them; see `JointLimits` for units."""

    lower: float = -np.inf
    upper: float = np.inf
    velocity: float = np.inf
    acceleration: float = np.inf
    jump: float = np.inf

    def narrowed(self, **changes: float) -> JointLimit:
        """The same, with other limits where they are narrower."""
        for name, value in changes.items():
            known = getattr(self, name)
            changes[name] = max(known, value) if name == "lower" else min(known, value)
        return replace(self, **changes)


@dataclass(frozen=True)
class CommandState:
    """Where the joints are commanded to be, and how fast, at one time.

    time_ns: ns; position: float64 `[joints]`, rad or m; velocity: float64 `[joints]`, a second.
    """

    time_ns: int
    position: np.ndarray
    velocity: np.ndarray

    @classmethod
    def at_rest(cls, time_ns: int, position: np.ndarray) -> CommandState:
        """Not moving."""
        return cls(time_ns, position, np.zeros_like(position))


@dataclass(frozen=True)
class Breach:
    """The first point at which a request breaks a kind of limit, and how often it does so."""

    kind: LimitKind
    point: int
    joint: str
    value: float
    """The position asked for, or the speed, acceleration or distance that it asks for."""
    limit: float
    count: int
    """Points times joints that break this kind."""

    def __str__(self) -> str:
        return (
            f"{self.kind.value} limit: point {self.point} asks '{self.joint}' for "
            f"{self.value:.4g}, limit {self.limit:.4g}"
            + (f" ({self.count} such values)" if self.count > 1 else "")
        )


@dataclass(frozen=True)
class _Intervals:
    """For each kind, the positions that a point may have: `[..., joints]` each."""

    lower: dict[LimitKind, np.ndarray] = field(default_factory=dict)
    upper: dict[LimitKind, np.ndarray] = field(default_factory=dict)

    def clip(self, positions: np.ndarray) -> np.ndarray:
        """The nearest positions that are in all of them. Where rounding leaves none, the bound
        nearer to the point before wins; position has the last word."""
        inner = np.minimum.reduce(list(self.upper.values()))
        outer = np.maximum.reduce(list(self.lower.values()))
        clipped = np.minimum(np.maximum(positions, outer), inner)
        at = LimitKind.POSITION
        return np.minimum(np.maximum(clipped, self.lower[at]), self.upper[at])


def _intervals(
    limits: JointLimits, before: np.ndarray, velocity: np.ndarray, step: np.ndarray
) -> _Intervals:
    """Where a point may be, given the one before. `[..., joints]`, step `[..., 1]`, s."""
    change = limits.acceleration * step
    accelerated = before + (velocity + change) * step, before + (velocity - change) * step
    up = before + step * _fastest(limits.upper - before, limits.acceleration, step)
    down = before - step * _fastest(before - limits.lower, limits.acceleration, step)
    up, down = np.minimum(up, limits.upper), np.maximum(down, limits.lower)
    distance = limits.velocity * step
    upper = {
        LimitKind.POSITION: up,
        LimitKind.VELOCITY: before + distance,
        LimitKind.ACCELERATION: accelerated[0],
    }
    lower = {
        LimitKind.POSITION: down,
        LimitKind.VELOCITY: before - distance,
        LimitKind.ACCELERATION: accelerated[1],
    }
    upper[LimitKind.JUMP] = np.maximum(
        before + limits.jump, np.maximum.reduce(list(lower.values()))
    )
    lower[LimitKind.JUMP] = np.minimum(
        before - limits.jump, np.minimum.reduce(list(upper.values()))
    )
    return _Intervals(lower, upper)


def _fastest(room: np.ndarray, acceleration: np.ndarray, step: np.ndarray) -> np.ndarray:
    """The largest speed over a step after which there is still room to stop.

    The solution of `v**2 == 2 * a * (room - v * step)`, in the form that does not cancel.
    """
    room = np.maximum(room, 0.0)
    with np.errstate(invalid="ignore"):
        braking = acceleration * step
        fastest = (
            2 * acceleration * room / (braking + np.sqrt(braking**2 + 2 * acceleration * room))
        )
    fastest = np.where(np.isinf(acceleration), room / step, fastest)
    return np.where(np.isinf(room), np.inf, fastest)


def find_breaches(
    limits: JointLimits, positions: np.ndarray, times: np.ndarray, start: CommandState
) -> list[Breach]:
    """What a request breaks as it is, one entry a kind; empty: it is within the limits.

    Args:
        limits: of the joints.
        positions: float64 `[points, joints]`, finite.
        times: s from `start.time_ns`, `[points]`, strictly increasing and above 0.
        start: where the joints are commanded to be.
    """
    steps = np.diff(times, prepend=0.0)[:, None]
    before = np.vstack((start.position, positions[:-1]))
    velocities = (positions - before) / steps
    velocities_before = np.vstack((start.velocity, velocities[:-1]))
    intervals = _intervals(limits, before, velocities_before, steps)
    changed = intervals.clip(positions) != positions
    if not np.any(changed):
        return []
    asked = {
        LimitKind.POSITION: (positions, np.where(positions > before, limits.upper, limits.lower)),
        LimitKind.VELOCITY: (np.abs(velocities), limits.velocity),
        LimitKind.ACCELERATION: (
            np.abs(velocities - velocities_before) / steps,
            limits.acceleration,
        ),
        LimitKind.JUMP: (np.abs(positions - before), limits.jump),
    }
    found = []
    for kind, (values, bounds) in asked.items():
        outside = (positions < intervals.lower[kind]) | (positions > intervals.upper[kind])
        where = np.argwhere(outside & changed)
        if where.size:
            point, joint = (int(index) for index in where[0])
            limit = np.broadcast_to(bounds, positions.shape)[point, joint]
            value = float(values[point, joint])
            name = limits.names[joint]
            found.append(Breach(kind, point, name, value, float(limit), len(where)))
    return found


def clamp(
    limits: JointLimits, positions: np.ndarray, times: np.ndarray, start: CommandState
) -> np.ndarray:
    """The request, moved into the limits as little as possible from one point to the next.

    Arguments as `find_breaches`; `start` must be within the limits (see `starts_within`). The
    result is float64 `[points, joints]`, and the same bits where nothing had to be moved.
    """
    result = np.array(positions)
    before, velocity = start.position, start.velocity
    for index, step in enumerate(np.diff(times, prepend=0.0)):
        intervals = _intervals(limits, before, velocity, np.array([step]))
        result[index] = intervals.clip(positions[index])
        before, velocity = result[index], (result[index] - before) / step
    return result


def starts_within(limits: JointLimits, start: CommandState) -> str:
    """Why no trajectory from this start can keep to the limits; empty: one can."""
    for index, name in enumerate(limits.names):
        position, velocity = float(start.position[index]), float(start.velocity[index])
        lower, upper = limits.lower[index], limits.upper[index]
        if not lower <= position <= upper:
            return f"joint '{name}' is at {position:.4g}, outside its limits {lower:g} to {upper:g}"
        # What rounding has left of a limit that was kept is no reason to stop.
        if abs(velocity) > limits.velocity[index] * (1 + 1e-6):
            return (
                f"joint '{name}' is commanded at {abs(velocity):.4g} a second, above its limit "
                f"{limits.velocity[index]:g}"
            )
    return ""


def stop(
    limits: JointLimits, start: CommandState, duration: float
) -> tuple[np.ndarray, np.ndarray]:
    """The shortest way to rest: times `[points]` and positions `[points, joints]`.

    Without a limit of acceleration, or at rest, that is one point at the start's own position,
    `duration` s ahead. Else each joint brakes at its limit in steps of a fiftieth of a second, or
    as many as `duration` has; the last point repeats the one before, `duration` later.
    """
    moving = (start.velocity != 0.0) & np.isfinite(limits.acceleration)
    if not np.any(moving):
        return np.array([duration]), start.position[None].copy()
    longest = float(np.max(np.abs(start.velocity[moving]) / limits.acceleration[moving]))
    step = max(min(0.02, duration), longest / 200)
    count = int(np.ceil(longest / step)) + 1
    times = np.arange(1, count + 1) * step
    # Asked to stand still, each joint comes as near to it as its limits allow, point by point.
    positions = np.empty((count, len(limits.names)))
    before, velocity = start.position, start.velocity
    for index in range(count):
        intervals = _intervals(limits, before, velocity, np.array([step]))
        positions[index] = intervals.clip(before)
        before, velocity = positions[index], (positions[index] - before) / step
    return np.append(times, times[-1] + duration), np.vstack((positions, positions[-1]))
