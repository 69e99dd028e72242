# SPDX-License-Identifier: Apache-2.0
"""A reference program: a small hybrid network with a buffer of every role.

For tests, benchmarks and as an example of a program that passes the audits:
`flashrt capsule audit flashrt_ros.runtime.testing:ToyHybrid`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .arena import Arena
from .buffers import BufferSpec, Kind, Role
from .errors import InvalidArgument
from .fingerprint import Fingerprint
from .plans import Backend, Plan, ShapeKey, bucket_for
from .random import normal, stream_id, uniform

_KV = {"kind": Kind.APPEND, "row_dim": 1, "row_counter": "meta.rows"}

_NOISE = stream_id("toy")  # a number: hashing a name inside of a plan would break compilation up


class ToyHybrid:
    """Attention, recurrent, convolution, draft head, noise: each feeds the next step.

    `step(index)` writes the inputs of step `index` and replays one plan. All state is in buffers.
    """

    heads = 2
    buckets = (64, 256, 1024)

    def __init__(
        self,
        *,
        width: int = 16,
        capacity: int = 1024,
        backend: Backend | str = Backend.EAGER,
        device: str = "cpu",
    ) -> None:
        self.width = width
        self.capacity = capacity
        self.device = device
        self.fingerprint = Fingerprint("toy-hybrid", dtype="float32", plan=str(Backend(backend)))
        keys = [ShapeKey(q, b) for q in (1, 2, 3) for b in self._buckets()]
        self._plan = Plan("toy", self._replay, keys, backend)
        shape = (6, width, width)
        mixed = uniform(shape, seed=1, step=0, stream="toy.weights", device=device)
        self._weights = (mixed - 0.5) * (2.0 / width**0.5)
        self._arena: Arena | None = None

    # -- the program that audits and sessions see

    def buffer_specs(self) -> Sequence[BufferSpec]:
        width, shape = self.width, (self.heads, self.capacity, self.width // self.heads)
        f32, i64 = torch.float32, torch.int64
        return [
            BufferSpec("action.chunk", Role.ACTION, f32, (4, width)),
            BufferSpec("attention.key", Role.KV, torch.bfloat16, shape, **_KV),  # type: ignore[arg-type]
            BufferSpec("attention.value", Role.KV, f32, shape, **_KV),  # type: ignore[arg-type]
            BufferSpec("conv.window", Role.CONV, f32, (3, width)),
            BufferSpec("io.input", Role.IO, f32, (width,)),
            BufferSpec("io.tokens", Role.IO, i64, (self.capacity,), Kind.APPEND, 0, "meta.tokens"),
            BufferSpec("meta.position", Role.META, i64, ()),
            BufferSpec("meta.rows", Role.META, i64, ()),
            BufferSpec("meta.tokens", Role.META, i64, ()),
            BufferSpec("mtp.hidden", Role.MTP, f32, (width,)),
            BufferSpec("random.seed", Role.RANDOM, i64, ()),
            BufferSpec("random.step", Role.RANDOM, i64, ()),
            BufferSpec("recurrent.state", Role.RECURRENT, f32, (width, width)),
        ]

    def bind(self, arena: Arena, *, seed: int) -> None:
        """Write the initial state into the arena and capture the plan."""
        self._arena = arena
        arena.fixed.zero_()
        arena["random.seed"].fill_(seed)
        self._plan.capture(arena)

    def step(self, index: int) -> None:
        """One replay: 1 to 3 rows of keys and values, one token, a new chunk."""
        arena, query = self._bound(), 1 + index % 3
        fresh = uniform((self.width,), seed=2, step=index, stream="toy.input", device=self.device)
        arena["io.input"].copy_(fresh)
        # the bucket is a matter of speed: a host copy of the counter would do as well
        rows = int(arena["meta.rows"]) + query
        self._plan.replay(ShapeKey(query, bucket_for(rows, self._buckets())))

    # -- the computation

    def _buckets(self) -> tuple[int, ...]:
        return tuple(sorted({min(bucket, self.capacity) for bucket in self.buckets}))

    def _bound(self) -> Arena:
        if self._arena is None:
            raise InvalidArgument("the program is not bound to an arena; call bind(arena, seed=…)")
        return self._arena

    def _replay(self, key: ShapeKey) -> None:
        arena = self._bound()
        seed, step = arena["random.seed"], arena["random.step"]
        noise = normal((self.width,), seed=seed, step=step, stream=_NOISE)
        last = arena["io.tokens"].index_select(0, _last(arena["meta.tokens"]))
        x = arena["io.input"] + arena["mtp.hidden"] + 0.1 * noise + 0.05 * last.float().sin()
        y = self._convolve(arena, x) + self._recur(arena, x) + self._attend(arena, x, key)
        self._finish(arena, torch.tanh(y), key)

    def _convolve(self, arena: Arena, x: Tensor) -> Tensor:
        window = arena["conv.window"]
        window.copy_(torch.cat((window[1:], x.unsqueeze(0))))
        convolved: Tensor = (window @ self._weights[0]).tanh().sum(0)
        return convolved

    def _recur(self, arena: Arena, x: Tensor) -> Tensor:
        state = arena["recurrent.state"]
        state.mul_(0.9).add_(torch.outer(x, self._weights[1] @ x), alpha=0.1)
        return state @ x

    def _attend(self, arena: Arena, x: Tensor, key: ShapeKey) -> Tensor:
        """Append `query` rows, attend over the first `bucket` of which the valid ones count."""
        rows, device = arena["meta.rows"], self.device
        offsets = torch.arange(key.query, device=device)
        turns = (arena["meta.position"] + offsets).float().unsqueeze(1) * 0.1
        k = ((self._weights[2] @ x) * turns.cos()).view(key.query, self.heads, -1)
        v = ((self._weights[3] @ x) + turns.sin()).view(key.query, self.heads, -1)
        at = rows + offsets
        keys, values = arena["attention.key"], arena["attention.value"]
        keys.index_copy_(1, at, k.transpose(0, 1).to(keys.dtype))
        values.index_copy_(1, at, v.transpose(0, 1))
        query = (self._weights[4] @ x).view(self.heads, 1, -1)
        scores = (query @ keys[:, : key.bucket].float().transpose(1, 2)).squeeze(1)
        valid = torch.arange(key.bucket, device=device) < rows + key.query
        weights = scores.masked_fill(~valid, float("-inf")).softmax(-1)
        attended: Tensor = weights.unsqueeze(1) @ values[:, : key.bucket]
        return attended.flatten()

    def _finish(self, arena: Arena, y: Tensor, key: ShapeKey) -> None:
        chunk = arena["action.chunk"]
        chunk.copy_(0.5 * torch.cat((chunk[1:], y.unsqueeze(0))) + 0.1 * y)
        arena["mtp.hidden"].copy_((self._weights[5] @ y).tanh())
        tokens = arena["meta.tokens"]
        arena["io.tokens"].index_copy_(0, tokens.view(1), y.argmax().view(1))
        tokens.add_(1)
        arena["meta.rows"].add_(key.query)
        arena["meta.position"].add_(key.query)
        arena["random.step"].add_(1)


def _last(count: Tensor) -> Tensor:
    """Index of the last row, int64 [1]; row 0 before there is one."""
    return (count - 1).clamp_min(0).view(1)


class LeakyHybrid(ToyHybrid):
    """The same with a Python counter that replays read: what the audits are there to find."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0
        self.hidden = torch.zeros(self.width)

    def step(self, index: int) -> None:
        self._calls += 1
        super().step(index)
        self._bound()["recurrent.state"].add_(1e-3 * self._calls)
        self.hidden.add_(1.0)
