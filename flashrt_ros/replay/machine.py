# SPDX-License-Identifier: Apache-2.0
"""The policy of a run, bound to buffers of its own, with the states that the run goes back to."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch

import flashrt_ros
from flashrt_ros.models import load_policy
from flashrt_ros.models.policy import PolicyModel, PolicySpec, write_inputs
from flashrt_ros.policies.observation import Observation
from flashrt_ros.replay.run import CannotReplay, Run, RunInfo
from flashrt_ros.replay.shelf import Shelf, StateKey
from flashrt_ros.runtime import Arena, Role, RuntimeFault, Session, StateItem, Store, Tier
from flashrt_ros.runtime.capsule import Capsule
from flashrt_ros.runtime.fingerprint import Fingerprint, MatchPolicy, weights_digest
from flashrt_ros.runtime.transfer import buffer_digests

STATE_FIELDS = ("model", "weights", "config", "dtype", "table")
"""Fields of the fingerprint that give the buffers their meaning."""


class _Conditioned(Protocol):
    guided: bool

    def write_conditioning(self, **values: int) -> None: ...


class Machine:
    """Ticks, and goes to states that it was in, or that a shelf of capsules has.

    Args:
        run: whose policy; its seed, back end and first instruction are used.
        model: see `replay`; a policy that is not bound yet is bound here.
        shelf: capsules that the run may go to without having been there in this replay.
        backend: how plans are replayed; None: as recorded.
        device: None: as recorded.

    Raises:
        CannotReplay: the policy cannot be loaded here, or has other inputs than the run's.
    """

    def __init__(
        self,
        run: Run,
        model: str | Path | PolicyModel | None = None,
        *,
        shelf: Shelf | None = None,
        backend: str | None = None,
        device: str | None = None,
    ) -> None:
        info = run.info
        self._info = info
        self.backend = backend or str(info.parameters.get("backend", "eager"))
        self.device = device or str(info.parameters.get("device", "cpu"))
        self.folder = _folder(info, model)
        self.model = self._loaded(model)
        _check_spec(self.model, info)
        if any("conditioning" in event.detail for event in run.events):
            # A policy that was led by the chunk under way has buffers for that.
            cast(_Conditioned, self.model).guided = True
        arena = Arena(self.model.buffer_specs(), device=self.device)
        self.model.bind(arena, seed=info.seed, backend=self.backend)
        arena.seal()
        self.instruction = info.instruction
        try:
            self.model.write_instruction(self.instruction)
        except ValueError as error:
            raise CannotReplay(f"the run's first instruction: {error}") from error
        self.session = Session(
            arena,
            fingerprint=self.model.fingerprint,
            store=Store(arena.device, directory=None if shelf is None else shelf.path),
            seed=info.seed,
            policy=MatchPolicy.STATE_COMPATIBLE,
        )
        self._shelf = shelf
        self._values: dict[str, Any] = {"instruction": self.instruction}
        for name in shelf.items if shelf is not None else ("instruction",):
            self._register(name)
        self._first = StateKey(0, self.instruction)
        self._kept: dict[StateKey, Capsule] = {}

    def close(self) -> None:
        """Give the memory back."""
        self.session.close()
        self.session.store.close()

    # -- ticking

    def tick(self, observation: Observation, conditioning: Mapping[str, int]) -> np.ndarray:
        """One tick; the policy's chunk, float32 [points, joints], rad or m.

        Raises:
            CannotReplay: the policy refuses the observation or fails on it.
        """
        try:
            write_inputs(self.model, observation.images, observation.positions, observation.vectors)
            if conditioning:
                cast(_Conditioned, self.model).write_conditioning(**conditioning)
            self.model.tick()
        except (ValueError, RuntimeError, AttributeError) as error:
            raise CannotReplay(f"the policy failed on a recorded tick: {error}") from error
        self.session.commit(stamp_ns=observation.stamp_ns)
        return np.asarray(self.model.chunk())

    def say(self, instruction: str) -> None:
        """Change the instruction. Raises ValueError for words that the policy does not know."""
        self.model.check_instruction(instruction)
        self.model.write_instruction(instruction)
        self.instruction = self._values["instruction"] = instruction

    def digests(self) -> dict[str, str]:
        """SHA-256 (hex) of each buffer of the live state."""
        return buffer_digests(self.session.arena, dict(self.session.live.rows))

    def fingerprint(self) -> Fingerprint:
        """Of the policy here, with the back end and the buffer table of this session."""
        return self.session.fingerprint

    # -- states

    def keep(self, key: StateKey) -> None:
        """Keep the live state under a key, until it is dropped."""
        if key not in self._kept:
            self._kept[key] = self.session.snapshot(pin=True)

    def drop(self, key: StateKey) -> None:
        """Forget a kept state."""
        capsule = self._kept.pop(key, None)
        if capsule is not None:
            self.session.drop(capsule)

    def has(self, key: StateKey) -> bool:
        """Whether `go_to` can go there."""
        return key == self._first or key in self._kept or self._on_shelf(key) is not None

    def go_to(self, key: StateKey, buffers: Sequence[str] = ()) -> None:
        """Make a kept state live; with `buffers` only the roles of those, as an ablation does.

        Raises:
            CannotReplay: the state is damaged on disk, or belongs to another policy.
        """
        ref: Any = self._kept.get(key) or (
            self.session.first if key == self._first else self._on_shelf(key)
        )
        roles = self._roles(buffers) if buffers else None
        try:
            self.session.restore(ref, roles=roles)
        except RuntimeFault as fault:
            raise CannotReplay(f"the capsule of {key} cannot be restored: {fault}") from fault
        if roles is None:
            self.instruction = str(self._values["instruction"])

    def shelve(self, key: StateKey, session: str) -> None:
        """Write the live state to the shelf, for later replays of the same run."""
        if self._shelf is None or self._on_shelf(key) is not None:
            return
        capsule = self.session.snapshot(tags=Shelf.tags(session, key))
        self.session.move(capsule, Tier.DISK)
        self._shelf.add(key, capsule.id)

    # -- inside

    def _on_shelf(self, key: StateKey) -> str | None:
        return self._shelf.get(key) if self._shelf is not None else None

    def _roles(self, buffers: Sequence[str]) -> set[Role]:
        table = {spec.name: spec.role for spec in self.session.arena.table}
        roles = {table[name] for name in buffers if name in table}
        put_back = {name for name, role in table.items() if role in roles}
        if put_back != set(buffers):
            raise CannotReplay(
                f"a partial restore in the bag put back {', '.join(buffers)}; the policy here has "
                f"{', '.join(sorted(put_back))} of these roles"
            )
        return roles

    def _register(self, name: str) -> None:
        def check(value: Any) -> None:
            if name == "instruction":
                self.model.check_instruction(str(value))

        def put(value: Any) -> None:
            self._values[name] = value

        self._values.setdefault(name, None)
        self.session.register_state(
            StateItem(name, lambda: copy.deepcopy(self._values[name]), check, put)
        )

    def _loaded(self, model: str | Path | PolicyModel | None) -> PolicyModel:
        if model is not None and not isinstance(model, (str, Path)):
            return model
        try:
            return load_policy(self.folder or "", device=self.device)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise CannotReplay(
                f"the policy cannot be loaded: {error}; name a checkpoint with --model"
            ) from error


def spec_of(run: Run) -> PolicySpec:
    """The inputs and outputs of the run's policy.

    A run doesn't say how long its vectors are; only then is the policy loaded for it.
    """
    info = run.info
    plain = {*info.cameras, "instruction"}
    kinds = {kind for name, kind in info.input_types.items() if name not in plain}
    if kinds <= {"sensor_msgs/msg/JointState"} and "vectors:" not in info.contract:
        return PolicySpec(
            cameras={name: (height, width, 3) for name, (height, width) in info.cameras.items()},
            joint_names=info.joint_names,
            chunk_length=info.chunk_length,
            chunk_dt=info.chunk_dt,
            tick_period=info.tick_period,
        )
    try:
        return load_policy(_folder(info, None) or "").spec
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CannotReplay(f"the policy cannot be loaded: {error}") from error


def differing_fields(machine: Machine, info: RunInfo) -> list[tuple[str, str, str]]:
    """(field, recorded, here) of each field of the fingerprint that differs."""
    here = json.loads(machine.fingerprint().to_json())
    return [
        (name, recorded, str(here.get(name, "")))
        for name, recorded in info.fingerprint.items()
        if str(here.get(name, "")) != recorded
    ]


def weights_changed(machine: Machine, info: RunInfo, largest: int | None = None) -> str:
    """Digest of the weight files if, read in full, they are others than their kept digest says.

    The fingerprint trusts a digest that is kept beside the weights while their size and time of
    change stay; a bit that turned on a disk changes neither. Empty: they are as recorded, more
    than `largest` bytes, or not here.
    """
    recorded = info.fingerprint.get("weights", "")
    folder = machine.folder
    if folder is None or not recorded or not folder.is_dir():
        return ""
    nbytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if largest is not None and nbytes > largest:
        return ""
    try:
        if weights_digest(folder) != recorded:
            return ""  # the fingerprint says so, or it is of other files than these
        now = weights_digest(folder, full=True)
    except OSError:
        return ""
    return now if now != recorded else ""


@contextmanager
def recorded_threads(info: RunInfo) -> Iterator[None]:
    """As many CPU threads as the run had: how a sum is split decides about its last bit."""
    before = torch.get_num_threads()
    recorded = info.software.get("torch_threads", "")
    torch.set_num_threads(int(recorded) if recorded.isdigit() and int(recorded) > 0 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _folder(info: RunInfo, model: str | Path | PolicyModel | None) -> Path | None:
    if model is not None and not isinstance(model, (str, Path)):
        return None
    if model is None and info.model_path and Path(info.model_path).exists():
        return Path(info.model_path)
    # On another machine the checkpoint lies elsewhere; a shipped one is found by its name.
    named = Path(model if model is not None else info.model)
    shipped = Path(flashrt_ros.__file__).parent / "checkpoints" / named
    return shipped if not named.exists() and len(named.parts) == 1 and shipped.is_dir() else named


def _check_spec(model: PolicyModel, info: RunInfo) -> None:
    spec = model.spec
    sizes = {name: (shape[0], shape[1]) for name, shape in spec.cameras.items()}
    for what, recorded, here in (
        ("cameras", dict(info.cameras), sizes),
        ("joints", tuple(info.joint_names), tuple(spec.joint_names)),
        ("points of a chunk", info.chunk_length, spec.chunk_length),
        ("time between points", info.chunk_dt, spec.chunk_dt),
    ):
        if recorded != here:
            raise CannotReplay(
                f"policy '{model.name}' has other {what} than the run: {here}, recorded {recorded}"
            )
