# SPDX-License-Identifier: Apache-2.0
"""Real-time chunking: flow matching led to go on with the chunk that is being executed.

Source: Black, Galliker and Levine, "Real-Time Execution of Action Chunking Flow Policies", 2025,
arXiv 2506.07339; equation numbers are the paper's. Checked against the authors' code,
`get_prefix_weights` and `realtime_action` in `src/model.py` of
Physical-Intelligence/real-time-chunking-kinetix.

tau runs from 0 (noise) to 1 (actions). H is the chunk's length, d the actions that are frozen, s
those of the chunk under way that are executed when the new one begins. One thing is ours: the
frozen actions are put into the result as they are, so that the chunk is what is really executed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashrt_ros.models.policy import TakesConditioning
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.buffers import BufferSpec, Role
from flashrt_ros.runtime.plans import Backend, Plan

_NAMES = ("frozen", "elapsed_ns", "guidance_milli")


def guidance_specs() -> list[BufferSpec]:
    """The inputs of a guided tick, int64 scalars: see `TakesConditioning.write_conditioning`."""
    return [BufferSpec(f"io.rtc.{name}", Role.IO, torch.int64, ()) for name in _NAMES]


def write_guidance(arena: Arena, length: int, numbers: Mapping[str, int]) -> None:
    """Write them. Raises ValueError naming one that cannot be, or a name that does not exist."""
    if set(numbers) != set(_NAMES):
        raise ValueError(f"conditioning has {sorted(numbers)}, expected {sorted(_NAMES)}")
    for name in _NAMES:
        if numbers[name] < 0 or (name == "frozen" and numbers[name] >= length):
            most = f" .. {length - 1}" if name == "frozen" else " or more"
            raise ValueError(f"conditioning: {name} is {numbers[name]}, expected 0{most}")
    for name in _NAMES:
        arena[f"io.rtc.{name}"].fill_(numbers[name])


def check_captured(model: TakesConditioning, led: bool, plan: Plan) -> None:
    """Raise ValueError where a led tick's plan was needed and not captured.

    An eager plan needs no capture: a replay of a recorded run can so be led without being told.
    """
    if led and not model.guided and plan.backend is not Backend.EAGER:
        raise ValueError(
            f"{model.name}: plan '{plan.name}' was not captured for back end '{plan.backend}'; set "
            "guided = True before bind"
        )


def soft_mask(length: int, frozen: Tensor, left: Tensor) -> Tensor:
    """W of eq. 5, float32 `[length]`.

    1 for the frozen actions, then falling exponentially, 0 from `left` = H - s on. frozen, left:
    int64 scalars.
    """
    index = torch.arange(length, device=frozen.device)
    start = torch.minimum(frozen, left)
    falling = (left - index).float() / (left - start + 1).float()
    weight = falling * torch.expm1(falling) / (math.e - 1)
    weight = torch.where(index < start, torch.ones_like(weight), weight)
    return torch.where(index < left, weight, torch.zeros_like(weight))


def guidance_weight(tau: float, largest: Tensor) -> Tensor:
    """min(beta, (1 - tau) / (tau r^2)) of eq. 2 with r^2 of eq. 4; float32 scalar.

    tau: 0 .. below 1; largest: beta, float32 scalar.
    """
    if tau == 0.0:  # the fraction is infinite
        return largest
    r_squared = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
    return torch.clamp(largest, max=(1 - tau) / (tau * r_squared))


@dataclass(frozen=True)
class Lead:
    """What a chunk is led to.

    Attributes:
        actions: [1, H, joints], rad or m: the chunk under way from the new chunk's begin on.
        weight: float32 [H], the soft mask.
        frozen: bool [H].
        largest: float32 scalar, beta.
    """

    actions: Tensor
    weight: Tensor
    frozen: Tensor
    largest: Tensor

    @staticmethod
    def read(buffers: Arena | Mapping[str, Tensor], chunk: Tensor, chunk_dt: float) -> Lead:
        """From the buffers of `guidance_specs` and the chunk under way [1, H, joints].

        The chunk is read where the new one's points are in time, linear between its own.
        """
        elapsed, frozen = buffers["io.rtc.elapsed_ns"], buffers["io.rtc.frozen"]
        dt_ns, length = round(chunk_dt * 1e9), chunk.shape[1]
        index = torch.arange(length, device=chunk.device)
        before = (index + elapsed // dt_ns).clamp(max=length - 1)
        after = (before + 1).clamp(max=length - 1)
        share = ((elapsed % dt_ns).double() / dt_ns).to(chunk.dtype)
        actions = chunk[:, before] + (chunk[:, after] - chunk[:, before]) * share
        left = length - (elapsed + dt_ns - 1) // dt_ns
        return Lead(
            actions,
            soft_mask(length, frozen, left),
            index < torch.minimum(frozen, left),
            buffers["io.rtc.guidance_milli"].float() / 1e3,
        )

    def keep_frozen(self, chunk: Tensor) -> Tensor:
        """A chunk [1, H, joints] with the frozen actions in their places."""
        return torch.where(self.frozen[None, :, None], self.actions, chunk)


def guided(
    velocity: Callable[[Tensor], Tensor], x: Tensor, tau: float, target: Tensor, lead: Lead
) -> Tensor:
    """The velocity at x [1, H, width], led towards target of that shape (eq. 2).

    velocity: the network's, of tau; it must not write into tensors that it does not own. Actions
    of the network beyond target's width are padding and not led.
    """
    weight = lead.weight[None, :, None].to(x.dtype)

    def denoised(x: Tensor) -> tuple[Tensor, Tensor]:
        v = velocity(x)
        return x + (1 - tau) * v, v  # eq. 3

    with torch.inference_mode(False), torch.enable_grad():
        start = x.clone().requires_grad_()
        estimate, v = denoised(start)
        width = target.shape[-1]
        error = torch.zeros_like(estimate)
        error[..., :width] = (target - estimate.detach()[..., :width]) * weight
        (correction,) = torch.autograd.grad(estimate, start, error)
    return v.detach() + guidance_weight(tau, lead.largest).to(x.dtype) * correction


def taken_out_of_inference(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies that gradients may run through: what inference mode made, they may not."""
    with torch.inference_mode(False):
        return [tensor.clone() for tensor in tensors]
