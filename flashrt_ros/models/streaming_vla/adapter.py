# SPDX-License-Identifier: Apache-2.0
"""The streaming policy over an arena: every number that outlives a tick is in a named buffer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from flashrt_ros.models.guidance import (
    Lead,
    check_captured,
    guidance_specs,
    write_guidance,
)
from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.models.streaming_vla.checkpoint import WEIGHTS, Checkpoint
from flashrt_ros.models.streaming_vla.fused import FusedTick
from flashrt_ros.models.streaming_vla.state import TickCache, state_shapes
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.fingerprint import (
    Fingerprint,
    device_family,
    text_digest,
    weights_digest,
)
from flashrt_ros.runtime.plans import Backend, Plan, ShapeKey
from flashrt_ros.runtime.random import normal, stream_id

_TICK = ShapeKey(query=3)
_STREAM = stream_id("action_noise")  # a number: hashing inside of a plan would cut it in two
_ROLES = {
    "key": Role.KV,
    "value": Role.KV,
    "recurrent": Role.RECURRENT,
    "conv": Role.CONV,
}


class StreamingVLAPolicy:
    """Implements `PolicyModel` for checkpoints of model type "streaming_vla".

    Buffers: the blocks' caches (`layer*.…`); `random.seed` and `random.step`, the ticks done,
    which also say where in the attention's ring the next tick goes; `io.*`, the inputs;
    `action.chunk`, the last tick's chunk, and `action.previous`, the one before it, rad;
    `io.rtc.*`, what real-time chunking is told (`TakesConditioning`).
    """

    guided = False

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self._checkpoint = Checkpoint.load(folder, device)
        self._device = torch.device(device)
        config = self._checkpoint.config
        self.name = f"{config.model_type}:{folder.name}"
        size = config.image_size
        self.spec = PolicySpec(
            cameras={config.camera: (size, size, 3)},
            joint_names=config.joint_names,
            chunk_length=config.chunk_length,
            chunk_dt=config.chunk_dt,
            tick_period=config.tick_period,
        )
        # Normalisation and tokenizer decide what the buffers mean as much as the config does.
        meaning = [json.dumps(asdict(config), sort_keys=True)]
        meaning += [(folder / n).read_text() for n in ("normalisation.json", "tokenizer.json")]
        self.fingerprint = Fingerprint(
            model=config.model_type,
            weights=weights_digest(folder, pattern=WEIGHTS),
            config=text_digest("\0".join(meaning)),
            dtype="float32",
            device=device_family(device),
        )

    def buffer_specs(self) -> list[BufferSpec]:
        """Every buffer, all of kind fixed: a tick overwrites each, the ring of keys included."""
        config = self._checkpoint.config
        joints, chunk = len(config.joint_names), config.chunk_length
        real, whole = torch.float32, torch.int64
        specs = [
            BufferSpec(name, _ROLES[name.rpartition(".")[2]], real, shape)
            for name, shape in state_shapes(config).items()
        ]
        image = (1, config.image_size, config.image_size, 3)
        return [
            *specs,
            BufferSpec("random.seed", Role.RANDOM, whole, ()),
            BufferSpec("random.step", Role.RANDOM, whole, ()),
            BufferSpec("io.image", Role.IO, torch.uint8, image),
            BufferSpec("io.joints", Role.IO, real, (1, joints)),
            BufferSpec("io.instruction", Role.IO, whole, (1, config.instruction_length)),
            BufferSpec("action.chunk", Role.ACTION, real, (1, chunk, joints)),
            BufferSpec("action.previous", Role.ACTION, real, (1, chunk, joints)),
            *guidance_specs(),
        ]

    def bind(self, arena: Arena, *, seed: int, backend: Backend | str = Backend.EAGER) -> None:
        """Zero every buffer, write the seed, and capture the tick.

        Until an instruction is written the buffers hold padding only; write one before a tick.
        """
        config = self._checkpoint.config
        for spec in self.buffer_specs():
            arena[spec.name].zero_()
        arena["random.seed"].fill_(seed)
        tensors = {name: arena[name] for name in state_shapes(config)}
        self._arena = arena
        with torch.inference_mode():
            self._cache = TickCache(
                config, tensors, arena["random.step"], self._checkpoint.network.rotary
            )
        # Eager is the reference: transformers' own blocks. What is captured is the fused tick.
        network = self._checkpoint.network
        self._network = network if Backend(backend) is Backend.EAGER else FusedTick(network)
        self._plan = Plan("tick", self._run, [_TICK], backend)
        self._led_plan = Plan("tick_led", self._run_led, [_TICK], backend)
        self._led = False
        with torch.inference_mode():
            pool = self._plan.capture(arena)
            if self.guided:
                self._led_plan.capture(arena, pool)
        # Plans differ in the last bits. "fused": meant to be compiled, and was not.
        active = self._plan.active
        plan = str(active) if active is self._plan.backend else "fused"
        self.fingerprint = replace(self.fingerprint, plan=plan)

    def twin(self) -> StreamingVLAPolicy:
        """See `TwinPolicy.twin`: network, tokenizer and statistics are the same objects."""
        other = copy(self)
        for bound in ("_arena", "_cache", "_plan", "_led_plan"):
            other.__dict__.pop(bound, None)
        return other

    def write_seed(self, seed: int) -> None:
        """Write `random.seed`."""
        self._arena["random.seed"].fill_(seed)

    def check_instruction(self, text: str) -> None:
        """Raise ValueError naming the words that it does not know."""
        self._checkpoint.tokenizer.encode(text)

    def write_instruction(self, text: str) -> None:
        """Write an instruction into `io.instruction`. Raises as `check_instruction`."""
        ids = torch.tensor([self._checkpoint.tokenizer.encode(text)], device=self._device)
        self._arena["io.instruction"].copy_(ids)

    def write_observation(self, images: Mapping[str, np.ndarray], positions: np.ndarray) -> None:
        """Write `io.image` and `io.joints`; see `PolicyModel.write_observation`."""
        (camera, shape), *_ = self.spec.cameras.items()
        if camera not in images:
            raise ValueError(f"no image of camera {camera!r}, got {sorted(images)}")
        image = np.asarray(images[camera])
        if image.shape != shape or image.dtype != np.uint8:
            raise ValueError(
                f"image of camera {camera!r} is {image.dtype} {list(image.shape)}, "
                f"expected uint8 {list(shape)}"
            )
        joints = np.asarray(positions, dtype=np.float32)
        if joints.shape != (len(self.spec.joint_names),):
            raise ValueError(
                f"positions have shape {list(joints.shape)}, expected "
                f"[{len(self.spec.joint_names)}]: {', '.join(self.spec.joint_names)}"
            )
        if not np.isfinite(joints).all():
            raise ValueError(f"positions are not all finite: {joints.tolist()}")
        self._arena["io.image"].copy_(torch.from_numpy(np.ascontiguousarray(image)[None]))
        self._arena["io.joints"].copy_(torch.from_numpy(joints[None]))

    def tick(self) -> None:
        """One replay: a chunk from the inputs and the state, and the state one step on."""
        plan = self._led_plan if self._led else self._plan
        self._led = False
        with torch.inference_mode():
            plan.replay(_TICK)

    def write_conditioning(self, **numbers: int) -> None:
        """See `TakesConditioning.write_conditioning`."""
        write_guidance(self._arena, self.spec.chunk_length, numbers)
        self._led = numbers["frozen"] > 0
        check_captured(self, self._led, self._led_plan)

    def chunk(self) -> np.ndarray:
        """The last tick's chunk, a copy: float32 [chunk_length, joints], rad, absolute."""
        return self._arena["action.chunk"][0].cpu().numpy().copy()

    def _run(self, key: ShapeKey) -> None:
        hidden, state, noise = self._perceive()
        self._commit(self._network.act(hidden, state, noise))

    def _run_led(self, key: ShapeKey) -> None:
        arena, network = self._arena, self._checkpoint.network
        normalisation, joints = self._checkpoint.normalisation, arena["io.joints"]
        lead = Lead.read(arena, arena["action.chunk"], self.spec.chunk_dt)
        hidden, state, noise = self._perceive()
        target = normalisation.actions(lead.actions, joints)
        self._commit(network.act_led(hidden, state, noise, target, lead), lead)
        arena["io.rtc.frozen"].zero_()

    def _perceive(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The backbone's output, the normalised state and the noise of this tick."""
        arena, network = self._arena, self._network
        state = self._checkpoint.normalisation.state(arena["io.joints"])
        features = network.vision(arena["io.image"])
        hidden = network.tick(features, arena["io.instruction"], state, self._cache)
        seed, step = arena["random.seed"], arena["random.step"]
        noise = normal(arena["action.chunk"].shape, seed=seed, step=step, stream=_STREAM)
        return hidden, state, noise

    def _commit(self, actions: torch.Tensor, lead: Lead | None = None) -> None:
        """The chunk into its buffer, the step one on."""
        arena, chunk = self._arena, self._arena["action.chunk"]
        # Not copy_: see check_same in runtime/compiled.py.
        torch.mul(chunk, 1.0, out=arena["action.previous"])
        absolute = self._checkpoint.normalisation.chunk(actions, arena["io.joints"])
        chunk.copy_(absolute if lead is None else lead.keep_frozen(absolute))
        arena["random.step"].add_(1)
