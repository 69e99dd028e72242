# SPDX-License-Identifier: Apache-2.0
"""Statistics from each layout, there and back, and what is missing named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_pi0 import statistics

from flashrt_ros.models.pi0.normalisation import ACTION, STATE
from flashrt_ros.policies.normalisation import Mode, Normalisation, Normaliser

NUMBERS = statistics()
USED = [mode for mode in Mode if mode not in (Mode.IDENTITY, Mode.QUANTILE10)]


def write_lerobot(
    folder: Path,
    tensors: dict[str, list[float]] | None = None,
    modes: dict[str, str] | None = None,
    step: str = "normalizer_processor",
) -> None:
    """The processor files of LeRobot 0.4, with every statistic unless told otherwise."""
    if tensors is None:
        tensors = {f"{f}.{n}": x for f, entries in NUMBERS.items() for n, x in entries.items()}
    modes = modes or {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "MIN_MAX"}
    for which, name in (("preprocessor", step), ("postprocessor", "unnormalizer_processor")):
        state_file = f"policy_{which}_step_5_{name}.safetensors"
        save_file({k: torch.tensor(v) for k, v in tensors.items()}, folder / state_file)
        content = {
            "name": f"policy_{which}",
            "steps": [
                {"registry_name": "device_processor", "config": {"device": "cuda"}},
                {
                    "registry_name": name,
                    "config": {"eps": 1e-8, "features": {}, "norm_map": modes},
                    "state_file": state_file,
                },
            ],
        }
        (folder / f"policy_{which}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("mode", USED)
def test_there_and_back(mode: Mode) -> None:
    normaliser = Normaliser.of(ACTION, mode, NUMBERS[ACTION], "here")
    values = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)) * 3
    torch.testing.assert_close(normaliser.restore(normaliser.normalise(values)), values)
    assert not torch.allclose(normaliser.normalise(values), values)


def test_mean_and_deviation() -> None:
    normaliser = Normaliser.of(STATE, "MEAN_STD", {"mean": [1.0, 2.0], "std": [0.5, 4.0]}, "here")
    assert normaliser.normalise(torch.tensor([2.0, 2.0])).tolist() == [2.0, 0.0]
    assert normaliser.restore(torch.tensor([2.0, -1.0])).tolist() == [2.0, -2.0]


@pytest.mark.parametrize(
    ("mode", "low", "high"),
    [("MIN_MAX", "min", "max"), ("QUANTILES", "q01", "q99"), ("QUANTILE10", "q10", "q90")],
)
def test_ranges_map_to_minus_one_and_one(mode: str, low: str, high: str) -> None:
    normaliser = Normaliser.of(STATE, mode, {low: [-2.0], high: [6.0]}, "here")
    assert normaliser.normalise(torch.tensor([[-2.0], [6.0], [2.0]])).flatten().tolist() == [
        -1,
        1,
        0,
    ]
    assert normaliser.restore(torch.tensor([[-1.0], [1.0], [1.5]])).flatten().tolist() == [-2, 6, 8]


def test_a_joint_that_never_moved_stays_finite() -> None:
    still = Normaliser.of(STATE, "MIN_MAX", {"min": [0.5], "max": [0.5]}, "here")
    assert still.normalise(torch.tensor([0.5])).item() == -1.0
    assert still.restore(torch.tensor([0.3])).item() == pytest.approx(0.5)
    flat = Normaliser.of(STATE, "MEAN_STD", {"mean": [0.5], "std": [0.0]}, "here")
    assert flat.normalise(torch.tensor([0.5])).item() == 0.0
    assert flat.restore(torch.tensor([7.0])).item() == 0.5


def test_degrees_become_radians() -> None:
    pair = Normalisation(
        *(Normaliser.of(f, "MEAN_STD", NUMBERS[f], "here") for f in (STATE, ACTION))
    )
    converted = pair.in_radians("deg")
    degrees = torch.tensor([90.0, -45.0, 10.0])
    torch.testing.assert_close(
        converted.state.normalise(degrees * (math.pi / 180)), pair.state.normalise(degrees)
    )
    torch.testing.assert_close(
        converted.action.restore(torch.ones(3)),
        pair.action.restore(torch.ones(3)) * (math.pi / 180),
    )
    with pytest.raises(ValueError, match="'percent'"):
        pair.in_radians("percent")


def test_lerobot_processor_files(tmp_path: Path) -> None:
    write_lerobot(tmp_path)
    read = Normalisation.of_checkpoint(tmp_path, {})
    assert (read.state.mode, read.action.mode) == (Mode.QUANTILES, Mode.MIN_MAX)
    assert read.state.second.tolist() == pytest.approx(NUMBERS[STATE]["q99"])
    assert read.action.first.tolist() == pytest.approx(NUMBERS[ACTION]["min"])


def test_dataset_statistics_with_the_modes_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text(json.dumps(NUMBERS))
    config = {"normalization_mapping": {"STATE": "QUANTILES"}}
    read = Normalisation.of_checkpoint(tmp_path, config)
    assert (read.state.mode, read.action.mode) == (Mode.QUANTILES, Mode.MEAN_STD)


def test_transformers_processor_file(tmp_path: Path) -> None:
    content = {"state_mean": [1.0], "state_std": [2.0], "actions_mean": [3.0], "actions_std": [4.0]}
    (tmp_path / "processor_config.json").write_text(json.dumps(content))
    read = Normalisation.of_checkpoint(tmp_path, {})
    assert read.state.normalise(torch.tensor([5.0])).item() == pytest.approx(2.0)
    assert read.action.restore(torch.tensor([1.0])).item() == 7.0


def test_no_statistics_at_all_are_refused_with_the_files_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"policy_preprocessor\.json.*stats\.json"):
        Normalisation.of_checkpoint(tmp_path, {})


def test_a_missing_statistic_is_refused_by_name(tmp_path: Path) -> None:
    tensors = {f"{STATE}.mean": [0.0], f"{STATE}.std": [1.0], f"{ACTION}.mean": [0.0]}
    write_lerobot(tmp_path, tensors, {"STATE": "MEAN_STD", "ACTION": "MEAN_STD"})
    with pytest.raises(ValueError, match=r"no std of 'action', which MEAN_STD needs; it has mean"):
        Normalisation.of_checkpoint(tmp_path, {})


def test_statistics_of_another_robot_are_refused(tmp_path: Path) -> None:
    """A checkpoint of several robots keys them by robot; LeRobot then normalises nothing."""
    tensors = {f"{STATE}.mean": [0.0], f"{STATE}.std": [1.0]}
    tensors |= {f"blue.buffer.{ACTION}.{name}": [1.0] for name in ("mean", "std")}
    write_lerobot(tmp_path, tensors, {"STATE": "MEAN_STD", "ACTION": "MEAN_STD"})
    with pytest.raises(ValueError, match=r"no statistics of 'action'; it has blue\.buffer\.action"):
        Normalisation.of_checkpoint(tmp_path, {})


def test_null_statistics_of_transformers_are_refused(tmp_path: Path) -> None:
    content = {"state_mean": None, "state_std": None}
    (tmp_path / "processor_config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"no mean and no std of 'observation\.state'"):
        Normalisation.of_checkpoint(tmp_path, {})


def test_steps_that_would_change_the_inputs_are_refused(tmp_path: Path) -> None:
    write_lerobot(tmp_path, step="relative_actions_processor")
    with pytest.raises(ValueError, match="'relative_actions_processor' is not supported"):
        Normalisation.of_checkpoint(tmp_path, {})


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="std of 'action' is"):
        Normaliser.of(ACTION, "MEAN_STD", {"mean": [0.0], "std": [math.nan]}, "here")
    with pytest.raises(ValueError, match="have 1 and 2 numbers"):
        Normaliser.of(ACTION, "MEAN_STD", {"mean": [0.0], "std": [1.0, 1.0]}, "here")
