# SPDX-License-Identifier: Apache-2.0
"""Single inputs in, complete observations out."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flashrt_ros.policies.contract import (
    BelowRate,
    CameraInput,
    Contract,
    JointsInput,
    SensorInput,
    StampSource,
)
from flashrt_ros.policies.observation import JOINTS, Observation
from flashrt_ros.policies.rate import RateMeter
from flashrt_ros.policies.stamps import StampGuard, whole_ns

Arrived = tuple[int, np.ndarray]
"""Stamp, ns, and array of one message, as `ros.decoding.decode` gives them."""


@dataclass(frozen=True)
class InputReport:
    """One input as diagnostics show it. age_s, rate: None while they can't be told."""

    name: str
    required: bool
    age_s: float | None
    rate: float | None
    required_rate: float | None
    dropped: int
    left_out: int


def compose(contract: Contract, arrived: Mapping[str, Arrived]) -> Observation:
    """An observation of these inputs, by name; its stamp is that of the oldest awaited one.

    A replay that knows which messages a tick saw makes the very same observation of them.

    Raises:
        KeyError: a required input is not among them, or the contract has no such input.
    """
    for name in arrived:
        contract.input(name)
    images = {each.name: arrived[each.name][1] for each in contract.cameras if _has(each, arrived)}
    vectors = {each.name: arrived[each.name][1] for each in contract.vectors if _has(each, arrived)}
    sources = joint_sources(contract)
    positions = np.empty(len(contract.joint_names), dtype=np.float64)
    for name, indices in sources.items():
        positions[list(indices)] = arrived[name][1]
    if sources == {JOINTS: tuple(range(len(positions)))}:
        sources = {}
    stamps = {each.name: arrived[each.name][0] for each in contract.inputs if each.name in arrived}
    anchor_ns = min(
        stamps[each.name]
        for each in contract.inputs
        if each.timing.await_new and each.name in stamps
    )
    return Observation(anchor_ns, images, positions, stamps, vectors, sources)


def joint_sources(contract: Contract) -> dict[str, tuple[int, ...]]:
    """Source of joint states to the indices that its joints have among the policy's."""
    return {
        source.name: tuple(contract.joint_names.index(joint) for joint in source.joints)
        for source in contract.joints
    }


def _has(source: SensorInput, arrived: Mapping[str, Arrived]) -> bool:
    return source.required or source.name in arrived


