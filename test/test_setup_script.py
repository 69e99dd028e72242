# SPDX-License-Identifier: Apache-2.0
"""scripts/setup.sh and scripts/env.sh: what they say and do on machines that lack something."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What setup.sh may use of a bare system, compilers and downloads left out.
TOOLS = [
    "awk",
    "bash",
    "cat",
    "command",
    "cut",
    "df",
    "dirname",
    "env",
    "find",
    "flock",
    "grep",
    "mkdir",
    "mv",
    "python3",
    "rm",
    "sha256sum",
    "sort",
    "touch",
    "uname",
    "xargs",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what setup.sh reads, in which nothing is set up."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("scripts", "requirements", "cmake", "msg", "srv", "config", "launch"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("package.xml", "CMakeLists.txt"):
        shutil.copy(ROOT / name, tree)
    (tree / "flashrt_ros").mkdir()
    return tree


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with the system's basic tools and Python, without any compiler."""
    path = tmp_path / "bin"
    path.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (path / tool).symlink_to(Path(found).resolve())
    # The interpreter below the test session's own virtual environment.
    (path / "python3").unlink()
    (path / "python3").symlink_to(Path(os.path.realpath(shutil.which("python3") or "python3")))
    return path


def fake(path: Path, tool: str, script: str) -> None:
    (path / tool).unlink(missing_ok=True)
    (path / tool).write_text(f"#!/bin/bash\n{script}\n")
    (path / tool).chmod(0o755)


def setup(folder: Path, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(path), "HOME": str(folder), **variables}
    return subprocess.run(
        ["bash", str(folder / "scripts/setup.sh")],
        env=environment,
        capture_output=True,
        text=True,
    )


def with_compilers(path: Path) -> None:
    for tool in ("c++", "cc"):
        fake(path, tool, "exit 0")


def test_a_missing_compiler_is_named_with_the_command_that_installs_it(
    folder: Path, bare_path: Path
) -> None:
    result = setup(folder, bare_path)
    assert result.returncode != 0
    assert "missing: a C++ compiler (g++)" in result.stderr
    assert "sudo apt-get install -y" in result.stderr
    assert "g++" in result.stderr.split("apt-get install -y")[1]
    assert not (folder / ".venv").exists()


def test_a_full_disk_is_named_with_what_is_needed(folder: Path, bare_path: Path) -> None:
    with_compilers(bare_path)
    fake(bare_path, "df", 'echo "Filesystem K Used Available Use% On"; echo "x 9 9 1048576 9% /"')
    result = setup(folder, bare_path)
    assert result.returncode != 0
    assert "1 GiB of free disk, 6 GiB are needed" in result.stderr
    assert not (folder / ".venv").exists()


def test_a_machine_without_wheels_is_told_to_install_ros(folder: Path, bare_path: Path) -> None:
    with_compilers(bare_path)
    fake(bare_path, "uname", '[ "$1" = -s ] && echo Linux || echo aarch64')
    result = setup(folder, bare_path)
    assert result.returncode != 0
    assert "no ROS 2 wheels for Linux aarch64" in result.stderr


def test_a_python_that_is_too_old_is_named(folder: Path, bare_path: Path) -> None:
    with_compilers(bare_path)
    fake(bare_path, "python3", "exit 1")
    result = setup(folder, bare_path)
    assert result.returncode != 0
    assert "Python 3.11 to 3.13" in result.stderr


def test_a_ros_distribution_that_is_not_there_is_named(folder: Path, bare_path: Path) -> None:
    result = setup(folder, bare_path, ROS_DISTRO="nonesuch")
    assert result.returncode != 0
    assert "/opt/ros/nonesuch/setup.bash does not exist" in result.stderr


def test_a_set_up_folder_has_nothing_to_do() -> None:
    command = ["bash", str(ROOT / "scripts/setup.sh")]
    subprocess.run(command, check=True, capture_output=True)
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert again.stdout == ""


def source_env(script: str, cwd: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "HOME", "ROS_DISTRO", "FLASHRT_ROS_SETUP")
    }
    return subprocess.run(
        ["bash", "-c", script, "bash", str(root / "scripts/env.sh")],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_env_works_from_any_folder_in_a_strict_shell(tmp_path: Path) -> None:
    script = (
        'set -euo pipefail; source "$1"; '
        'python -c "from flashrt_ros.msg import ActionChunk; import flashrt_ros.runtime"; '
        'false || echo "still strict: $-"'
    )
    result = source_env(script, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "u" in result.stdout.split("strict: ")[1]


def test_env_sourced_twice_changes_nothing(tmp_path: Path) -> None:
    names = "$PYTHONPATH $LD_LIBRARY_PATH $AMENT_PREFIX_PATH"
    result = source_env(f'source "$1"; echo "{names}"; source "$1"; echo "{names}"', tmp_path)
    first, second = result.stdout.splitlines()
    assert first == second
    assert str(ROOT) in first


def test_env_in_a_folder_without_a_set_up_says_what_to_run(folder: Path) -> None:
    result = source_env('source "$1" || echo refused', folder, root=folder)
    assert "refused" in result.stdout
    assert "scripts/setup.sh" in result.stderr
