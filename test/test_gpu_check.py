# SPDX-License-Identifier: Apache-2.0
"""`scripts/gpu_check.sh` runs end to end on a CPU with small sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashrt_ros.bench.gpu_check import steps
from flashrt_ros.bench.report import read

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_script_runs_audits_and_benchmarks_and_says_what_came_of_each(tmp_path: Path) -> None:
    environment = {
        **os.environ, "FLASHRT_GPU_CHECK_SMALL": "1", "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/gpu_check.sh"), "--out", str(tmp_path),
         "--seconds", "540"],
        env=environment, capture_output=True, text=True, check=False, timeout=550,
    )  # fmt: skip
    logs = "\n".join(file.read_text()[-2000:] for file in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["passed"]
    assert summary["versions"]["torch"] == torch.__version__
    names = [step["name"] for step in summary["steps"]]
    assert names == ["audit_toy", "audit_policy", "capsule", "policy", "hybrid"]
    for name in ("capsule", "policy", "hybrid"):
        assert read(tmp_path / f"{name}.json").rows
    for name in ("audit_toy", "audit_policy"):
        assert '"ok": true' in (tmp_path / f"{name}.log").read_text()


def test_the_whole_check_begins_with_the_contracts_and_fits_eight_minutes(tmp_path: Path) -> None:
    todo = steps(tmp_path, "cuda", quick=False)
    assert todo[0].name == "contracts"
    for name in todo[0].command[-3:]:
        assert Path(name).is_file()
    forbidden = {"hypothesis", "rclpy", "mujoco"}
    for name in todo[0].command[-3:]:
        assert not [word for word in forbidden if f"import {word}" in Path(name).read_text()]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_what_to_do() -> None:
    command = [sys.executable, "-m", "flashrt_ros.bench.gpu_check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "FLASHRT_GPU_CHECK_SMALL=1" in done.stderr
