# SPDX-License-Identifier: Apache-2.0
"""The `flashrt` command: one subcommand a layer.

A subcommand is a module with `main(arguments, program) -> exit code`; it is imported only when it
is called, so that `flashrt capsule ls` needs no transformers and `flashrt --help` no torch.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from . import __version__


@dataclass(frozen=True)
class Command:
    """A subcommand: where its `main` is, and its line in the help."""

    module: str
    summary: str


COMMANDS = {
    "capsule": Command("flashrt_ros.runtime.cli", "list, check, compare and audit capsules"),
    "generate": Command("flashrt_ros.models.language.command", "a text from a language model"),
    "record": Command("flashrt_ros.replay.recording", "a bag that can be replayed bit for bit"),
    "replay": Command("flashrt_ros.replay.command", "bags in, the same actions out"),
    "bench": Command("flashrt_ros.bench.cli", "measure this machine"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. Returns its exit code; 2 for a call that makes no sense."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    if not given or given[0] not in COMMANDS:
        parser.parse_args(given or ["--help"])  # prints help or says what was wrong, and exits
    name, rest = given[0], given[1:]
    command = COMMANDS[name]
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"flashrt {name}: needs the Python module {error.name!r}, which is not installed here\n"
        )
        return 2
    try:
        code: int = module.main(rest, f"flashrt {name}")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="flashrt",
        description="Execution-state capsules for robot policies and language models.",
        epilog="commands:\n" + "\n".join(lines) + "\n\nflashrt COMMAND --help says more",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"flashrt {__version__}")
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    return parser


if __name__ == "__main__":
    sys.exit(main())
