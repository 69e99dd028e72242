# SPDX-License-Identifier: Apache-2.0
"""The plans of a π0 policy.

"prefix" turns images and prompt into key and value rows; it is replayed only when they are others
than those that the rows were computed from. "denoise" draws noise and goes all Euler steps from
there to actions; "denoise_led" does so led by real-time chunking. All have a key for each prompt
bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from flashrt_ros.models.guidance import Lead, guided, taken_out_of_inference
from flashrt_ros.models.pi0.images import ImagePreprocessor
from flashrt_ros.models.pi0.network import KeyValues, Pi0Network
from flashrt_ros.models.pi0.normalisation import Normalisation
from flashrt_ros.models.pi0.state import Sizes
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.plans import Backend, Plan, ShapeKey, bucket_for
from flashrt_ros.runtime.random import normal, stream_id

_STREAM = stream_id("action_noise")  # a number: hashing the name would break a compiled graph


@dataclass(frozen=True)
class Computation:
    """What the plans compute with; nothing here changes.

    steps: Euler steps; buckets: prompt lengths that plans are made for, sorted; chunk_dt: s between
    the points of a chunk. normalisation is of radians and on the network's device.
    """

    network: Pi0Network
    images: ImagePreprocessor
    normalisation: Normalisation
    sizes: Sizes
    steps: int
    buckets: tuple[int, ...]
    chunk_dt: float

    def state(self, joints: Tensor) -> Tensor:
        """Joint positions [1, joints], rad, as the network takes them: [1, max_state_dim]."""
        state = self.normalisation.state.normalise(joints)
        width = int(self.network.config.max_state_dim)
        return pad(state, (0, width - state.shape[-1])).to(self.sizes.dtype)

    def actions(self, flowed: Tensor) -> Tensor:
        """The end of the flow [1, chunk, max_action_dim] as joint positions, float32, rad."""
        return self.normalisation.action.restore(flowed[..., : self.sizes.joints].float())


class Pi0Plans:
    """Both plans, captured over an arena."""

    def __init__(
        self, arena: Arena, computation: Computation, backend: Backend | str, *, led: bool = False
    ) -> None:
        self._buffers = {name: arena[name] for name in arena}
        self._computation = computation
        sizes = computation.sizes
        names = [f"layer{i}.attention" for i in range(sizes.layers)]
        self._memory = KeyValues(
            [arena[f"{name}.key"] for name in names], [arena[f"{name}.value"] for name in names]
        )
        rows = [sizes.image_tokens + bucket for bucket in computation.buckets]
        self.prefix = Plan("prefix", self._run_prefix, [ShapeKey(n, n) for n in rows], backend)
        keys = [ShapeKey(sizes.suffix, n) for n in rows]
        self.denoise = Plan("denoise", self._run_denoise, keys, backend)
        self.denoise_led = Plan("denoise_led", self._run_denoise_led, keys, backend)
        with torch.inference_mode():
            pool = self.prefix.capture(arena)
            pool = self.denoise.capture(arena, pool)
            if led:
                self.denoise_led.capture(arena, pool)

    def replay(self, *, led: bool = False) -> None:
        """One tick. Raises ValueError before the first instruction."""
        sizes = self._computation.sizes
        with torch.inference_mode():
            stale, length = self._look()
            if length == 0:
                raise ValueError("no instruction yet: write one before the first tick")
            rows = sizes.image_tokens + bucket_for(length, self._computation.buckets)
            if stale:
                self.prefix.replay(ShapeKey(rows, rows))
            plan = self.denoise_led if led else self.denoise
            plan.replay(ShapeKey(sizes.suffix, rows))

    def _look(self) -> tuple[bool, int]:
        """Whether the prefix rows are of other inputs, and the prompt's length: one transfer."""
        buffers = self._buffers
        pairs = [("io.prompt", "prefix.prompt"), ("prompt.length", "prefix.length")]
        pairs += [(f"io.{camera}", f"prefix.{camera}") for camera in self._cameras()]
        differ = torch.stack([(buffers[now] != buffers[then]).any() for now, then in pairs]).any()
        stale, length = torch.stack([differ.long(), buffers["prompt.length"]]).tolist()
        return bool(stale), int(length)

    def _cameras(self) -> Sequence[str]:
        return [f"camera{index}.image" for index in range(len(self._computation.sizes.cameras))]

    # -- what is captured

    def _run_prefix(self, key: ShapeKey) -> None:
        buffers, computation = self._buffers, self._computation
        for index, camera in enumerate(self._cameras()):
            image = buffers[f"io.{camera}"]
            buffers["io.pixels"][index].copy_(computation.images(image))
            buffers[f"prefix.{camera}"].copy_(image)
        prompt, length = buffers["io.prompt"], buffers["prompt.length"]
        bucket = prompt[:, : key.bucket - computation.sizes.image_tokens]
        computation.network.prefix(buffers["io.pixels"], bucket, length, self._memory)
        buffers["prefix.prompt"].copy_(prompt)
        buffers["prefix.length"].copy_(length)
        buffers["prefix.replays"].add_(1)

    def _run_denoise(self, key: ShapeKey) -> None:
        moving = self._noise()
        slope, velocity = -1.0 / self._computation.steps, self._velocity(key)
        for index in range(self._computation.steps):
            moving = moving + slope * velocity(moving, 1.0 + index * slope)
        self._commit(self._computation.actions(moving))

    def _run_denoise_led(self, key: ShapeKey) -> None:
        """π0's time is 1 - tau, and its velocity points from actions to noise."""
        computation, buffers = self._computation, self._buffers
        lead = Lead.read(buffers, buffers["action.chunk"], computation.chunk_dt)
        target = computation.normalisation.action.normalise(lead.actions).to(
            computation.sizes.dtype
        )
        moving, target = taken_out_of_inference([self._noise(), target])
        with torch.inference_mode(False), torch.no_grad():
            velocity = self._velocity(key, loose=True)
            for index in range(computation.steps):
                tau = index / computation.steps

                def towards(x: Tensor, tau: float = tau) -> Tensor:
                    return -velocity(x, 1.0 - tau)

                moving = moving + guided(towards, moving, tau, target, lead) / computation.steps
        self._commit(lead.keep_frozen(computation.actions(moving)))
        buffers["io.rtc.frozen"].zero_()

    def _noise(self) -> Tensor:
        """This tick's noise, which its buffer then holds."""
        noise, step = self._buffers["random.noise"], self._buffers["random.step"]
        seed = self._buffers["random.seed"]
        noise.copy_(normal(noise.shape, seed=seed, step=step, stream=_STREAM, dtype=noise.dtype))
        return noise

    def _velocity(self, key: ShapeKey, loose: bool = False) -> Callable[[Tensor, float], Tensor]:
        """The network's velocity, a function of noisy actions and π0's time."""
        computation, buffers = self._computation, self._buffers
        valid = computation.sizes.image_tokens + buffers["prompt.length"]
        state = computation.state(buffers["io.joints"])
        if loose:
            valid, state = taken_out_of_inference([valid, state])

        def velocity(noisy: Tensor, time: float) -> Tensor:
            return computation.network.velocity(
                state, noisy, time, valid, key.bucket, self._memory, loose
            )

        return velocity

    def _commit(self, actions: Tensor) -> None:
        """The chunk [1, chunk, joints], rad, into its buffer; the step one on."""
        buffers = self._buffers
        # Not copy_: see check_same in runtime/compiled.py.
        torch.mul(buffers["action.chunk"], 1.0, out=buffers["action.previous"])
        buffers["action.chunk"].copy_(actions)
        buffers["action.cursor"].zero_()
        buffers["random.step"].add_(1)
