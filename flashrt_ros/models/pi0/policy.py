# SPDX-License-Identifier: Apache-2.0
"""A π0 policy over an arena: inputs into buffers, a tick, a chunk out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np
import torch

from flashrt_ros.models.guidance import check_captured, write_guidance
from flashrt_ros.models.pi0.checkpoint import Parts, config_text
from flashrt_ros.models.pi0.images import ImagePreprocessor, check_images
from flashrt_ros.models.pi0.network import Pi0Network
from flashrt_ros.models.pi0.plans import Computation, Pi0Plans
from flashrt_ros.models.pi0.state import Sizes, buffer_specs
from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.buffers import BufferSpec
from flashrt_ros.runtime.fingerprint import Fingerprint, device_family, text_digest
from flashrt_ros.runtime.plans import Backend


class Pi0Policy:
    """Implements `PolicyModel`; made by `adopt_pi0`. See `state.buffer_specs` for its buffers.

    parts: what it is made of; steps: Euler steps from noise to actions; buckets: prompt lengths
    that plans are made for, the longest prompt among them. Raises ValueError for parts that do not
    fit each other, naming them.
    """

    guided = False

    def __init__(self, parts: Parts, *, steps: int, buckets: Sequence[int]) -> None:
        network = Pi0Network(parts.model)
        robot = parts.robot
        self.name = f"pi0:{parts.name}"
        self.spec = PolicySpec(
            cameras={name: (*size, 3) for name, size in robot.cameras.items()},
            joint_names=robot.joint_names,
            chunk_length=int(network.config.chunk_size),
            chunk_dt=robot.chunk_dt,
            tick_period=robot.tick_period,
        )
        self._sizes = _sizes(network, self.spec, parts.prompt.max_length)
        self._prompt = parts.prompt
        self._computation = Computation(
            network,
            ImagePreprocessor(parts.images, network.device),
            parts.normalisation.in_radians(robot.joint_unit).to(network.device),
            self._sizes,
            steps,
            tuple(sorted(set(buckets))),
            self.spec.chunk_dt,
        )
        _check_fit(parts, self._computation, self.spec)
        self.fingerprint = Fingerprint(
            model="pi0",
            weights=parts.weights,
            config=text_digest(_meaning(parts, self._computation)),
            dtype=str(network.dtype).removeprefix("torch."),
            device=device_family(network.device),
        )

    # -- PolicyModel

    def buffer_specs(self) -> list[BufferSpec]:
        """Every buffer that it needs."""
        return buffer_specs(self._sizes)

    def bind(self, arena: Arena, *, seed: int, backend: Backend | str = Backend.EAGER) -> None:
        """Zero every buffer, write the seed, and capture the plans of every bucket."""
        for spec in self.buffer_specs():
            arena[spec.name].zero_()
        arena["random.seed"].fill_(seed)
        self._arena = arena
        self.plans = Pi0Plans(arena, self._computation, backend, led=self.guided)
        self._led = False

    def twin(self) -> Pi0Policy:
        """See `TwinPolicy.twin`: network, tokenizer and statistics are the same objects."""
        other = copy(self)
        for bound in ("_arena", "plans"):
            other.__dict__.pop(bound, None)
        return other

    def write_seed(self, seed: int) -> None:
        """Write `random.seed`."""
        self._arena["random.seed"].fill_(seed)

    def check_instruction(self, text: str) -> None:
        """Raise ValueError for a text that is too long or has words or tokens that can't be."""
        self._prompt.encode(text)

    def write_instruction(self, text: str) -> None:
        """Write `io.prompt` and `prompt.length`. Raises as `check_instruction`."""
        ids = self._prompt.encode(text)
        padded = torch.zeros(1, self._sizes.prompt, dtype=torch.int64)
        padded[0, : len(ids)] = torch.tensor(ids)
        self._arena["io.prompt"].copy_(padded)
        self._arena["prompt.length"].fill_(len(ids))

    def write_observation(self, images: Mapping[str, np.ndarray], positions: np.ndarray) -> None:
        """Write `io.camera*.image` and `io.joints`; see `PolicyModel.write_observation`."""
        check_images(images, self.spec.cameras)
        joints = np.array(positions, dtype=np.float32)
        if joints.shape != (self._sizes.joints,):
            raise ValueError(
                f"positions have shape {list(joints.shape)}, expected [{self._sizes.joints}]: "
                f"{', '.join(self.spec.joint_names)}"
            )
        if not np.isfinite(joints).all():
            raise ValueError(f"positions are not all finite: {joints.tolist()}")
        for index, name in enumerate(self.spec.cameras):
            # Pictures out of messages may be read-only, of which torch would warn.
            image = torch.from_numpy(np.require(images[name], requirements=["C", "W"]))
            self._arena[f"io.camera{index}.image"].copy_(image)
        self._arena["io.joints"].copy_(torch.from_numpy(joints[None]))

    def tick(self) -> None:
        """One step: the prefix if its inputs changed, then noise to actions.

        Raises ValueError before the first instruction.
        """
        led, self._led = self._led, False
        self.plans.replay(led=led)

    def write_conditioning(self, **numbers: int) -> None:
        """See `TakesConditioning.write_conditioning`."""
        write_guidance(self._arena, self._sizes.chunk, numbers)
        self._led = numbers["frozen"] > 0
        check_captured(self, self._led, self.plans.denoise_led)

    def chunk(self) -> np.ndarray:
        """The last tick's chunk, a copy: float32 [chunk_length, joints], rad, absolute."""
        return self._arena["action.chunk"][0].cpu().numpy().copy()

    # -- more than PolicyModel

    @property
    def prefix_replays(self) -> int:
        """How often the prefix was computed on the live lineage; a restore puts it back too."""
        return int(self._arena["prefix.replays"])

    @property
    def cursor(self) -> int:
        """Points of the chunk that were executed, as `advance` was told."""
        return int(self._arena["action.cursor"])

    def advance(self, points: int) -> None:
        """Say that `points` more points of the chunk were executed; a tick starts from 0 again.

        For those who execute chunks without an engine; no plan reads it. Raises ValueError beyond
        the chunk.
        """
        if points < 0 or self.cursor + points > self._sizes.chunk:
            raise ValueError(
                f"{points} points after {self.cursor}: the chunk has {self._sizes.chunk}"
            )
        self._arena["action.cursor"].add_(points)


