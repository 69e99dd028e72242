# SPDX-License-Identifier: Apache-2.0
"""The tick in few and large operations over the same weights: what captured plans run.

`StreamingVLA.tick` calls transformers' blocks token by token, some 2,000 small operations a tick,
and most of its time goes into starting them (docs/performance.md). Here the three tokens of a tick
go through every projection together, projections that read the same input are one matrix, and what
does not depend on the chunk being sampled is computed once for all flow steps. The results are
those of the blocks to rounding.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashrt_ros.models.streaming_vla.action_head import FlowHead
from flashrt_ros.models.streaming_vla.configuration import TOKENS_PER_TICK
from flashrt_ros.models.streaming_vla.modeling import StreamingVLA
from flashrt_ros.models.streaming_vla.state import TickCache

_L2_EPSILON = 1e-6  # of the delta rule's keys and queries, as transformers has it


class FusedTick(nn.Module):
    """`vision`, `tick` and `act` of a network for one robot (batch 1), over packed weights.

    The packed weights are copies, made when it is made: a network that is trained on needs a new
    one. What needs no packing is the network's own.
    """

    def __init__(self, network: StreamingVLA) -> None:
        super().__init__()
        self.network = network
        # An image [1, h, w, 3] is in this memory format as it comes.
        self.vision = copy.deepcopy(network.vision).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.layers = nn.ModuleList(
            _Attention(layer, index, network)
            if kind == "full_attention"
            else _DeltaNet(layer, index)
            for index, (layer, kind) in enumerate(
                zip(network.layers, network.config.layer_types, strict=True)
            )
        )
        self.norm = _RMSNorm(network.norm)
        self.flow = _Flow(network.head, network.config.flow_steps)

    def tick(
        self, features: Tensor, instruction: Tensor, state: Tensor, cache: TickCache
    ) -> Tensor:
        """As `StreamingVLA.tick`, for a batch of one: returns [1, hidden]."""
        x = self.network.tokens(features[:, None], instruction[:, None], state[:, None])[0]
        for layer in self.layers:
            x = layer(x, cache)
        last: Tensor = self.norm(x[-1:])
        return last

    def act(self, hidden: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        """As `StreamingVLA.act`, for a batch of one: [1, length, joints]."""
        condition = self.network.condition(hidden, state)
        begin = noise.flatten(1) * self.network.config.noise_scale
        chunk: Tensor = self.flow(begin, condition)
        return chunk.view_as(noise)


class _Flow(nn.Module):
    """The action head's Euler steps. What the chunk has no part in is computed before the first:
    each step's scale, shift and gate in every block are rows of one product."""

    times: Tensor

    def __init__(self, head: FlowHead, steps: int) -> None:
        super().__init__()
        self.head = head
        with torch.inference_mode(False), torch.no_grad():
            t = torch.arange(steps, device=head.frequencies.device) / steps
            self.register_buffer("times", head.time_embedding(t), persistent=False)
            blocks: list[Any] = list(head.blocks)
            self.weight = _fixed(torch.cat([block.modulate.weight for block in blocks]))
            self.bias = _fixed(torch.cat([block.modulate.bias for block in blocks]))

    def forward(self, noise: Tensor, condition: Tensor) -> Tensor:
        """[1, chunk_size], [1, condition_size] -> [1, chunk_size]; as `FlowHead.sample`."""
        steps = len(self.times)
        mixed = F.silu(self.head.condition(condition) + self.times)
        modulations = F.linear(mixed, self.weight, self.bias).unflatten(1, (-1, 3, 1, self.width))
        x = noise
        for step in range(steps):
            x = x + self.head.velocity_of(x, modulations[step]) / steps
        return x

    @property
    def width(self) -> int:
        return self.times.shape[1]


class _RMSNorm(nn.Module):
    """Zero-centred, as Qwen3.5 has it."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.scale = _fixed(1.0 + module.weight)
        self.epsilon = module.eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.scale


class _Block(nn.Module):
    """Norm, mixer, norm, gated MLP with residuals. x: [tokens, hidden]."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.before = _RMSNorm(layer.input_layernorm)
        self.between = _RMSNorm(layer.post_attention_layernorm)
        self.into = _stacked(layer.mlp.gate_proj, layer.mlp.up_proj)
        self.down = layer.mlp.down_proj.weight

    def forward(self, x: Tensor, cache: TickCache) -> Tensor:
        x = x + self.mix(self.before(x), cache)
        gate, up = F.linear(self.between(x), self.into).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)

    def mix(self, x: Tensor, cache: TickCache) -> Tensor:
        raise NotImplementedError


