# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: tests that replay a bag through a policy.

    def test_incident_is_reproduced(replay):
        run = replay("bags/incident", model="my_policy")
        run.assert_identical()
        run.assert_recorded_inference_within(0.05, quantile=0.99)

It is loaded by itself where this package was installed by pip. In a colcon workspace say
`pytest_plugins = ["flashrt_ros.pytest_plugin"]` in conftest.py. launch_pytest can use the fixture,
too: it is of function scope and needs no ROS context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:  # every pytest run of an environment loads this module: it must stay light
    from flashrt_ros.replay.outcome import ReplayReport

Replay = Callable[..., "Replayed"]


class Replayed:
    """A replayed bag, with assertions that say what was wrong.

    Attributes:
        report: everything, see `ReplayReport`.
    """

    def __init__(self, report: ReplayReport) -> None:
        self.report = report

    def assert_identical(self) -> None:
        """Actions, inputs and states are those of the bag (within the replay's tolerance)."""
        difference = self.report.difference
        assert self.report.identical, difference.message if difference else "not identical"

    def assert_ticks(self, at_least: int) -> None:
        """So many boundaries were really computed: a replay of nothing is identical, too."""
        assert self.report.ticks >= at_least, (
            f"{self.report.ticks} ticks were replayed, expected at least {at_least}"
        )

    def assert_actions_within(self, largest: float, joint: str | None = None) -> None:
        """No action differs from the recorded one by more than `largest`, rad or m."""
        names = self.report.run.info.joint_names
        assert joint is None or joint in names, f"no joint '{joint}', the policy has {names}"
        compared = 0
        for tick in self.report.boundaries:
            if tick.max_error is None:
                continue
            compared += 1
            for name, error in zip(names, tick.max_error, strict=True):
                assert (joint is not None and name != joint) or error <= largest, (
                    f"boundary {tick.number}: {name} differs by {error:.6g}, expected at most "
                    f"{largest:.6g}"
                )
        assert compared, "no action was compared: the bag has no chunk of a boundary replayed"

    def assert_steps_within(self, largest: float) -> None:
        """No joint of a computed chunk moves by more than `largest` between points, rad or m."""
        names = self.report.run.info.joint_names
        for tick in self.report.boundaries:
            if tick.actual is None or len(tick.actual) < 2:
                continue
            steps = np.abs(np.diff(tick.actual, axis=0)).max(axis=0)
            worst = int(np.argmax(steps))
            assert steps[worst] <= largest, (
                f"boundary {tick.number}: {names[worst]} moves by {steps[worst]:.6g} between two "
                f"points, expected at most {largest:.6g}"
            )

    def assert_recorded_inference_within(self, deadline: float, quantile: float = 1.0) -> None:
        """On the robot, that share of the ticks took at most `deadline` s."""
        times = [b.recorded_inference_s for b in self.report.boundaries if b.recorded_inference_s]
        assert times, "the bag has no inference times"
        value = float(np.quantile(times, quantile))
        assert value <= deadline, (
            f"quantile {quantile} of the recorded inference is {value:.4f} s, expected at most "
            f"{deadline} s"
        )

    def assert_events(self, **counts: int) -> None:
        """So many events of each kind: `assert_events(interrupt=1, restore=1, hold=0)`."""
        seen = Counter(event.kind for event in self.report.run.events)
        for kind, expected in counts.items():
            assert seen[kind.upper()] == expected, (
                f"{seen[kind.upper()]} events of kind {kind}, expected {expected}; "
                f"the bag has {dict(seen)}"
            )

    def assert_no_holds(self) -> None:
        """No fault, limit or emergency stop held the arm."""
        for event in self.report.run.events:
            reason = event.detail.get("reason", "no reason recorded")
            assert event.kind != "HOLD", f"held at boundary {event.boundary}: {reason}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--replay-html FILE`: a page about every bag that the tests replayed."""
    group = parser.getgroup("flashrt")
    group.addoption("--replay-html", type=Path, help="write a page about the replayed bags here")


_REPLAYED = pytest.StashKey[list[tuple[Path, "ReplayReport"]]]()


@pytest.fixture
def replay(request: pytest.FixtureRequest) -> Replay:
    """`replay(bag, model=None, tolerance=0.0, from_boundary=None, until=None, node=None)`.

    A relative path of a bag is taken from the test file's folder, then from the working directory.
    Raises CannotReplay where the bag or this machine lacks something, naming it.
    """
    from flashrt_ros.replay import offline
    from flashrt_ros.replay.parsing import open_run

    outcomes = request.config.stash.setdefault(_REPLAYED, [])

    def run_bag(
        bag: str | Path,
        *,
        model: str | Path | None = None,
        tolerance: float = 0.0,
        from_boundary: int | None = None,
        until: int | None = None,
        node: str | None = None,
    ) -> Replayed:
        path = request.path.parent / bag
        run = open_run(path if path.exists() else Path(bag), node=node)
        report = offline.replay(
            run, model=model, tolerance=tolerance, from_boundary=from_boundary, until=until
        )
        outcomes.append((run.path, report))
        return Replayed(report)

    return run_bag


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the page that was asked for."""
    target: Path | None = session.config.getoption("--replay-html", None)
    outcomes = session.config.stash.get(_REPLAYED, [])
    if target is not None and outcomes:
        # matplotlib only where it is needed.
        from flashrt_ros.replay.page import write_page
        from flashrt_ros.replay.pool import BagOutcome

        write_page([BagOutcome(path, report) for path, report in outcomes], target)
