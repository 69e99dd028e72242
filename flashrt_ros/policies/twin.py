# SPDX-License-Identifier: Apache-2.0
"""A second arena beside the live one, over the same weights and the same store."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from flashrt_ros.models.policy import PolicyModel, TwinPolicy, write_inputs
from flashrt_ros.policies.execution import nothing_under_way
from flashrt_ros.policies.observation import Observation
from flashrt_ros.runtime import Arena, Session, StateItem
from flashrt_ros.runtime.capsule import Capsule
from flashrt_ros.runtime.errors import InternalFault, Unsupported
from flashrt_ros.runtime.plans import Backend


class Twin:
    """A second arena, a model bound to it, and a session over the live session's store.

    Raises Unsupported for a model that cannot be bound twice.
    """

    def __init__(self, model: PolicyModel, live: Session, backend: Backend | str) -> None:
        if not isinstance(model, TwinPolicy):
            raise Unsupported(f"policy '{model.name}' has no twin(): it cannot be evaluated")
        geometry = live.arena.geometry
        arena = Arena(geometry.table, live.arena.device, layout=geometry.layout)
        self.model = model.twin()
        self.model.bind(arena, seed=live.seed, backend=backend)
        self.session = Session(
            arena,
            fingerprint=self.model.fingerprint,
            store=live.store,
            seed=live.seed,
            session_id=f"{live.id}.evaluation",
        )
        self._values = {item.name: item.value() for item in live.first.meta.state}
        for name in self._values:
            put = partial(self._values.__setitem__, name)
            get = partial(self._values.__getitem__, name)
            self.session.register_state(StateItem(name, get, lambda value: None, put))
        # Nobody resets a twin: its first state would only take room in the live store.
        self.session.store.drop(self.session.store.find(self.session.first))

    @property
    def instruction(self) -> str:
        """The instruction in force."""
        return str(self._values.get("instruction", ""))

    def begin(self, source: Capsule, instruction: str | None, seed: int | None) -> None:
        """Put a capsule's state into the arena, then an instruction and a seed where given."""
        self.session.restore(source)
        if instruction is not None:
            self.model.write_instruction(instruction)
            self._values["instruction"] = instruction
        if seed is not None:
            self.model.write_seed(seed)
            self.session.seed = seed

    def tick(self, observation: Observation) -> tuple[np.ndarray, float]:
        """One step: the chunk, float32 [points, joints], and the time that it took, s.

        Raises InternalFault for a chunk that is not finite.
        """
        started = time.perf_counter()
        write_inputs(self.model, observation.images, observation.positions, observation.vectors)
        self.model.tick()
        chunk = self.model.chunk()
        inference_s = time.perf_counter() - started
        if not np.isfinite(chunk).all():
            raise InternalFault("the policy gave a value that is not finite")
        if "execution" in self._values:  # nothing of a branch is executed
            self._values["execution"] = nothing_under_way(observation.stamp_ns)
        inputs = observation.digest() + self.instruction.encode()
        self.session.commit(stamp_ns=observation.stamp_ns, inputs=inputs)
        return chunk, inference_s

    def keep(self, tags: tuple[str, ...]) -> str:
        """Freeze the state as an unnamed capsule; its id."""
        return self.session.snapshot(tags=tags).id
