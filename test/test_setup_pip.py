# SPDX-License-Identifier: Apache-2.0
"""`pip install .`: the same Python package, without ROS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Fails on any import of ROS, and prints where the package came from.
WITHOUT_ROS = """
import sys

class NoRos:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"rclpy", "std_msgs", "sensor_msgs", "trajectory_msgs"}:
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, NoRos())
import flashrt_ros.models, flashrt_ros.policies, flashrt_ros.runtime, flashrt_ros.sim.world
print(flashrt_ros.__file__)
model = flashrt_ros.models.load_policy("cued_reach")
print(model.spec.chunk_length)
print(flashrt_ros.sim.world.ArmWorld(3).observe().image.shape)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(
        ROOT / "flashrt_ros", tree / "flashrt_ros", ignore=shutil.ignore_patterns("__pycache__")
    )
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", "dist", "."], cwd=tree, check=True, capture_output=True)
    (file,) = (tree / "dist").glob("flashrt_ros-*.whl")
    return file


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "flashrt_ros").rglob("*"):
        relative = path.relative_to(ROOT)
        hidden = any(part.startswith(".") for part in relative.parts)
        if path.is_file() and not hidden and "__pycache__" not in relative.parts:
            assert str(relative) in names


def test_the_wheel_brings_the_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "flashrt = flashrt_ros.cli:main" in archive.read(entry_points).decode()


def test_it_runs_where_there_is_no_ros(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROS],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    file, _, shape = result.stdout.splitlines()
    assert file == str(tmp_path / "site/flashrt_ros/__init__.py")
    assert shape == "(64, 64, 3)"
