# SPDX-License-Identifier: Apache-2.0
"""Every test session talks in a ROS domain of its own, on this machine only."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

import pytest

# Above 101 the DDS ports of a domain meet the ports that Linux hands out to clients.
DOMAINS = range(10, 101)

_lock: IO[str] | None = None


def _take_domain() -> tuple[int, IO[str]]:
    """Lock the first domain that no other session of these tests on this machine holds.

    The lock goes with the process, however it ends.
    """
    for number in DOMAINS:
        path = Path(tempfile.gettempdir()) / f"flashrt_ros_test_domain_{number}.lock"
        try:
            file = path.open("w")
        except OSError:  # another user's
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held by another session
            file.close()
            continue
        return number, file
    raise RuntimeError(f"no ROS domain of {DOMAINS} is free: are old test sessions running?")


def pytest_configure(config: pytest.Config) -> None:
    global _lock
    domain, _lock = _take_domain()
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_report_header(config: pytest.Config) -> str:
    ros = os.environ.get("ROS_DISTRO", "kilted from PyPI")
    return f"ROS 2: {ros}, domain {os.environ['ROS_DOMAIN_ID']}"


def pytest_unconfigure(config: pytest.Config) -> None:
    if _lock is not None:
        _lock.close()
