# SPDX-License-Identifier: Apache-2.0
"""The simulated world without ROS: reproducible, and true to what it says it does."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from flashrt_ros.sim import expert
from flashrt_ros.sim.scene import (
    BLOCK_SIDE,
    COLOURS,
    CUE_TICKS,
    DARK,
    HOME,
    JOINT_NAMES,
    TICK_NS,
    draw_layout,
    load_model,
)
from flashrt_ros.sim.world import ArmWorld

TIMES = (np.arange(8) + 1) * 0.05


def reach(world: ArmWorld, colour: str, ticks: int) -> None:
    """Let the expert reach for a block."""
    top = world.truth().block_positions[COLOURS.index(colour)]
    for _ in range(ticks):
        joints = world.observe().positions
        world.command(world.time_ns, TIMES, expert.plan_reach(joints, top, 8, 0.05))
        world.advance_tick()


def run_and_digest(seed: int, ticks: int) -> str:
    """Digest of every image and every joint value of a run."""
    world, digest = ArmWorld(seed), hashlib.sha256()
    for _ in range(ticks):
        seen = world.observe()
        digest.update(seen.image.tobytes() + seen.positions.tobytes())
        digest.update(seen.velocities.tobytes())
        reach(world, "blue", 1)
    return digest.hexdigest()


def test_two_processes_see_the_same_bytes() -> None:
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    code = "from test_sim_world import run_and_digest; print(run_and_digest(7, 25))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path},
            capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(2)
    }  # fmt: skip
    assert digests == {run_and_digest(7, 25) + "\n"}
    assert run_and_digest(8, 25) + "\n" not in digests


def test_a_world_put_back_continues_bit_for_bit_in_another_world() -> None:
    world = ArmWorld(3)
    reach(world, "red", 9)
    world.light_lamp("green", 5)
    saved = world.save()

    def continuation(of: ArmWorld) -> list[bytes]:
        seen = []
        for _ in range(12):
            of.advance_tick()
            now = of.observe()
            seen.append(now.image.tobytes() + now.positions.tobytes() + str(of.truth()).encode())
        return seen

    expected = continuation(world)
    other = ArmWorld(99)
    reach(other, "yellow", 5)
    other.load(saved)
    assert continuation(other) == expected
    world.load(saved)
    assert continuation(world) == expected


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"not json\n", "cut"])
def test_a_world_refuses_what_is_not_a_saved_world_and_stays_as_it_was(damage: object) -> None:
    world = ArmWorld(3)
    saved = world.save()
    bad = saved[:-8] if damage == "cut" else damage
    with pytest.raises(ValueError, match="saved world"):
        world.load(bad)  # type: ignore[arg-type]
    assert world.save() == saved


def test_observing_changes_nothing_and_repeats_itself() -> None:
    world = ArmWorld(1)
    before = world.save()
    first, second = world.observe(), world.observe()
    assert np.array_equal(first.image, second.image)
    assert world.save() == before
    world.advance_tick()
    assert not np.array_equal(world.observe().image, first.image)  # noise at least


def test_sim_time_goes_on_over_a_reset() -> None:
    world = ArmWorld(0)
    world.advance_tick()
    world.advance_tick()
    world.reset(1)
    assert (world.time_ns, world.tick) == (2 * TICK_NS, 0)
    fresh = ArmWorld(1)
    assert np.array_equal(world.observe().image, fresh.observe().image)


def test_observation_has_the_shapes_and_types_it_promises() -> None:
    seen = ArmWorld(0).observe()
    assert (seen.image.dtype, seen.image.shape) == (np.uint8, (64, 64, 3))
    assert seen.joint_names == JOINT_NAMES
    assert seen.positions.shape == seen.velocities.shape == (5,)


def test_lamp_shows_the_seeds_cue_first_and_then_goes_dark() -> None:
    world = ArmWorld(5)
    shown = []
    for _ in range(CUE_TICKS + 3):
        shown.append(world.lamp)
        world.advance_tick()
    assert shown == [draw_layout(5).cue] * CUE_TICKS + [DARK] * 3


def test_a_second_cue_is_shown_from_the_next_tick_for_as_long_as_asked() -> None:
    world = ArmWorld(5)
    for _ in range(20):
        world.advance_tick()
    cue = world.truth().last_cue
    other = next(c for c in COLOURS if c != cue)
    world.light_lamp(other, 3)
    assert (world.lamp, world.truth().last_cue) == (DARK, cue)
    shown = []
    for _ in range(4):
        world.advance_tick()
        shown.append(world.lamp)
    assert shown == [other] * 3 + [DARK]
    assert world.truth().last_cue == other


def test_lamp_is_plainly_visible_in_each_colour_and_dark() -> None:
    images = {}
    for colour in COLOURS:
        world = ArmWorld(2)
        world.reset(2, lamp_colour=colour)
        images[colour] = world.observe().image.astype(int)
    for _ in range(CUE_TICKS):
        world.advance_tick()
    images[DARK] = world.observe().image.astype(int)
    names = list(images)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            differs = np.abs(images[one] - images[other]).max(axis=2) > 40
            lower_half = differs[32:]
            assert lower_half.sum() >= 25, (one, other)


@pytest.mark.parametrize("call", [
    lambda w: w.reset(1, lamp_colour="pink"), lambda w: w.light_lamp("pink", 3),
    lambda w: w.light_lamp("red", 0), lambda w: w.reset(-1),
])  # fmt: skip
def test_nonsense_is_refused_and_changes_nothing(call) -> None:
    world = ArmWorld(4)
    world.advance_tick()
    before = world.save()
    with pytest.raises(ValueError, match="expected"):
        call(world)
    assert world.save() == before


def test_every_seed_gives_blocks_apart_and_in_reach() -> None:
    low, high = load_model().jnt_range.T
    for seed in range(300):
        blocks = draw_layout(seed).blocks
        gaps = np.linalg.norm(blocks[:, None] - blocks[None], axis=2)[np.triu_indices(4, 1)]
        assert gaps.min() > BLOCK_SIDE * 2**0.5, seed
        aims = expert.touch_point(expert.top_faces(blocks))
        goals = expert.inverse_kinematics(aims)
        assert np.allclose(expert.forward_kinematics(goals), aims, atol=1e-9), seed
        assert (goals > low).all(), seed
        assert (goals < high).all(), seed


def test_seeds_vary_blocks_start_cue_and_light() -> None:
    layouts = [draw_layout(seed) for seed in range(40)]
    assert {layout.cue for layout in layouts} == set(COLOURS)
    for field in ("blocks", "start", "light"):
        values = np.stack([getattr(layout, field) for layout in layouts])
        assert values.std(axis=0).max() > 0.02, field


def test_touch_is_contact_with_the_right_block_and_is_timed() -> None:
    world = ArmWorld(11)
    assert world.truth().touching == ""
    reach(world, "green", 40)
    truth = world.truth()
    assert truth.touching == "green"
    assert truth.touching_for > 0.5
    before = truth.touching_for
    reach(world, "green", 5)
    assert world.truth().touching_for == pytest.approx(before + 0.5)
    for _ in range(20):
        joints = world.observe().positions
        world.command(world.time_ns, TIMES, expert.plan_home(joints, 8, 0.05))
        world.advance_tick()
    assert (world.truth().touching, world.truth().touching_for) == ("", 0.0)


def test_expert_reaches_every_cue_of_thirty_seeds() -> None:
    world, failed = ArmWorld(), []
    for seed in range(30):
        world.reset(seed)
        cue = world.truth().last_cue
        reach(world, cue, 35)
        truth = world.truth()
        if truth.touching != cue or truth.touching_for < 0.5:
            failed.append(seed)
    assert not failed


def test_expert_goes_from_block_to_block_without_touching_others() -> None:
    world = ArmWorld()
    for seed in range(3):
        world.reset(seed)
        reach(world, "red", 35)
        touched = set()
        for _ in range(35):
            reach(world, "yellow", 1)
            touched.add(world.truth().touching)
        assert touched <= {"red", "", "yellow"}, seed
        assert world.truth().touching == "yellow", seed


def test_arm_goes_home_and_stays() -> None:
    world = ArmWorld(2)
    for _ in range(40):
        joints = world.observe().positions
        world.command(world.time_ns, TIMES, expert.plan_home(joints, 8, 0.05))
        world.advance_tick()
    assert np.abs(world.observe().positions - HOME).max() < 0.01
