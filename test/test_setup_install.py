# SPDX-License-Identifier: Apache-2.0
"""What colcon installed, and what package.xml, CMakeLists.txt and setup.cfg declare."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

packages = pytest.importorskip("ament_index_python.packages", reason="needs ROS 2")

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "flashrt_ros"
ROS_FREE = ("runtime", "models", "policies")
# Modules whose distribution has another name: rosdep's, and pip's.
DISTRIBUTIONS = {
    "yaml": {"python3-yaml", "pyyaml"},
    "numpy": {"python3-numpy", "numpy"},
    "PIL": {"python3-pil", "pillow"},
}


def package_prefix() -> Path:
    return Path(packages.get_package_prefix("flashrt_ros"))


def shipped(folder: Path) -> list[Path]:
    return sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def test_every_file_of_the_package_is_installed() -> None:
    (installed,) = package_prefix().glob("lib/python3*/*-packages/flashrt_ros")
    for file in shipped(SOURCE):
        assert (installed / file).read_bytes() == (SOURCE / file).read_bytes(), file


def test_the_command_line_is_on_the_path_of_the_environment() -> None:
    command = package_prefix() / "bin" / "flashrt"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert "0.1.0" in done.stdout
    assert str(command.parent) in os.environ["PATH"].split(os.pathsep)


@pytest.mark.parametrize("folder", ["launch", "config"])
def test_launch_files_and_configurations_are_installed(folder: str) -> None:
    share = Path(packages.get_package_share_directory("flashrt_ros"))
    files = shipped(ROOT / folder)
    assert files
    for file in files:
        assert (share / folder / file).read_bytes() == (ROOT / folder / file).read_bytes(), file


def test_every_interface_is_generated() -> None:
    for kind in ("msg", "srv", "action"):
        module = importlib.import_module(f"flashrt_ros.{kind}")
        for file in (ROOT / kind).iterdir():
            assert hasattr(module, file.stem), file.name


def test_the_executables_run() -> None:
    folder = package_prefix() / "lib/flashrt_ros"
    names = {path.name for path in folder.iterdir()}
    assert {"policy_node", "sim_arm_node", "demo", "flashrt"} <= names
    assert all(os.access(folder / name, os.X_OK) for name in names)
    result = subprocess.run(
        [folder / "sim_arm_node", "--ros-args", "-p", "mode:=fast"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "parameter mode is 'fast'" in result.stderr


# -- declarations ----------------------------------------------------------------------------


def declared_for_ros() -> set[str]:
    tree = ElementTree.parse(ROOT / "package.xml")
    return {element.text or "" for element in tree.iter() if element.tag.endswith("depend")}


def declared_for_pip() -> set[str]:
    """Modules that setup.cfg asks for, extras included."""
    configuration = configparser.ConfigParser()
    configuration.read(ROOT / "setup.cfg")
    lists = [configuration["options"]["install_requires"]]
    lists += configuration["options.extras_require"].values()
    names = (re.match(r"[\w-]+", line) for text in lists for line in text.split())
    return {name[0].replace("-", "_") for name in names if name}


def imports(folder: Path) -> dict[str, Path]:
    """Top-level modules that the files of a folder import, each with one file that does."""
    found: dict[str, Path] = {}
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            else:
                continue
            found.update((name.split(".")[0], file) for name in names)
    return {
        name: file
        for name, file in found.items()
        if name not in sys.stdlib_module_names and name != "flashrt_ros"
    }


def test_every_import_is_declared() -> None:
    known = declared_for_ros() | declared_for_pip()
    for name, file in imports(SOURCE).items():
        assert DISTRIBUTIONS.get(name, {name}) & known, f"{name}, in {file}"


@pytest.mark.parametrize("layer", ROS_FREE)
def test_what_pip_installs_needs_no_ros(layer: str) -> None:
    known = declared_for_pip()
    for name, file in imports(SOURCE / layer).items():
        assert DISTRIBUTIONS.get(name, {name}) & known, f"{name}, in {file}"


def test_cmake_and_package_xml_name_the_same_interface_packages() -> None:
    text = (ROOT / "CMakeLists.txt").read_text()
    match = re.search(r"set\(interface_dependencies([^)]*)\)", text)
    assert match
    tree = ElementTree.parse(ROOT / "package.xml")
    declared = {element.text for element in tree.iter("depend")}
    assert set(match[1].split()) == declared


def test_every_package_that_an_interface_uses_is_declared() -> None:
    declared = declared_for_ros()
    files = [file for kind in ("msg", "srv", "action") for file in (ROOT / kind).iterdir()]
    for file in files:
        for used in re.findall(r"^(\w+)/\w+", file.read_text(), flags=re.MULTILINE):
            assert used in declared, f"{used}, in {file.name}"


def test_versions_agree() -> None:
    import flashrt_ros

    version = ElementTree.parse(ROOT / "package.xml").findtext("version")
    assert version == flashrt_ros.__version__


# -- the wheels' CMake files -----------------------------------------------------------------


def repair_module() -> object:
    spec = importlib.util.spec_from_file_location("repair", ROOT / "scripts/repair_cmake_paths.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_builders_paths_become_this_interpreters() -> None:
    text = (
        'INCLUDES "/opt/python/cp312-cp312/include/python3.12;'
        '/opt/python/cp312-cp312/lib/python3.12/site-packages/numpy/_core/include"'
    )
    repaired = repair_module().repair(text, "/usr/include/python3.12", r"/v\1/site-packages")  # type: ignore[attr-defined]
    assert repaired == (
        r'INCLUDES "/usr/include/python3.12;/v\1/site-packages/numpy/_core/include"'
    )


@pytest.mark.skipif("ROS_DISTRO" in os.environ, reason="ROS is not from wheels here")
def test_no_path_of_the_builder_is_left() -> None:
    left = [
        file
        for file in Path(sys.prefix).glob("share/*/cmake/*.cmake")
        if "/opt/python/cp" in file.read_text()
    ]
    assert left == []
