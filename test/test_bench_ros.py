# SPDX-License-Identifier: Apache-2.0
"""`flashrt bench ros` runs, and its file is of the format. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from flashrt_ros.bench.cli import main
from flashrt_ros.bench.report import validate


def test_a_quick_run_measures_everything_and_writes_a_valid_file(tmp_path: Path) -> None:
    file = tmp_path / "ros.json"
    assert main(["ros", "--quick", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    validate(content)
    rows = {(row["name"], row["params"].get("load", "")): row for row in content["rows"]}
    for load in ("idle", "ticking"):
        assert ("service_empty", load) in rows
        for verb in ("snapshot", "restore", "rollback", "set_instruction", "interrupt", "resume"):
            assert rows[f"service_{verb}", load]["ratio"] > 0.0
        for sender in ("command", "thread"):
            assert (f"jitter_{sender}", load) in rows
    assert rows["observation_to_command", ""]["baseline"] > 0.0
    assert rows["boundaries_sustained", ""]["median"] > 0.0
    assert ("interrupt_to_last_moving_command", "") in rows
    assert any("p99 over that of the empty service" in note for note in content["notes"])
