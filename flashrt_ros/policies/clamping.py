# SPDX-License-Identifier: Apache-2.0
"""What keeps a trajectory within the limits of its joints.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import inf, sqrt

import numpy as np

from flashrt_ros.policies.limits import Breach, CommandState, JointLimit, JointLimits, LimitKind


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


def _clamp_joint(
    limit: JointLimit,
    asked: Iterable[float | None],
    steps: Sequence[float],
    before: float,
    velocity: float,
) -> list[float]:
    """One joint's points: `_intervals` and their `clip`, one after another, bit for bit.

    A point depends on the one before, so points can't be one array, and a joint is too little for
    one: plain arithmetic, without a call but for the root, takes a fraction of the time.

    Args:
        limit: of the joint.
        asked: the positions; None: to stay where it is.
        steps: the time to each from the one before, s.
        before, velocity: where the joint begins, and how fast.
    """
    lower, upper, fastest, jump = limit.lower, limit.upper, limit.velocity, limit.jump
    acceleration, doubled = limit.acceleration, 2 * limit.acceleration
    brakes_up = acceleration < inf and upper < inf
    brakes_down = acceleration < inf and lower > -inf
    result = []
    for position, step in zip(asked, steps, strict=False):
        change, distance = acceleration * step, fastest * step
        # Position, with room to stop: see `_fastest`.
        room = upper - before if before < upper else 0.0
        speed = room / step
        if brakes_up:
            speed = doubled * room / (change + sqrt(change * change + doubled * room))
        up = before + step * speed
        up = up if up < upper else upper
        room = before - lower if before > lower else 0.0
        speed = room / step
        if brakes_down:
            speed = doubled * room / (change + sqrt(change * change + doubled * room))
        down = before - step * speed
        down = down if down > lower else lower
        # Velocity, then acceleration.
        end = before + distance
        inner = up if up < end else end
        end = before + (velocity + change) * step
        inner = inner if inner < end else end
        end = before - distance
        outer = down if down > end else end
        end = before + (velocity - change) * step
        outer = outer if outer > end else end
        # Jump, which yields to the others.
        end = before + jump
        highest = end if end > outer else outer
        end = before - jump
        lowest = end if end < inner else inner
        inner = inner if inner < highest else highest
        outer = outer if outer > lowest else lowest
        # The nearest position that is in all of them; see `_Intervals.clip`.
        after = before if position is None else position
        after = after if after > outer else outer
        after = after if after < inner else inner
        after = after if after > down else down
        after = after if after < up else up
        result.append(after)
        before, velocity = after, (after - before) / step
    return result


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
    steps = np.diff(times, prepend=0.0).tolist()
    begin = zip(start.position.tolist(), start.velocity.tolist(), strict=True)
    for joint, (limit, (before, velocity)) in enumerate(zip(limits.each(), begin, strict=True)):
        asked = positions[:, joint].tolist()
        result[:, joint] = _clamp_joint(limit, asked, steps, before, velocity)
    return result


def starts_outside(limits: JointLimits, position: np.ndarray) -> str:
    """Which joint is outside its limits of position; empty: none."""
    for name, value, lower, upper in zip(
        limits.names, position, limits.lower, limits.upper, strict=True
    ):
        if not lower <= value <= upper:
            return f"joint '{name}' is at {value:.4g}, outside its limits {lower:g} to {upper:g}"
    return ""


def starts_within(limits: JointLimits, start: CommandState) -> str:
    """Why no trajectory from this start can keep to the limits; empty: one can."""
    outside = starts_outside(limits, start.position)
    if outside:
        return outside
    speed = np.abs(start.velocity)
    room = np.where(
        start.velocity > 0, limits.upper - start.position, start.position - limits.lower
    )
    with np.errstate(invalid="ignore"):
        stoppable = np.sqrt(2 * limits.acceleration * room)
    fastest = np.fmin(limits.velocity, stoppable)
    for name, value, limit in zip(limits.names, speed, fastest, strict=True):
        # What rounding has left of a limit that was kept is no reason to stop.
        if value > limit * (1 + 1e-6) + 1e-9:
            return (
                f"joint '{name}' is commanded at {value:.4g} a second, more than the {limit:.4g} "
                "at which it keeps to its limits"
            )
    return ""


def stop(
    limits: JointLimits, start: CommandState, duration: float, velocities: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """The shortest way to rest: times `[points]` and positions `[points, joints]`.

    Without limits that forbid it, or at rest, that is one point at the start's own position (0 for
    `velocities`, columns that are such), `duration` s ahead. Else each joint brakes at its limit,
    in steps of 20 ms (`duration` where that is shorter, longer where there would be more than 200);
    the last point repeats the one before, `duration` later.
    """
    columns = np.isin(np.arange(len(limits.names)), velocities)
    speed = np.where(columns, start.position, start.velocity)
    braking = np.where(columns, limits.velocity, limits.acceleration)
    longest = float(np.max(np.abs(speed) / braking, initial=0.0))
    if longest == 0.0:
        return np.array([duration]), np.where(columns, 0.0, start.position)[None]
    step = max(min(0.02, duration), longest / 200)
    count = int(np.ceil(longest / step)) + 1
    positions = np.empty((count, len(limits.names)))
    begin = zip(start.position.tolist(), start.velocity.tolist(), strict=True)
    # Asked to stand still, each joint comes as near to it as its limits allow, point by point.
    for joint, (limit, (before, slope)) in enumerate(zip(limits.each(), begin, strict=True)):
        still = repeat(0.0 if columns[joint] else None)
        positions[:, joint] = _clamp_joint(limit, still, [step] * count, before, slope)
    times = np.append(np.arange(1, count + 1) * step, count * step + duration)
    return times, np.vstack((positions, positions[-1]))
