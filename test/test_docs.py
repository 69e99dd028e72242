# SPDX-License-Identifier: Apache-2.0
"""What the documentation says of files, names and defaults is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [
    path
    for folder, kind in (
        ("flashrt_ros", "*.py"),
        ("launch", "*.py"),
        ("config", "*"),
        ("docs", "*"),
    )
    for path in (ROOT / folder).rglob(kind)
    if path.suffix in (".py", ".yaml", ".xml", ".md")
]


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_or_heading_that_exists(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in headings(path)):
            dead.append(target)
    assert dead == []


def test_every_page_that_is_named_anywhere_exists() -> None:
    named = {
        (str(path.relative_to(ROOT)), page)
        for path in SOURCES
        for page in re.findall(r"\bdocs/[\w-]+\.md\b", path.read_text())
    }
    assert named
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []


def test_every_private_topic_service_or_action_that_is_named_is_made_somewhere() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "flashrt_ros").rglob("*.py"))
    made = set(re.findall(r'"~/([\w/]+)"', code))
    # rclpy's lifecycle nodes and logger services make these.
    made |= {"transition_event", "get_state", "change_state"}
    named = {
        (page.name, name) for page in PAGES for name in re.findall(r"`~/([\w/]+)`", prose(page))
    }
    assert len(named) > 20
    assert [each for each in sorted(named) if each[1] not in made] == []


def defaults(page: Path) -> Iterator[tuple[str, str]]:
    """Parameter and default of each row of the section 'Parameters'."""
    section = page.read_text().split("\n## Parameters\n")[1].split("\n## ")[0]
    yield from re.findall(r"^\| `(\w+)` \| ([^|]*?) *\|", section, flags=re.MULTILINE)


def test_safety_parameters_have_the_defaults_that_are_documented() -> None:
    pytest.importorskip("flashrt_ros.msg", reason="ROS 2 is not installed")
    from flashrt_ros.ros import policy_parameters, policy_safety

    actual = {each.name: each.default for each in policy_parameters.PARAMETERS}
    documented = dict(defaults(ROOT / "docs" / "safety.md"))
    assert {each.name for each in policy_safety.PARAMETERS} <= documented.keys()
    for name, text in documented.items():
        value = re.sub(r" s$", "", text.strip("`"))
        if isinstance(actual[name], bool):
            assert value == str(actual[name]).lower(), name
        elif isinstance(actual[name], str):
            assert value == actual[name], name
        else:
            assert float(value) == actual[name], name
