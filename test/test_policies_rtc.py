# SPDX-License-Identifier: Apache-2.0
"""Real-time chunking in the models: mask, guidance, frozen points, plans that need no recapture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_pi0 import images, positions, write_checkpoint

import flashrt_ros.models
from flashrt_ros.models import load_policy
from flashrt_ros.models.guidance import Lead, guidance_weight, guided, soft_mask
from flashrt_ros.models.policy import TakesConditioning
from flashrt_ros.runtime import Arena, ShapeKey

SHIPPED = Path(flashrt_ros.models.__file__).parents[1] / "checkpoints" / "cued_reach"
LEAD = {"frozen": 2, "elapsed_ns": 0, "guidance_milli": 5000}


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value)


# -- the formulas --------------------------------------------------------------------------------


def test_soft_mask_is_one_then_falls_exponentially_then_is_zero() -> None:
    mask = soft_mask(10, scalar(2), scalar(6))
    shares = [4 / 5, 3 / 5, 2 / 5, 1 / 5]  # the example in the authors' get_prefix_weights
    falling = [c * (math.exp(c) - 1) / (math.e - 1) for c in shares]
    np.testing.assert_allclose(mask, [1, 1, *falling, 0, 0, 0, 0], rtol=1e-6)


def test_soft_mask_freezes_no_more_than_is_left() -> None:
    np.testing.assert_array_equal(soft_mask(5, scalar(4), scalar(2)), [1, 1, 0, 0, 0])


@pytest.mark.parametrize(
    ("tau", "weight"), [(0.0, 5.0), (0.1, 5.0), (0.5, 2.0), (0.9, (0.1 / 0.9) * (0.82 / 0.01))]
)
def test_guidance_weight_is_the_papers_and_clipped(tau: float, weight: float) -> None:
    assert float(guidance_weight(tau, scalar(5.0))) == pytest.approx(min(weight, 5.0), rel=1e-6)


def test_correction_is_the_vector_jacobian_product_of_the_denoised_estimate() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    x, target = (torch.randn(1, 3, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)
    lead = Lead(target, mask, mask == 1, scalar(0.7))
    tau = 0.4

    def velocity(x: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1) @ matrix.T).view_as(x)

    jacobian = torch.eye(6, dtype=torch.float64) + (1 - tau) * matrix
    estimate = (jacobian @ x.flatten()).view_as(x)
    error = ((target - estimate) * mask[None, :, None]).flatten()
    expected = velocity(x) + 0.7 * (error @ jacobian).view_as(x)
    torch.testing.assert_close(guided(velocity, x, tau, target, lead), expected, rtol=1e-6, atol=0)


def test_the_chunk_under_way_is_read_between_its_points() -> None:
    buffers = {
        "io.rtc.elapsed_ns": torch.tensor(75_000_000),
        "io.rtc.frozen": torch.tensor(1),
        "io.rtc.guidance_milli": torch.tensor(5000),
    }
    chunk = torch.tensor([[[0.0], [1.0], [4.0], [9.0]]])
    lead = Lead.read(buffers, chunk, 0.05)
    np.testing.assert_allclose(lead.actions[0, :2, 0], [2.5, 6.5])
    assert lead.weight.tolist()[2:] == [0.0, 0.0]  # two of its points are over
    assert lead.frozen.tolist() == [True, False, False, False]


# -- in the policies -----------------------------------------------------------------------------


class Bench:
    """A policy over an arena, inputs of a view, and ticks."""

    def __init__(self, folder: Path, *, led: bool, seed: int = 3) -> None:
        torch.set_num_threads(1)
        self.policy: Any = load_policy(folder)
        self.policy.guided = led
        self.arena = Arena(self.policy.buffer_specs())
        self.policy.bind(self.arena, seed=seed)
        self.policy.write_instruction("wait" if folder == SHIPPED else "pick the red cube up")
        self._shipped = folder == SHIPPED

    def look(self, view: int) -> None:
        if self._shipped:
            generator = np.random.default_rng(view)
            image = generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            self.policy.write_observation({"camera": image}, np.full(5, 0.1 + 0.02 * view))
        else:
            self.policy.write_observation(images(view), positions(view))

    def tick(self, view: int, conditioning: dict[str, int] | None = None) -> np.ndarray:
        self.look(view)
        if conditioning is not None:
            self.policy.write_conditioning(**conditioning)
        self.policy.tick()
        return self.policy.chunk()


@pytest.fixture(scope="module", params=["cued_reach", "pi0"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "cued_reach":
        return SHIPPED
    return write_checkpoint(tmp_path_factory.mktemp("pi0") / "tiny")


@pytest.fixture
def led(folder: Path) -> Bench:
    return Bench(folder, led=True)


def test_both_policies_can_be_led(led: Bench) -> None:
    assert isinstance(led.policy, TakesConditioning)


def test_nothing_frozen_is_bit_for_bit_the_unguided_chunk(folder: Path, led: Bench) -> None:
    plain = Bench(folder, led=False)
    nothing = LEAD | {"frozen": 0}
    for view in range(3):
        expected = plain.tick(view)
        assert led.tick(view, nothing).tobytes() == expected.tobytes()


def test_guidance_of_weight_zero_is_the_unguided_flow(folder: Path, led: Bench) -> None:
    plain = Bench(folder, led=False)
    for bench in (plain, led):
        bench.tick(0)
    free = plain.tick(1)
    unled = led.tick(1, LEAD | {"frozen": 1, "guidance_milli": 0})
    np.testing.assert_allclose(unled[1:], free[1:], rtol=0, atol=1e-5)


def test_frozen_points_are_those_of_the_chunk_under_way(led: Bench) -> None:
    dt_ns = round(led.policy.spec.chunk_dt * 1e9)
    before = led.tick(0)
    after = led.tick(1, LEAD | {"elapsed_ns": dt_ns})
    np.testing.assert_array_equal(after[:2], before[1:3])
    assert not np.array_equal(after[2:4], before[3:5])


def test_a_led_chunk_stays_nearer_to_the_one_under_way_than_a_free_one(tmp_path: Path) -> None:
    # π0 with random weights: the shipped policy has one answer to an observation, and where the
    # estimate does not depend on the noise there is nothing that guidance could choose between.
    folder = write_checkpoint(tmp_path / "tiny")
    distances = {}
    for name, frozen in (("free", 0), ("led", 1)):
        bench = Bench(folder, led=True)
        before = bench.tick(0)
        after = bench.tick(1, LEAD | {"frozen": frozen})
        distances[name] = np.abs(after[1:3] - before[1:3]).mean()  # points that are not frozen
    assert distances["led"] < 0.7 * distances["free"], distances


def test_the_same_conditioning_gives_the_same_bits_and_another_gives_others(folder: Path) -> None:
    chunks = []
    for elapsed_ns in (10_000_000, 10_000_000, 20_000_000):
        bench = Bench(folder, led=True)
        bench.tick(0)
        chunks.append(bench.tick(1, LEAD | {"elapsed_ns": elapsed_ns}).tobytes())
    assert chunks[0] == chunks[1]
    assert chunks[0] != chunks[2]


def test_conditioning_is_for_one_tick(folder: Path, led: Bench) -> None:
    other = Bench(folder, led=True)
    led.tick(0)
    led.tick(1, LEAD)
    free = led.tick(2)
    assert int(led.arena["io.rtc.frozen"]) == 0
    other.tick(0)
    other.tick(1, LEAD)
    assert other.tick(2, LEAD | {"frozen": 0}).tobytes() == free.tobytes()


def test_the_chunk_under_way_is_state_a_copy_of_the_buffers_goes_on_the_same(
    folder: Path, led: Bench
) -> None:
    led.tick(0)
    other = Bench(folder, led=True, seed=99)
    for name in led.arena:
        other.arena[name].copy_(led.arena[name])
    assert led.tick(1, LEAD).tobytes() == other.tick(1, LEAD).tobytes()


def test_a_led_tick_moves_no_buffer(led: Bench) -> None:
    led.tick(0)
    led.policy.write_conditioning(**LEAD)
    led.look(1)
    led.policy.tick()
    assert led.arena.moved() == []
    assert not any(led.arena[name].requires_grad for name in led.arena)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"frozen": -1}, "frozen is -1"),
        ({"frozen": 8}, "frozen is 8"),
        ({"elapsed_ns": -5}, "elapsed_ns is -5"),
        ({"delay": 1}, "delay"),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(changes: dict[str, int], what: str) -> None:
    bench = Bench(SHIPPED, led=True)
    with pytest.raises(ValueError, match=what):
        bench.policy.write_conditioning(**(LEAD | changes))


def test_a_plan_that_was_not_captured_is_not_replayed_in_silence() -> None:
    bench = Bench(SHIPPED, led=False)
    bench.policy._led_plan.backend = "compiled"
    with pytest.raises(ValueError, match="guided = True before bind"):
        bench.policy.write_conditioning(**LEAD)


def test_an_eager_policy_can_be_led_without_being_told_at_bind() -> None:
    asked, unasked = Bench(SHIPPED, led=True), Bench(SHIPPED, led=False)
    for bench in (asked, unasked):
        bench.tick(0)
    assert asked.tick(1, LEAD).tobytes() == unasked.tick(1, LEAD).tobytes()


def test_both_plans_have_the_same_key() -> None:
    bench = Bench(SHIPPED, led=True)
    assert bench.policy._plan.keys == bench.policy._led_plan.keys == (ShapeKey(query=3),)
