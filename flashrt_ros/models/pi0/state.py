# SPDX-License-Identifier: Apache-2.0
"""The buffers of a π0 policy."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashrt_ros.models.guidance import guidance_specs
from flashrt_ros.runtime.buffers import BufferSpec, Role


@dataclass(frozen=True)
class Sizes:
    """What the buffers' shapes follow from."""

    cameras: tuple[tuple[int, int, int], ...]  # (height, width, 3), in the network's order
    image_size: int
    image_tokens: int  # of all cameras
    prompt: int  # most ids of a prompt
    suffix: int  # state and chunk
    layers: int
    heads: int
    head_size: int
    joints: int
    chunk: int
    action_width: int  # the network's, padding included
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        """Key and value rows of a layer: those of the longest prefix, and of the suffix."""
        return self.image_tokens + self.prompt + self.suffix


def buffer_specs(sizes: Sizes) -> list[BufferSpec]:
    """Every buffer, all of kind fixed: a new image rewrites the prefix from its first row.

    `prefix.camera*.image`, `prefix.prompt` and `prefix.length` are the inputs that the prefix rows
    were computed from. They are part of the state, so that a restored state knows by itself
    whether its rows still fit its inputs.
    """
    whole, real = torch.int64, torch.float32
    specs = []
    for layer in range(sizes.layers):
        rows = (1, sizes.heads, sizes.rows, sizes.head_size)
        specs += [
            BufferSpec(f"layer{layer}.attention.{name}", Role.KV, sizes.dtype, rows)
            for name in ("key", "value")
        ]
    for index, shape in enumerate(sizes.cameras):
        specs.append(BufferSpec(f"io.camera{index}.image", Role.IO, torch.uint8, shape))
        specs.append(BufferSpec(f"prefix.camera{index}.image", Role.META, torch.uint8, shape))
    pixels = (len(sizes.cameras), 3, sizes.image_size, sizes.image_size)
    chunk = (1, sizes.chunk, sizes.joints)
    return [
        *specs,
        BufferSpec("io.pixels", Role.IO, sizes.dtype, pixels),
        BufferSpec("io.prompt", Role.IO, whole, (1, sizes.prompt)),
        BufferSpec("io.joints", Role.IO, real, (1, sizes.joints)),
        BufferSpec("prompt.length", Role.META, whole, ()),
        BufferSpec("prefix.prompt", Role.META, whole, (1, sizes.prompt)),
        BufferSpec("prefix.length", Role.META, whole, ()),
        BufferSpec("prefix.replays", Role.META, whole, ()),
        BufferSpec("random.seed", Role.RANDOM, whole, ()),
        BufferSpec("random.step", Role.RANDOM, whole, ()),
        BufferSpec("random.noise", Role.RANDOM, sizes.dtype, (1, sizes.chunk, sizes.action_width)),
        BufferSpec("action.chunk", Role.ACTION, real, chunk),
        BufferSpec("action.previous", Role.ACTION, real, chunk),
        BufferSpec("action.cursor", Role.ACTION, whole, ()),
        *guidance_specs(),
    ]
