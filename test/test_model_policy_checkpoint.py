# SPDX-License-Identifier: Apache-2.0
"""The shipped checkpoint: whole, small, and refused by name when it is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import flashrt_ros.models
from flashrt_ros.models import PolicyModel, load_policy
from flashrt_ros.models.streaming_vla.instruction import InstructionTokenizer
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.sim.scene import JOINT_NAMES, TICK_PERIOD

CHECKPOINT = Path(flashrt_ros.models.__file__).parents[1] / "checkpoints" / "cued_reach"


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    return load_policy(CHECKPOINT)


def test_checkpoint_loads_as_a_policy_for_this_arm(policy) -> None:
    assert isinstance(policy, PolicyModel)
    assert policy.spec.joint_names == JOINT_NAMES
    assert policy.spec.tick_period == TICK_PERIOD
    assert policy.spec.cameras == {"camera": (64, 64, 3)}


def test_checkpoint_is_at_most_twelve_megabytes() -> None:
    assert sum(f.stat().st_size for f in CHECKPOINT.iterdir() if f.is_file()) <= 12_000_000


def test_an_unknown_word_is_refused_by_name(policy) -> None:
    policy.bind(Arena(policy.buffer_specs()), seed=0)
    policy.write_instruction("Reach the RED block")
    with pytest.raises(ValueError, match="'purple'"):
        policy.write_instruction("reach the purple block")
    with pytest.raises(ValueError, match="<unk>"):
        policy.check_instruction("<unk>")
    with pytest.raises(ValueError, match="empty"):
        policy.check_instruction("  ")
    with pytest.raises(ValueError, match="at most 8"):
        policy.check_instruction("reach " * 9)


@pytest.mark.parametrize(("images", "positions", "message"), [
    ({}, np.zeros(5), "no image of camera 'camera'"),
    ({"camera": np.zeros((32, 32, 3), np.uint8)}, np.zeros(5), "32, 32, 3"),
    ({"camera": np.zeros((64, 64, 3), np.float32)}, np.zeros(5), "float32"),
    ({"camera": np.zeros((64, 64, 3), np.uint8)}, np.zeros(4), "waist"),
    ({"camera": np.zeros((64, 64, 3), np.uint8)}, np.full(5, np.nan), "finite"),
])  # fmt: skip
def test_a_bad_observation_is_refused_and_leaves_the_inputs(
    policy, images, positions, message
) -> None:
    arena = Arena(policy.buffer_specs())
    policy.bind(arena, seed=0)
    policy.write_observation({"camera": np.full((64, 64, 3), 7, np.uint8)}, np.arange(5.0))
    with pytest.raises(ValueError, match=message):
        policy.write_observation(images, positions)
    assert (arena["io.image"] == 7).all()
    assert arena["io.joints"].tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0]]


def test_tokenizer_is_in_the_form_that_transformers_reads() -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast.from_pretrained(CHECKPOINT)
    ours = InstructionTokenizer.load(CHECKPOINT, length=8)
    text = "Reach the blue block"
    assert ours.encode(text)[:4] == theirs.encode(text)


def copy_of_checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINT, tmp_path / "copy"))


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "normalisation.json", "tokenizer.json"]
)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = copy_of_checkpoint(tmp_path)
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_policy(folder)


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    folder = copy_of_checkpoint(tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "act"}))
    with pytest.raises(ValueError, match="'act'"):
        load_policy(folder)


def test_weights_that_do_not_fit_the_config_are_refused(tmp_path: Path) -> None:
    folder = copy_of_checkpoint(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["hidden_size"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="does not fit"):
        load_policy(folder)


def test_fingerprint_tells_checkpoints_apart(tmp_path: Path, policy) -> None:
    assert load_policy(CHECKPOINT).fingerprint == policy.fingerprint
    folder = copy_of_checkpoint(tmp_path)
    statistics = json.loads((folder / "normalisation.json").read_text())
    statistics["state_mean"][0] += 0.001
    (folder / "normalisation.json").write_text(json.dumps(statistics))
    changed = load_policy(folder).fingerprint
    assert changed.weights == policy.fingerprint.weights
    assert changed.config != policy.fingerprint.config
