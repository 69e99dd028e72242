# SPDX-License-Identifier: Apache-2.0
"""Counter-based noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flashrt_ros.runtime.random import normal, philox4x32, random_words, stream_id, uniform

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


# `philox4x32 10` of kat_vectors in the Random123 distribution, the paper's reference code
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
@pytest.mark.parametrize("device", DEVICES)
def test_philox_gives_the_reference_vectors(
    counter: str, key: str, expected: str, device: str
) -> None:
    def words(text: str) -> list[torch.Tensor]:
        return [torch.tensor([int(word, 16)], device=device) for word in text.split()]

    assert [int(word) for word in philox4x32(words(counter), words(key))] == [
        int(word) for word in words(expected)
    ]


def test_noise_is_a_function_of_seed_step_and_stream() -> None:
    base = normal((64,), seed=1, step=2, stream="a")
    assert torch.equal(base, normal((64,), seed=1, step=2, stream="a"))
    for seed, step, stream in ((2, 2, "a"), (1, 3, "a"), (1, 2, "b"), (1 << 32 | 1, 2, "a")):
        assert not torch.equal(base, normal((64,), seed=seed, step=step, stream=stream))


def test_seed_and_step_may_be_buffers() -> None:
    seed, step = torch.tensor(-5), torch.tensor(1 << 40)
    for draw in (normal, uniform):
        from_buffers = draw((3, 7), seed=seed, step=step, stream="a")
        assert torch.equal(from_buffers, draw((3, 7), seed=-5, step=1 << 40, stream="a"))


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    long = normal((100,), seed=1, step=2, stream="a")
    assert torch.equal(long[:33], normal((33,), seed=1, step=2, stream="a"))


def test_uniform_lies_inside_the_open_interval_and_is_even() -> None:
    values = uniform((200_000,), seed=3, step=0, stream="u").double()
    assert values.min() > 0
    assert values.max() < 1
    counts = torch.histc(values, 50, 0, 1)
    chi2 = ((counts - 4000) ** 2 / 4000).sum()
    assert chi2 < 90  # 49 degrees of freedom: one in 3,000 is larger


def test_normal_has_the_moments_of_a_normal() -> None:
    values = normal((400_000,), seed=3, step=0, stream="n", dtype=torch.float64)
    moments = [float((values**k).mean()) for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.05)
    inside = float((values.abs() < 1).double().mean())
    assert inside == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.004)


def test_normals_are_those_of_numpy_to_the_last_bits() -> None:
    words = random_words(4000, seed=9, step=1, stream="n").double().numpy()
    unit = (words + 0.5) / 2.0**32
    radius = np.sqrt(-2 * np.log(unit[0::2]))
    expected = np.stack(
        [radius * np.cos(2 * np.pi * unit[1::2]), radius * np.sin(2 * np.pi * unit[1::2])], 1
    ).ravel()
    found = normal((4000,), seed=9, step=1, stream="n", dtype=torch.float64).numpy()
    assert np.abs(found - expected).max() < 1e-14


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_noise_is_bit_identical_on_both_devices() -> None:
    for draw in (normal, uniform):
        here = draw((9999,), seed=5, step=6, stream="d", device="cpu")
        assert torch.equal(here, draw((9999,), seed=5, step=6, stream="d", device="cuda").cpu())


def test_a_stream_has_the_number_of_its_name() -> None:
    assert stream_id("a") != stream_id("b")
    assert 0 <= stream_id("a") < 1 << 32
    # SHA-256 of "" starts with e3 b0 c4 42
    assert stream_id("") == 0x42C4B0E3
