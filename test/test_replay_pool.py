# SPDX-License-Identifier: Apache-2.0
"""Many bags at once, a page about them, and tests that users write on bags."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from bag_rig import Line, ToyRun, changed, errand, write_bag
from toy_policy import ToyPolicy

from flashrt_ros.models import load_policy
from flashrt_ros.msg import ActionChunk
from flashrt_ros.replay import CannotReplay, ReplayReport, figures, open_run, replay
from flashrt_ros.replay.page import write_page
from flashrt_ros.replay.pool import BagOutcome, PoolOptions, find_bags, replay_bags

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    run = ToyRun(state_digest_every=1)
    errand(run)
    run.close()
    return run.lines


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bag of the shipped policy: processes of a pool can load that one by its name."""
    run = ToyRun(model=load_policy("cued_reach"), directory=None)
    run.tick(3)
    run.close()
    return run.write(tmp_path_factory.mktemp("shipped") / "run")


def one_bit_off(message: ActionChunk) -> None:
    value = np.array([message.points[1].positions[0]])
    value.view(np.uint64)[0] ^= 1
    message.points[1].positions[0] = float(value[0])


def reported(path: Path) -> ReplayReport:
    return replay(open_run(path), ToyPolicy())


class _Seen(HTMLParser):
    """Every tag, and everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#"):
                self.fetched.append(value)


def page_of(outcomes: Sequence[BagOutcome], folder: Path) -> str:
    write_page(outcomes, folder / "page.html")
    return (folder / "page.html").read_text("utf-8")


# -- the pool


def test_bags_are_found_as_folders_and_as_files(lines: list[Line], tmp_path: Path) -> None:
    write_bag(tmp_path / "a" / "first", lines[:4])
    write_bag(tmp_path / "second", lines[:4])
    loose = tmp_path / "loose.mcap"
    loose.write_bytes((tmp_path / "second" / "second.mcap").read_bytes())
    assert find_bags(tmp_path) == [tmp_path / "a" / "first", loose, tmp_path / "second"]


def test_a_folder_without_bags_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotReplay, match="no bag in"):
        find_bags(tmp_path)


def test_processes_replay_every_bag_and_a_broken_one_stops_none(
    shipped: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.mcap"
    broken.write_bytes(b"not a bag")
    done: list[tuple[int, int]] = []
    outcomes = replay_bags(
        [broken, shipped],
        PoolOptions(model="cued_reach"),
        workers=2,
        progress=lambda count, total: done.append((count, total)),
    )
    assert [outcome.path for outcome in outcomes] == [broken, shipped]
    assert [outcome.verdict for outcome in outcomes] == ["cannot be replayed", "identical"]
    assert "broken.mcap" in outcomes[0].reason
    assert outcomes[1].report is not None
    assert outcomes[1].report.ticks == 3
    assert done == [(1, 2), (2, 2)]


def test_a_model_that_does_not_exist_is_the_reason_of_its_bags(shipped: Path) -> None:
    (outcome,) = replay_bags([shipped], PoolOptions(model="/no/such/model"))
    assert outcome.verdict == "cannot be replayed"
    assert "/no/such/model" in outcome.reason


def test_ray_is_refused_with_the_reason_where_there_is_none(shipped: Path) -> None:
    with pytest.raises(CannotReplay, match="ray"):
        replay_bags([shipped], PoolOptions(), ray=True)


# -- the page


def test_the_page_is_one_file_that_fetches_and_runs_nothing(
    lines: list[Line], tmp_path: Path
) -> None:
    bag = write_bag(tmp_path / "run", lines)
    text = page_of([BagOutcome(bag, reported(bag))], tmp_path)
    seen = _Seen()
    seen.feed(text)
    assert seen.fetched == []
    assert "script" not in seen.tags
    assert "img" not in seen.tags
    assert seen.tags.count("svg") == 3  # timeline, lineage, actions; no differences to show
    assert not re.search(r"@import|url\((?!#)", text)


def test_the_page_names_the_first_difference_and_shows_how_large_it_is(
    lines: list[Line], tmp_path: Path
) -> None:
    def by_a_tenth(message: ActionChunk) -> None:
        message.points[0].positions[1] += 0.1

    bag = write_bag(tmp_path / "run", changed(lines, "/action_chunk", 4, by_a_tenth))
    report = reported(bag)
    assert report.difference is not None
    text = page_of([BagOutcome(bag, report)], tmp_path)
    assert "0 of 1 identical" in text
    assert report.difference.message in text.replace("&#39;", "'").replace("&gt;", ">")
    assert "Differences of actions" in text


def test_a_bag_that_cannot_be_replayed_is_on_the_page_with_its_reason(tmp_path: Path) -> None:
    text = page_of([BagOutcome(tmp_path / "x.mcap", None, "no <topic> of type RunInfo")], tmp_path)
    assert "cannot be replayed" in text
    assert "no &lt;topic&gt; of type RunInfo" in text


def test_a_branch_of_an_older_boundary_has_a_lane_of_its_own(
    lines: list[Line], tmp_path: Path
) -> None:
    run = open_run(write_bag(tmp_path / "run", lines))
    lane = figures.lanes(run.events)
    commits = [event for event in run.events if event.kind == "COMMIT"]
    assert lane[commits[0].boundary] == lane[0] == 0
    children: dict[int, list[int]] = {}
    for event in commits:
        children.setdefault(event.parent, []).append(event.boundary)
    for parent, (first, *others) in children.items():
        assert lane[first] == lane[parent], "a first child goes on in its parent's lane"
        assert all(lane[other] != lane[parent] for other in others)
    tips = {lane[event.boundary]: event.boundary for event in commits}
    assert len(tips) == 1 + sum(len(others) - 1 for others in children.values()) + sum(
        parent not in {0, *(event.boundary for event in commits)} for parent in children
    )


def test_time_goes_on_where_the_clock_went_back(lines: list[Line], tmp_path: Path) -> None:
    run = open_run(write_bag(tmp_path / "run", lines))
    first, second = run.events[:2]
    early = dataclasses.replace(second, stamp_ns=first.stamp_ns - 5_000_000_000)
    late = dataclasses.replace(second, stamp_ns=early.stamp_ns + 2_000_000_000)
    assert figures.elapsed([first, early, late]).tolist() == [0.0, 0.0, 2.0]


# -- tests that users write


@pytest.fixture
def users_tests(pytester: pytest.Pytester, shipped: Path) -> pytest.Pytester:
    pytester.makeconftest('pytest_plugins = ["flashrt_ros.pytest_plugin"]')
    (pytester.path / "run").symlink_to(shipped)
    return pytester


def test_the_fixture_replays_a_bag_and_its_assertions_hold(users_tests: pytest.Pytester) -> None:
    users_tests.makepyfile(
        """
        def test_run(replay):
            run = replay("run", model="cued_reach")
            run.assert_identical()
            run.assert_ticks(3)
            run.assert_actions_within(0.0)
            run.assert_actions_within(0.0, joint="elbow")
            run.assert_steps_within(0.5)
            run.assert_recorded_inference_within(60.0)
            run.assert_events(commit=3, interrupt=0)
            run.assert_no_holds()
        """
    )
    result = users_tests.runpytest_inprocess("-p", "no:cacheprovider", "--replay-html", "page.html")
    result.assert_outcomes(passed=1)
    assert "1 of 1 identical" in (users_tests.path / "page.html").read_text("utf-8")


def test_each_assertion_of_the_fixture_can_fail(users_tests: pytest.Pytester) -> None:
    messages = {
        "assert_ticks(4)": "3 ticks were replayed",
        "assert_steps_within(0.0)": "between two points",
        "assert_events(interrupt=1)": "0 events of kind interrupt, expected 1",
        "assert_actions_within(1.0, joint='knee')": "no joint 'knee'",
        "assert_recorded_inference_within(0.0)": "recorded inference",
    }
    users_tests.makepyfile(
        "import pytest\n"
        f"@pytest.mark.parametrize('assertion', {list(messages)})\n"
        "def test_run(replay, assertion):\n"
        "    run = replay('run', model='cued_reach')\n"
        "    eval(f'run.{assertion}')\n"
    )
    result = users_tests.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=len(messages))
    result.stdout.fnmatch_lines([f"E *{message}*" for message in messages.values()])


def test_a_changed_bag_fails_a_users_test(pytester: pytest.Pytester, lines: list[Line]) -> None:
    write_bag(pytester.path / "run", changed(lines, "/action_chunk", 2, one_bit_off))
    pytester.makeconftest('pytest_plugins = ["flashrt_ros.pytest_plugin"]')
    pytester.makepyfile(
        """
        from toy_policy import ToyPolicy

        def test_run(replay):
            replay("run", model=ToyPolicy()).assert_identical()
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*AssertionError*"])
