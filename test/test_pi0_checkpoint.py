# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of both layouts become the same policy; what does not fit is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_pi0 import (
    CAMERAS,
    JOINTS,
    images,
    positions,
    statistics,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
    write_checkpoint,
    write_robot,
)

from flashrt_ros.models import load_policy
from flashrt_ros.models.pi0 import (
    ImagePreprocessing,
    Normalisation,
    Pi0Policy,
    Pipeline,
    adopt_pi0,
)
from flashrt_ros.models.pi0.normalisation import ACTION, STATE, Normaliser
from flashrt_ros.runtime import Arena

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("pi0") / "original")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def first_chunk(policy: Pi0Policy) -> np.ndarray:
    arena = Arena(policy.buffer_specs())
    policy.bind(arena, seed=3)
    policy.write_instruction("pick the red cube up")
    policy.write_observation(images(), positions())
    policy.tick()
    return policy.chunk()


def edit(name: str, **changes: object) -> Change:
    """Set fields of a json file of the checkpoint; None takes one away."""

    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) | changes
        content = {key: value for key, value in content.items() if value is not None}
        (folder / name).write_text(json.dumps(content))

    return change


def write_lerobot(folder: Path) -> Path:
    """The same policy as LeRobot would have saved it, with a camera that is never connected."""
    folder.mkdir()
    sizes = tiny_config().to_dict()
    visual = {"type": "VISUAL", "shape": [3, 28, 28]}
    cameras = {f"observation.images.{name}": visual for name in [*CAMERAS, "empty_camera_0"]}
    state = {"observation.state": {"type": "STATE", "shape": [len(JOINTS)]}}
    modes = {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "MEAN_STD"}
    config = {
        "type": "pi0",
        "n_obs_steps": 1,
        "input_features": cameras | state,
        "output_features": {"action": {"type": "ACTION", "shape": [len(JOINTS)]}},
        "normalization_mapping": modes,
        "device": "cuda",
        "empty_cameras": 1,
        "tokenizer_max_length": 20,
        "image_resolution": [28, 28],
        **{name: sizes[name] for name in ("vlm_config", "dit_config", "chunk_size")},
        **{name: sizes[name] for name in ("max_state_dim", "max_action_dim")},
        "num_inference_steps": 3,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tiny_model().save_pretrained(folder / "weights")
    tensors = load_file(folder / "weights" / "model.safetensors")
    shutil.rmtree(folder / "weights")
    # LeRobot's names: one more prefix, and the vision model inside its tower.
    renamed = {
        f"model.{name}".replace("vision_tower.", "vision_tower.vision_model."): tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    for which, step in (("pre", "normalizer_processor"), ("post", "unnormalizer_processor")):
        state_file = f"policy_{which}processor_step_0_{step}.safetensors"
        entry = {"registry_name": step, "config": {"norm_map": modes}, "state_file": state_file}
        (folder / f"policy_{which}processor.json").write_text(json.dumps({"steps": [entry]}))
        numbers = {
            f"{feature}.{name}": torch.tensor(values)
            for feature, entries in statistics().items()
            for name, values in entries.items()
        }
        save_file(numbers, folder / state_file)
    write_robot(folder)
    return folder


def test_load_policy_knows_pi0(original: Path) -> None:
    policy = load_policy(original)
    assert isinstance(policy, Pi0Policy)
    assert policy.name == "pi0:original"
    np.testing.assert_array_equal(first_chunk(policy), first_chunk(adopt_pi0(original)))


def test_lerobots_layout_is_the_same_policy_with_its_own_inputs(
    original: Path, tmp_path: Path
) -> None:
    """Weights, statistics and image pipeline each come from LeRobot's files."""
    lerobot = load_policy(write_lerobot(tmp_path / "lerobot"))
    assert isinstance(lerobot, Pi0Policy)
    numbers = statistics()
    same_inputs = adopt_pi0(
        original,
        images=ImagePreprocessing(28, 28, Pipeline.LEROBOT),
        normalisation=Normalisation(
            Normaliser.of(STATE, "QUANTILES", numbers[STATE], "here"),
            Normaliser.of(ACTION, "MEAN_STD", numbers[ACTION], "here"),
        ),
    )
    np.testing.assert_allclose(first_chunk(lerobot), first_chunk(same_inputs), atol=1e-5)
    assert np.abs(first_chunk(lerobot) - first_chunk(adopt_pi0(original))).max() > 1e-3
    with pytest.raises(ValueError, match="at most 20"):
        lerobot.check_instruction(" ".join(["red"] * 19))


def test_sharded_weights_are_the_same_policy(original: Path, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    tiny_model().save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    np.testing.assert_array_equal(first_chunk(adopt_pi0(folder)), first_chunk(adopt_pi0(original)))


def test_degrees_are_radians_outside(original: Path, folder: Path) -> None:
    """Statistics in degrees, the same joints in radians: the same chunk as from radians."""
    numbers = statistics()
    edit("robot.json", joint_unit="deg")(folder)
    edit(
        "processor_config.json",
        state_mean=list(np.rad2deg(numbers[STATE]["mean"])),
        state_std=list(np.rad2deg(numbers[STATE]["std"])),
        actions_mean=list(np.rad2deg(numbers[ACTION]["mean"])),
        actions_std=list(np.rad2deg(numbers[ACTION]["std"])),
    )(folder)
    expected = first_chunk(adopt_pi0(original))
    np.testing.assert_allclose(first_chunk(adopt_pi0(folder)), expected, atol=1e-5)


def drop_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("action_out_proj.bias")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def add_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["time_mlp_in.weight"] = torch.zeros(2)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def other_cameras(folder: Path) -> None:
    features = {f"observation.images.{name}": {} for name in ("wrist", "top")}
    edit("config.json", input_features=features)(folder)


def other_head(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["dit_config"]["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))


def gone(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (gone("config.json"), r"no config\.json"),
        (gone("model.safetensors"), r"no model\*\.safetensors"),
        (gone("tokenizer.json"), r"no tokenizer\.json"),
        (gone("robot.json"), r"no robot\.json"),
        (gone("processor_config.json"), "no statistics of 'observation.state' and 'action'"),
        (edit("config.json", model_type="pi05"), "model type is 'pi05', expected 'pi0'"),
        (edit("config.json", use_relative_actions=True), "use_relative_actions is True"),
        (edit("config.json", adapt_to_pi_aloha=True), "adapt_to_pi_aloha is True"),
        (edit("config.json", image_resolution=[56, 56]), r"image_resolution is \[56, 56\]"),
        (other_cameras, "trained with cameras wrist, top, in this order"),
        (other_head, "num_hidden_layers is 2 in the language model and 3 in the action expert"),
        (drop_weight, r"missing keys: action_out_proj\.bias"),
        (add_weight, "unexpected keys: .*time_mlp_in"),
        (edit("robot.json", joint_unit="percent"), "joint_unit is 'percent', expected rad or deg"),
        (edit("robot.json", joint_unit=None), "missing joint_unit"),
        (edit("robot.json", rate=5), "unknown rate"),
        (edit("robot.json", chunk_dt=0), "chunk_dt is 0.0"),
        (edit("robot.json", cameras={}), "cameras is empty"),
        (edit("robot.json", cameras={"top": [28]}), "camera 'top'"),
        (edit("robot.json", cameras={"top": [1, 300]}), "camera 'top': 1 x 300 shrinks"),
        (edit("robot.json", joint_names=["a", "a", "b"]), "each once"),
        (edit("robot.json", joint_names=["a", "b"]), "have 3 numbers, the robot has 2 joints"),
        (edit("robot.json", joint_names=list("abcdefg")), "7 joints, .* max_state_dim is 6"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(folder: Path, change: Change, named: str) -> None:
    change(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=named):
        adopt_pi0(folder)


def test_wrong_arguments_are_refused(original: Path) -> None:
    with pytest.raises(ValueError, match="0 Euler steps"):
        adopt_pi0(original, steps=0)
    with pytest.raises(ValueError, match=r"prompt buckets \[8, 16\]: expected lengths up to 48"):
        adopt_pi0(original, prompt_buckets=[16, 8])
    with pytest.raises(ValueError, match="images of 56 x 56, the vision tower takes 28 x 28"):
        adopt_pi0(original, images=ImagePreprocessing(56, 56, Pipeline.LEROBOT))


def test_the_fingerprint_tells_policies_apart(original: Path, folder: Path) -> None:
    ours = adopt_pi0(original).fingerprint
    assert adopt_pi0(folder).fingerprint == ours
    edit("processor_config.json", actions_mean=[0.0, 0.0, 0.0])(folder)
    other = adopt_pi0(folder).fingerprint
    assert [field for field, *_ in ours.mismatches(other)] == ["config"]
    write_checkpoint(folder, tiny_model(seed=1))
    assert [field for field, *_ in ours.mismatches(adopt_pi0(folder).fingerprint)] == ["weights"]
    assert adopt_pi0(original, steps=4).fingerprint != ours
    assert adopt_pi0(original, dtype=torch.bfloat16).fingerprint.dtype == "bfloat16"
