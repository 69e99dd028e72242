# SPDX-License-Identifier: Apache-2.0
"""The network tick by tick is the network over whole sequences; its memory is where we say."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.models.streaming_vla.configuration import StreamingVLAConfig
from flashrt_ros.models.streaming_vla.modeling import StreamingVLA
from flashrt_ros.models.streaming_vla.state import TickCache, state_shapes

BATCH, TICKS = 2, 29  # more than three windows


@pytest.fixture(scope="module")
def network() -> StreamingVLA:
    torch.manual_seed(0)
    return StreamingVLA(StreamingVLAConfig(joint_names=tuple("abcde"))).eval()


@pytest.fixture(scope="module")
def inputs(network: StreamingVLA) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    size = network.vision.feature_size
    return (
        torch.randn(BATCH, TICKS, size, generator=draw),
        torch.randint(0, 10, (BATCH, TICKS, 8), generator=draw),
        torch.randn(BATCH, TICKS, 5, generator=draw),
    )


class Stream:
    def __init__(self, network: StreamingVLA, batch: int = BATCH) -> None:
        self.network = network
        shapes = state_shapes(network.config, batch)
        self.tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
        self.step = torch.zeros((), dtype=torch.int64)
        self.cache = TickCache(network.config, self.tensors, self.step, network.rotary)

    def run(self, inputs: tuple[torch.Tensor, ...], begin: int, end: int) -> torch.Tensor:
        outs = []
        for tick in range(begin, end):
            outs.append(self.network.tick(*(x[:, tick] for x in inputs), self.cache))
            self.step += 1
        return torch.stack(outs, dim=1)


@torch.inference_mode()
def test_streaming_equals_the_forward_over_the_whole_sequence(network, inputs) -> None:
    whole = network(*inputs)
    streamed = Stream(network).run(inputs, 0, TICKS)
    assert (streamed - whole).abs().max() < 2e-5
    assert whole.abs().max() > 0.5  # or the comparison says nothing


@torch.inference_mode()
def test_a_stream_far_into_its_life_is_as_exact_as_a_young_one(network, inputs) -> None:
    young, old = Stream(network), Stream(network)
    expected = young.run(inputs, 0, TICKS)
    # Any multiple of the window: the ring begins at slot 0 again. What lies in it counts as past
    # there, so it is filled by one window of ticks on both sides before comparing.
    old.step.fill_(10**7 * network.config.window_ticks)
    window = network.config.window_ticks
    old.run(inputs, 0, window)
    for name in young.tensors:
        if "delta" in name:
            old.tensors[name].zero_()
    fresh = Stream(network)
    fresh.run(inputs, 0, window)
    for name in fresh.tensors:
        if "delta" in name:
            fresh.tensors[name].zero_()
    for name in fresh.tensors:
        if "attention" in name:
            old.tensors[name].copy_(fresh.tensors[name])
    assert torch.equal(old.run(inputs, window, TICKS), fresh.run(inputs, window, TICKS))
    assert expected.isfinite().all()


@torch.inference_mode()
def test_attention_forgets_what_is_older_than_its_window_and_the_delta_net_does_not(
    network, inputs
) -> None:
    window = network.config.window_ticks
    features, words, state = inputs
    changed = features.clone()
    changed[:, 0] += 5.0
    plain, other = Stream(network), Stream(network)
    plain.run(inputs, 0, window + 1)
    other.run((changed, words, state), 0, window + 1)
    ring = [n for n in plain.tensors if "attention" in n]
    memory = [n for n in plain.tensors if "recurrent" in n]
    # The first layer's keys and values depend on their own token alone: nothing of tick 0 is left.
    assert all(torch.equal(plain.tensors[n], other.tensors[n]) for n in ring)
    assert all(not torch.equal(plain.tensors[n], other.tensors[n]) for n in memory)


@torch.inference_mode()
def test_state_tensors_are_written_in_place(network, inputs) -> None:
    stream = Stream(network)
    before = {name: t.data_ptr() for name, t in stream.tensors.items()}
    stream.run(inputs, 0, 3)
    assert {name: t.data_ptr() for name, t in stream.tensors.items()} == before
    assert all(t.abs().max() > 0 for t in stream.tensors.values())


@torch.inference_mode()
def test_two_streams_of_one_network_do_not_see_each_other(network, inputs) -> None:
    alone = Stream(network).run(inputs, 0, 12)
    one, two = Stream(network), Stream(network)
    outs = []
    for tick in range(12):
        outs.append(one.run(inputs, tick, tick + 1))
        two.run(tuple(x.flip(1) for x in inputs), tick, tick + 1)
    assert torch.equal(torch.cat(outs, dim=1), alone)


def test_first_layer_is_the_attention_so_that_no_cue_hides_in_its_cache() -> None:
    kinds = StreamingVLAConfig(joint_names=("a",)).layer_types
    assert kinds[0] == "full_attention"
    assert set(kinds[1:]) == {"linear_attention"}


def test_flow_head_learns_a_chunk_that_its_condition_names() -> None:
    from flashrt_ros.models.streaming_vla.action_head import FlowHead

    torch.manual_seed(0)
    head = FlowHead(chunk_size=6, condition_size=2, width=32, blocks=1)
    chunks = torch.randn(2, 6)
    optimizer = torch.optim.Adam(head.parameters(), lr=5e-3)
    for _ in range(250):
        which = torch.randint(0, 2, (64,))
        loss = head.loss(chunks[which], torch.eye(2)[which]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.inference_mode():
        sampled = head.sample(torch.randn(2, 6), torch.eye(2), steps=10)
    assert (sampled - chunks).abs().max() < 0.3
    assert (chunks[0] - chunks[1]).abs().max() > 1.0