class ObservationAssembler:
    """Collects inputs and gives an observation when every awaited input has a new message.

    Nothing is invented: while a required input has not spoken, is too old, too far from the others
    or comes too slowly where the contract says hold, there is no observation and `obstacles()`
    says why. An optional input in such a state is left out. Messages out of order and duplicates
    are counted and dropped.

    In lockstep wall time decides nothing: every input is required and awaited, all with the same
    stamp, ages and rates are not judged, and the newest complete set is given again when its
    messages come again, as a simulator asks for it when an answer was lost.

    Args:
        contract: checked against the policy.
        lockstep: a world that waits for an answer to each observation.
        max_skew_s: for inputs and contracts that do not say, s.

    Raises:
        ValueError: lockstep with an input that is stamped at its receipt.
    """

    def __init__(
        self, contract: Contract, *, lockstep: bool = False, max_skew_s: float = 0.1
    ) -> None:
        self.contract = contract
        self._lockstep = lockstep
        self._inputs = {each.name: each for each in contract.inputs}
        unstamped = [n for n, each in self._inputs.items() if _is_unstamped(each)]
        if lockstep and unstamped:
            raise ValueError(
                f"lockstep: {', '.join(unstamped)} stamped at receipt; expected stamps from the "
                "header, by which a simulator's messages belong together"
            )
        self._awaited = {n for n, each in self._inputs.items() if lockstep or each.timing.await_new}
        self.max_skew_s = max_skew_s
        """May change between messages."""
        self._meters = {
            name: RateMeter(each.timing.rate)
            for name, each in self._inputs.items()
            if each.timing.rate is not None and not lockstep
        }
        self._joints = joint_sources(contract)
        self._lock = threading.Lock()
        self._newest: dict[str, Arrived] = {}
        self._fresh: set[str] = set()
        self._stamps = StampGuard(contract.time, lockstep=lockstep)
        self.left_out: Counter[str] = Counter()
        """Observations without an optional input, by input."""
        self.withheld = ""
        """Why the newest awaited messages gave no observation; empty: they did."""

    @property
    def dropped(self) -> int:
        """Messages of all inputs that were late, came twice, or before the clock began."""
        return self._stamps.drops.total()

    def clear(self) -> None:
        """Forget every input: the clock jumped back, or the node was deactivated."""
        with self._lock:
            self._newest.clear()
            self._fresh.clear()
            self._stamps.clear()
            self.withheld = ""
            for meter in self._meters.values():
                meter.clear()

    def add(self, name: str, stamp_ns: int, array: np.ndarray, now_ns: int) -> Observation | None:
        """Add a message's array.

        Args:
            name: of the input.
            stamp_ns: of the message, ns.
            array: as `ros.decoding.decode` gives it.
            now_ns: the node's clock, ns.

        Raises:
            KeyError: the contract has no such input.
            ValueError: an array of another shape or dtype, or a value that is not finite; a stamp
                of zero, or in the future.
            StampsWentBack: see there.
        """
        source = self._inputs[name]
        self._check_array(source, array)
        with self._lock:
            newest_ns = self._newest[name][0] if name in self._newest else None
            if not self._stamps.admits(name, stamp_ns, newest_ns, now_ns):
                return None
            self._newest[name] = (stamp_ns, array)
            self._fresh.add(name)
            if name in self._meters:
                self._meters[name].add(now_ns)
            return self._complete(now_ns) if name in self._awaited else None

    def missing(self) -> list[str]:
        """Names of the required inputs that have not spoken since the last `clear`."""
        with self._lock:
            return [n for n in self._inputs if self._is_required(n) and n not in self._newest]

    def obstacles(self, now_ns: int) -> dict[str, str]:
        """Why no observation can be complete now: input to reason; without those that never spoke.

        Empty in lockstep, where nothing is judged by the clock.
        """
        with self._lock:
            return {
                name: reason
                for name in self._newest
                if self._is_required(name) and (reason := self._unusable(name, now_ns))
            }

    def slow(self, now_ns: int) -> dict[str, str]:
        """Inputs that come more slowly than their required rate, and what there is to say."""
        with self._lock:
            return {
                name: self._slowness(name, meter.rate(now_ns) or 0.0)
                for name, meter in self._meters.items()
                if meter.is_below(now_ns)
            }

    def reports(self, now_ns: int) -> list[InputReport]:
        """What diagnostics show, one an input."""
        with self._lock:
            return [self._report(name, now_ns) for name in self._inputs]

    def newest_ns(self) -> dict[str, int]:
        """Input name to the stamp of its newest message, ns."""
        with self._lock:
            return {name: stamp for name, (stamp, _) in self._newest.items()}

    def positions(self) -> np.ndarray | None:
        """The newest joint positions, `[joints]`; None while a joint has not been heard of."""
        positions = np.empty(len(self.contract.joint_names), dtype=np.float64)
        with self._lock:
            for name, indices in self._joints.items():
                if name not in self._newest:
                    return None
                positions[list(indices)] = self._newest[name][1]
        return positions

    # -- under the lock ---------------------------------------------------------------------

    def _check_array(self, source: SensorInput, array: np.ndarray) -> None:
        if isinstance(source, CameraInput):
            expected = (*source.size, 3) if source.size is not None else array.shape
            if array.shape != expected or array.dtype != np.uint8:
                raise ValueError(
                    f"image of camera '{source.name}' is {array.dtype} {array.shape}, "
                    f"expected uint8 {expected}"
                )
            return
        length = len(source.joints) if isinstance(source, JointsInput) else source.length
        if array.shape != (length,):
            raise ValueError(f"'{source.name}' has shape {array.shape}, expected ({length},)")
        if not np.all(np.isfinite(array)):
            raise ValueError(f"'{source.name}' is {array.tolist()}: a value is not finite")

    def _is_required(self, name: str) -> bool:
        return self._lockstep or self._inputs[name].required

    def _complete(self, now_ns: int) -> Observation | None:
        if not self._awaited <= self._fresh:
            return None
        anchor_ns = min(self._newest[name][0] for name in self._awaited)
        usable: dict[str, Arrived] = {}
        for name in self._inputs:
            misfit = self._misfit(name, anchor_ns, now_ns)
            if not misfit:
                usable[name] = self._newest[name]
            elif self._is_required(name):
                self.withheld = misfit
                return None
            else:
                self.left_out[name] += 1
        self.withheld = ""
        self._fresh.clear()
        return compose(self.contract, usable)

    def _misfit(self, name: str, anchor_ns: int, now_ns: int) -> str:
        """Why an input can't be part of an observation of that stamp; empty: it can."""
        if name not in self._newest:
            return f"nothing yet from {name}"
        distance_ns = self._newest[name][0] - anchor_ns
        asked = (self._inputs[name].timing.max_skew, self.contract.time.max_skew, self.max_skew_s)
        skew_s = 0.0 if self._lockstep else next(value for value in asked if value is not None)
        if abs(distance_ns) > whole_ns(skew_s):
            return (
                f"{name} is {distance_ns * 1e-9:+.3f} s from the observation, at most "
                f"{skew_s} s is allowed"
            )
        return self._unusable(name, now_ns)

    def _unusable(self, name: str, now_ns: int) -> str:
        """Why this input can't be used now, whatever the others are; empty: it can."""
        if self._lockstep:
            return ""
        timing = self._inputs[name].timing
        age_ns = now_ns - self._newest[name][0]
        if timing.max_age is not None and age_ns > whole_ns(timing.max_age):
            return f"{name} is {age_ns * 1e-9:.3f} s old, at most {timing.max_age} s is allowed"
        meter = self._meters.get(name)
        if meter is not None and timing.below_rate is BelowRate.HOLD and meter.is_below(now_ns):
            return self._slowness(name, meter.rate(now_ns) or 0.0)
        return ""

    def _slowness(self, name: str, rate: float) -> str:
        return f"{name} comes at {rate:.1f} Hz, {self._inputs[name].timing.rate} Hz is required"

    def _report(self, name: str, now_ns: int) -> InputReport:
        arrived, meter = self._newest.get(name), self._meters.get(name)
        return InputReport(
            name=name,
            required=self._is_required(name),
            age_s=None if arrived is None else (now_ns - arrived[0]) * 1e-9,
            rate=None if meter is None else meter.rate(now_ns),
            required_rate=None if meter is None else meter.required,
            dropped=self._stamps.drops[name],
            left_out=self.left_out[name],
        )


def _is_unstamped(source: SensorInput) -> bool:
    return source.timing.stamp is StampSource.RECEIPT or not source.type.stamped
