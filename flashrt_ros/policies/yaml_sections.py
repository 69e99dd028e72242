# SPDX-License-Identifier: Apache-2.0
"""YAML read with line numbers, every problem collected instead of raised.

A `Section` is one mapping of a file. Asking it for a key gives a checked value, or a default while
the problem is noted; keys that nobody asked for are problems too.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from enum import Enum
from typing import TypeVar

import yaml

from flashrt_ros.policies.contract import Problem

E = TypeVar("E", bound=Enum)


class Report:
    """Collects the problems of one file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []

    def add(self, line: int, text: str) -> None:
        """Note a problem in a line, counted from 1; 0: in the file as a whole."""
        self.problems.append(Problem(self.source, line, text))


def root_section(text: str, report: Report) -> Section | None:
    """The mapping that a YAML document is; None, and a problem noted, if it is none."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 0
        report.add(line, f"not YAML: {error.problem or error.context}")
        return None
    except (yaml.YAMLError, RecursionError) as error:
        report.add(0, f"not YAML: {error}")
        return None
    if not isinstance(node, yaml.MappingNode):
        report.add(0, f"is {_describe(node)}, expected a mapping with version and inputs")
        return None
    return Section(node, "", report)


class Section:
    """A mapping, its path in the file, and the keys that were asked for."""

    def __init__(self, node: yaml.MappingNode, path: str, report: Report) -> None:
        self.path = path
        self.line = _line(node)
        self._report = report
        self._asked: set[str] = set()
        self._nodes: dict[str, yaml.Node] = {}
        self._lines: dict[str, int] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "<no name>"
            if name in self._nodes:
                first = self._lines[name]
                report.add(_line(key), f"{self._at(name)} is there twice, first in line {first}")
                continue
            self._nodes[name], self._lines[name] = value, _line(key)

    def __contains__(self, key: str) -> bool:
        return key in self._nodes

    def line_of(self, key: str) -> int:
        """The line of a key; without it, the section's own."""
        return self._lines.get(key, self.line)

    def complain(self, key: str, what: str) -> None:
        """Note a problem about a key: `what` goes on from its path."""
        self._report.add(self.line_of(key), f"{self._at(key)} {what}")

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty. Without a default the key must be there."""
        node = self._get(key, needed=default is None, expected="a text")
        if node is None:
            return default or ""
        value = _scalar(node)
        if value is None or value == "" or _is_null(node):
            self.complain(key, f"is {_describe(node)}, expected a text")
            return default or ""
        return value

    def number(self, key: str, default: float | None, low: float, high: float) -> float | None:
        """A finite number in a range, its ends included."""
        node = self._get(key)
        if node is None:
            return default
        try:
            value = float(_scalar(node) or "")
        except ValueError:
            value = math.nan
        if not (low <= value <= high):
            self.complain(key, f"is {_describe(node)}, expected a number from {low:g} to {high:g}")
            return default
        return value

    def integer(self, key: str, default: int | None, low: int, high: int) -> int | None:
        """A whole number in a range, its ends included. Without a default it must be there."""
        expected = f"a whole number from {low} to {high}"
        node = self._get(key, needed=default is None, expected=expected)
        if node is None:
            return default
        try:
            value = int(_scalar(node) or "")
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            self.complain(key, f"is {_describe(node)}, expected {expected}")
            return default
        return value

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        node = self._get(key)
        if node is None:
            return default
        value = (_scalar(node) or "").lower()
        if node.tag != "tag:yaml.org,2002:bool":
            self.complain(key, f"is {_describe(node)}, expected true or false")
            return default
        return value in ("true", "yes", "on")

    def choice(self, key: str, options: type[E], default: E) -> E:
        """One of an enum's values."""
        node = self._get(key)
        if node is None:
            return default
        try:
            return options(_scalar(node))
        except ValueError:
            pass
        names = ", ".join(str(option.value) for option in options)
        self.complain(key, f"is {_describe(node)}, expected one of {names}")
        return default

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of different texts; empty without the key."""
        node = self._get(key)
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.complain(key, f"is {_describe(node)}, expected a list of names")
            return ()
        found: list[str] = []
        for item in node.value:
            value = _scalar(item)
            if not value:
                self._report.add(
                    _line(item), f"{self._at(key)} has {_describe(item)}, expected a name"
                )
            elif value in found:
                self._report.add(
                    _line(item), f"{self._at(key)} has '{value}' twice, expected each once"
                )
            else:
                found.append(value)
        return tuple(found)

    def names(self, key: str) -> dict[str, str]:
        """A mapping of texts to different texts; empty without the key."""
        section = self.section(key)
        if section is None:
            return {}
        found = {name: section.text(name) for name in section._nodes}
        for name, value in found.items():
            if list(found.values()).count(value) > 1:
                section.complain(
                    name, f"is '{value}', which another one is too; expected each once"
                )
        return found

    def section(self, key: str) -> Section | None:
        """A mapping; None without the key."""
        node = self._get(key)
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            self.complain(key, f"is {_describe(node)}, expected a mapping")
            return None
        return Section(node, self._at(key), self._report)

    def sections(self, key: str) -> Iterator[tuple[str, Section]]:
        """The mappings in a mapping, with their names."""
        outer = self.section(key)
        if outer is not None:
            for name in outer._nodes:
                inner = outer.section(name)
                if inner is not None:
                    yield name, inner

    def items(self, key: str) -> Iterator[Section]:
        """The mappings in a list."""
        node = self._get(key)
        if node is None:
            return
        if not isinstance(node, yaml.SequenceNode):
            self.complain(key, f"is {_describe(node)}, expected a list")
            return
        for index, item in enumerate(node.value):
            path = f"{self._at(key)}[{index}]"
            if isinstance(item, yaml.MappingNode):
                yield Section(item, path, self._report)
            else:
                self._report.add(_line(item), f"{path} is {_describe(item)}, expected a mapping")

    def finish(self) -> None:
        """Note every key that nobody asked for."""
        for key in self._nodes.keys() - self._asked:
            close = difflib.get_close_matches(key, sorted(self._asked), n=1)
            hint = f"; is {close[0]} meant?" if close else ""
            known = ", ".join(sorted(self._asked))
            self.complain(key, f"is no key here, expected one of {known}{hint}")

    def _get(self, key: str, needed: bool = False, expected: str = "") -> yaml.Node | None:
        self._asked.add(key)
        node = self._nodes.get(key)
        if node is None and needed:
            self._report.add(self.line, f"{self._at(key)} is missing, expected {expected}")
        return node

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _scalar(node: yaml.Node) -> str | None:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _describe(node: yaml.Node | None) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if node is None or _is_null(node):
        return "empty"
    return f"'{node.value}'"
