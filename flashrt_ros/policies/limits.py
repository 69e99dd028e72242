# SPDX-License-Identifier: Apache-2.0
"""Limits of joints: of position, velocity, acceleration and jump, and what a breach does.

`clamping` says exactly what each of them means, and keeps to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
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

    def each(self) -> list[JointLimit]:
        """The limits a joint."""
        columns = [getattr(self, item.name).tolist() for item in fields(JointLimit)]
        return [JointLimit(*values) for values in zip(*columns, strict=True)]

    def of_velocities(self, columns: Sequence[int]) -> JointLimits:
        """The same for joints some of which are told velocities: what limits those.

        Their values are kept within the velocity limit and change by at most the acceleration
        limit in a second; position and jump say nothing about them.
        """
        at = np.isin(np.arange(len(self.names)), columns)
        free = np.inf
        return JointLimits(
            self.names,
            np.where(at, -self.velocity, self.lower),
            np.where(at, self.velocity, self.upper),
            np.where(at, self.acceleration, self.velocity),
            np.where(at, free, self.acceleration),
            np.where(at, free, self.jump),
        )

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
