# SPDX-License-Identifier: Apache-2.0
"""A π0 policy over an arena: equal to transformers' sample_actions, prefix computed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_pi0 import (
    CAMERAS,
    IMAGE_TOKEN,
    JOINTS,
    WORDS,
    images,
    positions,
    statistics,
    tiny_model,
    tiny_tokenizer,
    write_checkpoint,
)
from transformers import PI0ForConditionalGeneration

from flashrt_ros.models.pi0 import (
    Normalisation,
    Pi0Policy,
    PromptTokenizer,
    Robot,
    adopt_pi0,
)
from flashrt_ros.models.policy import PolicyModel
from flashrt_ros.runtime import Arena
from flashrt_ros.runtime.random import normal

PROMPT = "pick the red cube up"
IMAGE_TOKENS = 8  # two cameras, 2 x 2 patches each


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("pi0") / "tiny")


@pytest.fixture(scope="module")
def reference(folder: Path) -> PI0ForConditionalGeneration:
    return PI0ForConditionalGeneration.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def adopted(folder: Path) -> Pi0Policy:
    return adopt_pi0(folder)


@pytest.fixture
def bound(adopted: Pi0Policy) -> tuple[Pi0Policy, Arena]:
    """The policy over a fresh arena, with its inputs written."""
    return over_arena(adopted)


def over_arena(policy: Pi0Policy, seed: int = 3) -> tuple[Pi0Policy, Arena]:
    arena = Arena(policy.buffer_specs())
    policy.bind(arena, seed=seed)
    policy.write_instruction(PROMPT)
    policy.write_observation(images(), positions())
    return policy, arena


def around(folder: Path) -> dict[str, Any]:
    """What a model in memory does not come with."""
    return {
        "robot": Robot.load(folder),
        "normalisation": Normalisation.of_checkpoint(folder, {}),
        "prompt": PromptTokenizer.of_checkpoint(folder, max_length=48, image_token_id=IMAGE_TOKEN),
    }


def sampled(
    model: PI0ForConditionalGeneration, arena: Arena, prompt: str, steps: int | None = None
) -> np.ndarray:
    """What transformers' own loop makes of the same inputs, float32 [chunk, joints], rad.

    Token ids, masks and normalisation are made here anew; of the arena it takes the pixels, which
    other tests compare, and the joints and noise that the policy was given.
    """
    words = tiny_tokenizer().encode(f"{prompt}\n", add_special_tokens=False).ids
    ids = [IMAGE_TOKEN] * IMAGE_TOKENS + [WORDS.index("<bos>"), *words]
    numbers = {f: {n: torch.tensor(x) for n, x in s.items()} for f, s in statistics().items()}
    state, action = numbers["observation.state"], numbers["action"]
    joints = (arena["io.joints"] - state["mean"]) / (state["std"] + 1e-8)
    width = model.config.max_state_dim
    flowed = model.sample_actions(
        state=torch.nn.functional.pad(joints, (0, width - len(JOINTS))).to(model.dtype),
        input_ids=torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        pixel_values=arena["io.pixels"][None],
        pixel_attention_mask=torch.ones(1, len(CAMERAS), dtype=torch.bool),
        noise=arena["random.noise"].clone(),
        num_steps=steps,
    )
    return (flowed[0, :, : len(JOINTS)].float() * action["std"] + action["mean"]).numpy()


def test_is_a_policy_model(adopted: Pi0Policy) -> None:
    assert isinstance(adopted, PolicyModel)
    assert dict(adopted.spec.cameras) == {"top": (20, 30, 3), "wrist": (28, 28, 3)}
    assert adopted.spec.joint_names == JOINTS
    assert (adopted.spec.chunk_length, adopted.spec.chunk_dt) == (5, 0.05)


def test_chunks_are_those_of_sample_actions(
    bound: tuple[Pi0Policy, Arena], reference: PI0ForConditionalGeneration
) -> None:
    policy, arena = bound
    for tick in range(3):
        policy.write_observation(images(tick), positions(tick))
        policy.tick()
        expected = sampled(reference, arena, PROMPT)
        np.testing.assert_allclose(policy.chunk(), expected, atol=5e-6)
        assert policy.chunk().shape == (5, len(JOINTS))


@pytest.mark.parametrize("length", [2, 15, 16, 17, 32, 33, 47, 48])
def test_equal_at_every_border_of_the_prompt_buckets(
    bound: tuple[Pi0Policy, Arena], reference: PI0ForConditionalGeneration, length: int
) -> None:
    policy, arena = bound
    prompt = " ".join((["red", "cube", "up"] * 16)[: length - 2])
    policy.write_instruction(prompt)
    policy.tick()
    assert int(arena["prompt.length"]) == length
    np.testing.assert_allclose(policy.chunk(), sampled(reference, arena, prompt), atol=5e-6)


@pytest.mark.parametrize("steps", [1, 4, 10])
def test_equal_for_other_numbers_of_euler_steps(
    folder: Path, reference: PI0ForConditionalGeneration, steps: int
) -> None:
    policy, arena = over_arena(adopt_pi0(folder, steps=steps))
    policy.tick()
    expected = sampled(reference, arena, PROMPT, steps)
    np.testing.assert_allclose(policy.chunk(), expected, atol=5e-6)


def test_equal_in_bfloat16(folder: Path) -> None:
    policy, arena = over_arena(adopt_pi0(folder, dtype=torch.bfloat16))
    reference = PI0ForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16).eval()
    policy.tick()
    assert arena["layer0.attention.key"].dtype == torch.bfloat16
    # A bfloat16 has 8 bits: 2**-8 of values around 2, through some ten roundings.
    np.testing.assert_allclose(policy.chunk(), sampled(reference, arena, PROMPT), atol=0.02)


def test_a_model_in_memory_is_adopted_as_its_checkpoint_is(
    bound: tuple[Pi0Policy, Arena], reference: PI0ForConditionalGeneration, folder: Path
) -> None:
    policy, _ = bound
    policy.tick()
    in_memory, _ = over_arena(adopt_pi0(reference, **around(folder)))
    in_memory.tick()
    np.testing.assert_array_equal(in_memory.chunk(), policy.chunk())
    with pytest.raises(ValueError, match="robot, prompt not given"):
        adopt_pi0(reference, normalisation=Normalisation.of_checkpoint(folder, {}))


def test_eager_attention_is_as_good(folder: Path, bound: tuple[Pi0Policy, Arena]) -> None:
    policy, _ = bound
    policy.tick()
    model = tiny_model()
    model.set_attn_implementation("eager")
    eager, _ = over_arena(adopt_pi0(model, **around(folder)))
    eager.tick()
    np.testing.assert_allclose(eager.chunk(), policy.chunk(), atol=5e-6)


def test_a_model_with_other_masks_or_in_training_is_refused(folder: Path) -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match="training mode"):
        adopt_pi0(model.train(), **around(folder))
    model.eval().set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="attention is flex_attention"):
        adopt_pi0(model, **around(folder))


def test_noise_is_of_seed_and_step_and_apart_from_the_actions(
    bound: tuple[Pi0Policy, Arena], adopted: Pi0Policy
) -> None:
    policy, arena = bound
    for step in range(2):
        policy.tick()
        noise = arena["random.noise"]
        assert torch.equal(noise, normal(noise.shape, seed=3, step=step, stream="action_noise"))
        assert not np.allclose(noise[0, :, : len(JOINTS)], policy.chunk())
    assert int(arena["random.step"]) == 2
    first = policy.chunk()
    other, _ = over_arena(adopted, seed=4)
    other.tick()
    other.tick()
    assert not np.allclose(other.chunk(), first)


@pytest.mark.parametrize("what", ["image", "prompt", "joints"])
def test_every_input_shows_in_the_actions(bound: tuple[Pi0Policy, Arena], what: str) -> None:
    policy, arena = bound
    policy.tick()
    before = policy.chunk()
    arena["random.step"].zero_()
    if what == "prompt":
        policy.write_instruction("place the cube")
    else:
        policy.write_observation(images(what == "image"), positions(what == "joints"))
    policy.tick()
    assert np.abs(policy.chunk() - before).max() > 1e-3


# -- the prefix


def test_the_prefix_is_computed_once_for_the_same_images_and_prompt(
    bound: tuple[Pi0Policy, Arena], adopted: Pi0Policy
) -> None:
    policy, _ = bound
    reused = []
    for tick in range(3):
        policy.write_observation(images(), positions(tick))
        policy.write_instruction(PROMPT)
        policy.tick()
        reused.append(policy.chunk())
    assert policy.prefix_replays == 1
    policy, arena = over_arena(adopted)
    for tick in range(3):
        arena["prefix.length"].zero_()  # whatever is there, it is not of this prompt
        policy.write_observation(images(), positions(tick))
        policy.tick()
        np.testing.assert_array_equal(policy.chunk(), reused[tick])
    assert policy.prefix_replays == 3


@pytest.mark.parametrize("camera", list(CAMERAS))
def test_one_changed_value_of_one_pixel_computes_it_again(
    bound: tuple[Pi0Policy, Arena], camera: str
) -> None:
    policy, _ = bound
    policy.tick()
    changed = images()
    changed[camera][7, 5, 1] ^= 1
    policy.write_observation(changed, positions())
    policy.tick()
    assert policy.prefix_replays == 2
    policy.tick()
    assert policy.prefix_replays == 2


def test_another_prompt_of_the_same_length_computes_it_again(
    bound: tuple[Pi0Policy, Arena],
) -> None:
    policy, arena = bound
    policy.tick()
    length = int(arena["prompt.length"])
    policy.write_instruction("place the red cube up")
    assert int(arena["prompt.length"]) == length
    policy.tick()
    assert policy.prefix_replays == 2


def test_a_shorter_prompt_leaves_no_trace_of_a_longer_one(
    bound: tuple[Pi0Policy, Arena], adopted: Pi0Policy
) -> None:
    policy, arena = bound
    policy.write_instruction(" ".join(["red"] * 40))
    policy.tick()
    arena["random.step"].zero_()
    policy.write_instruction("pick up")
    policy.tick()
    after = policy.chunk()
    fresh, _ = over_arena(adopted)
    fresh.write_instruction("pick up")
    fresh.tick()
    np.testing.assert_array_equal(after, fresh.chunk())


# -- inputs and chunk


def test_the_previous_chunk_and_a_cursor_are_kept(bound: tuple[Pi0Policy, Arena]) -> None:
    policy, arena = bound
    policy.tick()
    first = policy.chunk()
    policy.advance(2)
    policy.advance(1)
    assert policy.cursor == 3
    with pytest.raises(ValueError, match="3 points after 3: the chunk has 5"):
        policy.advance(3)
    policy.tick()
    assert policy.cursor == 0
    np.testing.assert_array_equal(arena["action.previous"][0].numpy(), first)


def test_a_refused_observation_changes_no_buffer(bound: tuple[Pi0Policy, Arena]) -> None:
    policy, arena = bound
    before = arena.fixed.clone()
    good = images(1)
    bad: list[Callable[[], None]] = [
        lambda: policy.write_observation({"top": good["top"]}, positions(1)),
        lambda: policy.write_observation(good | {"front": good["top"]}, positions(1)),
        lambda: policy.write_observation(good | {"wrist": good["top"]}, positions(1)),
        lambda: policy.write_observation(good, positions(1)[:2]),
        lambda: policy.write_observation(good, np.array([0.0, np.nan, 0.0])),
        lambda: policy.write_instruction("fold the towel"),
        lambda: policy.write_instruction(" ".join(["red"] * 47)),
    ]
    for write in bad:
        with pytest.raises(ValueError):
            write()
        assert torch.equal(arena.fixed, before)


def test_read_only_and_strided_images_are_taken_as_they_look(
    bound: tuple[Pi0Policy, Arena], recwarn: pytest.WarningsRecorder
) -> None:
    policy, arena = bound
    given = images(4)
    strided = {name: image[:, ::-1].copy()[:, ::-1] for name, image in given.items()}
    for image in strided.values():
        image.flags.writeable = False
    policy.write_observation(strided, positions())
    for index, image in enumerate(given.values()):
        np.testing.assert_array_equal(arena[f"io.camera{index}.image"].numpy(), image)
    assert not recwarn.list


def test_joints_of_a_wrong_size_are_named(bound: tuple[Pi0Policy, Arena]) -> None:
    with pytest.raises(ValueError, match=r"\[2\], expected \[3\]: shoulder, elbow, gripper"):
        bound[0].write_observation(images(), positions()[:2])


def test_no_tick_before_the_first_instruction(adopted: Pi0Policy) -> None:
    arena = Arena(adopted.buffer_specs())
    adopted.bind(arena, seed=0)
    with pytest.raises(ValueError, match="no instruction yet"):
        adopted.tick()


def test_plans_move_no_buffer(bound: tuple[Pi0Policy, Arena]) -> None:
    policy, arena = bound
    for plan in (policy.plans.prefix, policy.plans.denoise):
        assert len(plan.keys) == 3
        for key in plan.keys:
            assert plan.prove(key, arena).moved == ()
