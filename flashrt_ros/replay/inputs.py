# SPDX-License-Identifier: Apache-2.0
"""The observations of a run, out of the messages that its bag has.

A bag is read once, forward, and only what a tick is known to have read is kept: an hour of three
cameras does not fit into memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.policies.contract import (
    CameraInput,
    Contract,
    JointsInput,
    SensorInput,
    StampSource,
)
from flashrt_ros.policies.contract_check import default_contract, resolve
from flashrt_ros.policies.contract_file import read_contract
from flashrt_ros.policies.observation import JOINTS, Observation
from flashrt_ros.replay.bag import Bag
from flashrt_ros.replay.definitions import Decoder, Raw
from flashrt_ros.replay.run import CannotReplay, ReadInput, Run, RunEvent
from flashrt_ros.ros.decoding import decode_array

REACH_NS = 10_000_000_000
"""How far from a boundary, in time of recording, its inputs are looked for, ns. Topics have no
common order: an image may be recorded after the boundary that has read it."""


@dataclass(frozen=True)
class InputFault:
    """An input that is not in the bag as the tick read it. `actual`: digest found, or "missing".

    beyond: it would have come after the place where the bag was cut.
    """

    name: str
    expected: str
    actual: str
    message: str
    beyond: bool = False


class RunInputs:
    """Gives the observation of each COMMIT, in the order of the events.

    Args:
        run: whose inputs.
        spec: of the policy.
        events: the COMMITs that will be asked for.

    Raises:
        CannotReplay: a topic is not in the bag, or an input has none.
    """

    def __init__(self, run: Run, spec: PolicySpec, events: Sequence[RunEvent]) -> None:
        self._run = run
        self._spec = spec
        self._contract = contract_of(run, spec)
        self._sources = {source.name: source for source in self._contract.inputs}
        self._bag, self._decoder = Bag(run.path), Decoder()
        self._wanted: Counter[tuple[str, int | str]] = Counter()
        for event in events:
            for item in event.inputs:
                self._wanted[self._key(item)] += 1
        self._found: dict[tuple[str, int | str], list[Raw]] = {}
        self._names = self._topics({item.name for event in events for item in event.inputs})
        start_ns = events[0].log_ns - REACH_NS if events else 0
        self._messages: Iterator[Raw] = self._bag.messages(self._names, max(start_ns, 0))
        self._last: Raw | None = None
        self._ended = False

    def observation(self, event: RunEvent) -> Observation | InputFault:
        """What a COMMIT has read, each input compared with its digest."""
        arrays: dict[str, np.ndarray] = {}
        for item in event.inputs:
            found = self._read(item, event)
            if isinstance(found, InputFault):
                return found
            arrays[item.name] = found[1]
        return self._composed(event, arrays)

    def messages(self, event: RunEvent) -> dict[str, Raw] | InputFault:
        """Input name to the message that a COMMIT has read, compared as in `observation`."""
        found = {}
        for item in event.inputs:
            read = self._read(item, event)
            if isinstance(read, InputFault):
                return read
            found[item.name] = read[0]
        return found

    def _read(self, item: ReadInput, event: RunEvent) -> tuple[Raw, np.ndarray] | InputFault:
        key, source = self._key(item), self._sources[item.name]
        differing = ""
        seen = 0
        while True:
            candidates = self._found.get(key, [])
            for raw in candidates[seen:]:
                seen += 1
                try:
                    array = decode_array(source, self._decoder.decode(raw))
                    # A policy may take the array as it is: torch warns of one that is read-only.
                    array = np.require(array, requirements=["C", "W"])
                except ValueError as error:
                    differing = f"cannot be decoded: {error}"
                    continue
                digest = digest_of(array)
                if not item.digest or digest == item.digest:
                    self._used(key)
                    return raw, array
                differing = digest
            if not self._advance(event.log_ns + REACH_NS, key, seen):
                break
        topic = self._run.info.input_topics.get(item.name, item.name)
        where = f"{topic} at {item.stamp_ns} ns, which boundary {event.boundary} has read"
        if differing:
            text = f"input '{item.name}' ({where}) is not what the policy saw: its bytes differ"
            return InputFault(item.name, item.digest, differing, text)
        text = f"input '{item.name}' ({where}) is not in the bag"
        expected = item.digest or f"a message at {item.stamp_ns} ns"
        beyond = self._ended and any("cut" in note for note in self._bag.notes)
        return InputFault(item.name, expected, "missing", text, beyond)

    def _advance(self, limit_ns: int, key: tuple[str, int | str], seen: int) -> bool:
        """Read on until there is one more candidate, or too far."""
        while self._last is None or self._last.log_ns <= limit_ns:
            raw = next(self._messages, None)
            if raw is None:
                self._ended = True
                return False
            self._last = raw
            for name in self._names[raw.topic]:
                found = self._key_of(name, raw)
                if self._wanted[found] > 0:
                    self._found.setdefault(found, []).append(raw)
            if len(self._found.get(key, [])) > seen:
                return True
        return False

    def _key(self, item: ReadInput) -> tuple[str, int | str]:
        source = self._sources.get(item.name)
        if source is None:
            raise CannotReplay(
                f"the policy has read '{item.name}', which the contract in the bag does not have"
            )
        return (item.name, item.stamp_ns if _has_stamp(source) else item.digest)

    def _key_of(self, name: str, raw: Raw) -> tuple[str, int | str]:
        source = self._sources[name]
        if _has_stamp(source):
            # CDR: 4 bytes of encapsulation, then the header's stamp
            order: Literal["little", "big"] = "little" if raw.data[1] & 1 else "big"
            sec = int.from_bytes(raw.data[4:8], order, signed=True)
            return (name, sec * 1_000_000_000 + int.from_bytes(raw.data[8:12], order))
        try:
            return (name, digest_of(decode_array(source, self._decoder.decode(raw))))
        except ValueError:
            return (name, "")

    def _used(self, key: tuple[str, int | str]) -> None:
        self._wanted[key] -= 1
        if self._wanted[key] <= 0:
            self._found.pop(key, None)

    def _topics(self, names: set[str]) -> dict[str, list[str]]:
        """Topic to the inputs that are read from it."""
        present, topics = self._bag.topics(), self._run.info.input_topics
        found: dict[str, list[str]] = {}
        missing = []
        for name in sorted(names):
            topic = topics.get(name)
            if topic is None or topic not in present:
                missing.append(f"{topic or '?'} (input '{name}')")
            else:
                found.setdefault(topic, []).append(name)
        if missing:
            raise CannotReplay(
                f"{self._run.path} lacks {', '.join(missing)}; it has "
                f"{', '.join(sorted(present))}: see docs/replay.md for what must be recorded"
            )
        return found

    def _composed(self, event: RunEvent, arrays: Mapping[str, np.ndarray]) -> Observation:
        spec = self._spec
        positions = np.zeros(len(spec.joint_names))
        sources: dict[str, tuple[int, ...]] = {}
        images, vectors = {}, {}
        for name, array in arrays.items():
            source = self._sources[name]
            if isinstance(source, CameraInput):
                images[name] = array
            elif isinstance(source, JointsInput):
                indices = tuple(spec.joint_names.index(joint) for joint in source.joints)
                positions[list(indices)] = array
                sources[name] = indices
            else:
                vectors[name] = array
        if set(sources) == {JOINTS}:
            sources = {}
        stamps = {item.name: item.stamp_ns for item in event.inputs}
        return Observation(event.stamp_ns, images, positions, stamps, vectors, sources)


def contract_of(run: Run, spec: PolicySpec) -> Contract:
    """The contract that the run's node had, fitted to the policy.

    Raises:
        CannotReplay: it does not fit.
    """
    try:
        if run.info.contract:
            reading = read_contract(run.info.contract, "the contract in the bag")
            return resolve(reading.contract, spec, reading.problems)
        return default_contract(spec)
    except ValueError as error:
        raise CannotReplay(str(error)) from error


def digest_of(array: np.ndarray) -> str:
    """The digest of one input, as `Observation.digests` has it."""
    empty = np.empty(0)
    return Observation(0, {}, empty, {}, {"x": array}, {"none": ()}).digests["x"]


def _has_stamp(source: SensorInput) -> bool:
    return source.type.stamped and source.timing.stamp is StampSource.HEADER