class _Attention(_Block):
    """Gated attention over the ring of the last ticks."""

    def __init__(self, layer: Any, index: int, network: StreamingVLA) -> None:
        super().__init__(layer)
        attention = layer.self_attn
        config = network.config
        self._index = index
        self._heads, self._size = config.num_attention_heads, config.head_dim
        self._kv_heads = config.num_key_value_heads
        # Each query head of transformers' q_proj is followed by its gate.
        both = attention.q_proj.weight.view(self._heads, 2, self._size, -1)
        query, gate = both[:, 0].flatten(0, 1), both[:, 1].flatten(0, 1)
        parts = [query, attention.k_proj.weight, attention.v_proj.weight, gate]
        self._widths = [len(part) for part in parts]
        self.weight = _fixed(torch.cat(parts))
        self.query_norm, self.key_norm = _RMSNorm(attention.q_norm), _RMSNorm(attention.k_norm)
        self.out = attention.o_proj.weight

    def mix(self, x: Tensor, cache: TickCache) -> Tensor:
        tokens = x.shape[0]
        query, key, value, gate = F.linear(x, self.weight).split(self._widths, dim=-1)
        query = self.query_norm(query.view(tokens, self._heads, self._size))
        key = self.key_norm(key.view(tokens, self._kv_heads, self._size))
        cos, sin = (table[0, :, None] for table in cache.here)
        query, key = _turned(query, cos, sin), _turned(key, cos, sin)
        value = value.view(tokens, self._kv_heads, self._size)
        keys, values = cache.update(
            key.transpose(0, 1)[None], value.transpose(0, 1)[None], self._index
        )
        # The query heads of one key head are rows of one matrix.
        grouped = query.transpose(0, 1).reshape(self._kv_heads, -1, self._size)
        scores = (grouped @ keys[0].transpose(-1, -2)) * self._size**-0.5
        scores = scores.view(self._heads, tokens, -1) + cache.mask()[0]
        weights = scores.softmax(-1).view(self._kv_heads, -1, scores.shape[-1])
        mixed = (weights @ values[0]).view(self._heads, tokens, self._size)
        mixed = mixed.transpose(0, 1).reshape(tokens, -1)
        return F.linear(mixed * torch.sigmoid(gate), self.out)


class _DeltaNet(_Block):
    """The gated delta rule, token by token; its projections for all tokens at once."""

    def __init__(self, layer: Any, index: int) -> None:
        super().__init__(layer)
        delta = layer.linear_attn
        self._index = index
        self._heads, self._size = delta.num_v_heads, delta.head_v_dim
        parts = [delta.in_proj_qkv, delta.in_proj_z, delta.in_proj_b, delta.in_proj_a]
        self._widths = [part.weight.shape[0] for part in parts]
        self.weight = _stacked(*parts)
        self.taps = _fixed(delta.conv1d.weight.squeeze(1))  # [channels, kernel]
        self.rate = _fixed(-delta.A_log.float().exp())
        self.bias = delta.dt_bias
        self.norm_weight, self._epsilon = delta.norm.weight, delta.norm.variance_epsilon
        self.out = delta.out_proj.weight

    def mix(self, x: Tensor, cache: TickCache) -> Tensor:
        tokens = x.shape[0]
        mixed, z, b, a = F.linear(x, self.weight).split(self._widths, dim=-1)
        query, key, value = self._convolve(mixed, cache).chunk(3, dim=-1)
        shape = (tokens, self._heads, self._size)
        query, key = _unit(query.reshape(shape)) * self._size**-0.5, _unit(key.reshape(shape))
        value, beta = value.reshape(shape), torch.sigmoid(b)
        decay = torch.exp(self.rate * F.softplus(a + self.bias))
        state = cache.get_recurrent_state(self._index)
        live, outs = state[0], []
        for token in range(tokens):
            k, v = key[token], value[token]
            live = live * decay[token, :, None, None]
            known = (live * k[..., None]).sum(dim=-2)
            learnt = (v - known) * beta[token, :, None]
            live = live + k[..., None] * learnt[:, None]
            outs.append((live * query[token, ..., None]).sum(dim=-2))
        state.copy_(live[None])
        out = torch.stack(outs)
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + self._epsilon)
        out = self.norm_weight * out * F.silu(z.view(shape))
        return F.linear(out.flatten(1), self.out)

    def _convolve(self, mixed: Tensor, cache: TickCache) -> Tensor:
        """The causal convolution's outputs, [tokens, channels]; its window moved on."""
        window = cache.get_conv_state(self._index)
        taps = self.taps.shape[1]
        row = torch.cat([window[0], mixed.t()], dim=1)
        window.copy_(row[None, :, -window.shape[-1] :])
        recent = row[:, -(TOKENS_PER_TICK + taps - 1) :].unfold(1, taps, 1)
        return F.silu((recent * self.taps[:, None]).sum(-1)).t()


def _fixed(value: Tensor) -> nn.Parameter:
    """A copy that is not trained. A parameter: the compiler may pack those."""
    return nn.Parameter(value.detach().clone().contiguous(), requires_grad=False)


def _stacked(*modules: Any) -> nn.Parameter:
    """Linear layers without bias that read the same input, as one."""
    return _fixed(torch.cat([module.weight for module in modules]))


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _L2_EPSILON)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the leading dimensions of [tokens, heads, size]."""
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([turned, rest], dim=-1)