def _sizes(network: Pi0Network, spec: PolicySpec, prompt: int) -> Sizes:
    return Sizes(
        cameras=tuple(spec.cameras.values()),
        image_size=network.image_size,
        image_tokens=len(spec.cameras) * network.tokens_per_image,
        prompt=prompt,
        suffix=network.suffix,
        layers=network.layers,
        heads=network.heads,
        head_size=network.head_size,
        joints=len(spec.joint_names),
        chunk=spec.chunk_length,
        action_width=int(network.config.max_action_dim),
        dtype=network.dtype,
    )


def _check_fit(parts: Parts, computation: Computation, spec: PolicySpec) -> None:
    """Raise ValueError naming parts that do not fit each other."""
    sizes, buckets, config = computation.sizes, computation.buckets, computation.network.config
    if computation.steps < 1:
        raise ValueError(f"{computation.steps} Euler steps, expected 1 or more")
    if not buckets or buckets[0] < 1 or buckets[-1] != sizes.prompt:
        raise ValueError(
            f"prompt buckets {list(buckets)}: expected lengths up to {sizes.prompt}, the longest "
            "prompt"
        )
    for name in ("max_state_dim", "max_action_dim"):
        if sizes.joints > getattr(config, name):
            raise ValueError(
                f"{sizes.joints} joints, the model's {name} is {getattr(config, name)}"
            )
    for normaliser in (parts.normalisation.state, parts.normalisation.action):
        if normaliser.size not in (0, sizes.joints):
            raise ValueError(
                f"statistics of {normaliser.feature!r} have {normaliser.size} numbers, the robot "
                f"has {sizes.joints} joints: {', '.join(spec.joint_names)}"
            )
    if (parts.images.height, parts.images.width) != (sizes.image_size, sizes.image_size):
        raise ValueError(
            f"images of {parts.images.height} x {parts.images.width}, the vision tower takes "
            f"{sizes.image_size} x {sizes.image_size}"
        )
    for camera, (height, width, _) in spec.cameras.items():
        if min(parts.images.resized(height, width)) < 1:
            raise ValueError(f"camera {camera!r}: {height} x {width} shrinks to nothing")


def _meaning(parts: Parts, computation: Computation) -> str:
    """What decides, beside the weights, what the buffers mean."""
    return "\0".join(
        [
            config_text(computation.network.config),
            repr(parts.robot),
            repr(parts.images),
            parts.normalisation.describe(),
            parts.prompt.describe(),
            f"{computation.steps} steps, buckets {computation.buckets}",
        ]
    )
