# SPDX-License-Identifier: Apache-2.0
"""`flashrt capsule …`: work on a directory of capsules without a model or a session."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .audit import audit
from .buffers import Kind
from .difference import compared
from .directory import BadFile, CapsuleDirectory, StoredCapsule
from .errors import InvalidArgument, RuntimeFault, UnknownCapsule
from .layout import Geometry

_COLUMNS = (
    "id",
    "name",
    "session",
    "boundary",
    "step",
    "rows",
    "stamp",
    "fixed",
    "rows bytes",
    "tags",
)
OK, FOUND, REFUSED = 0, 1, 2  # exit codes: fine; damage or a difference was found; no answer


def main(arguments: Sequence[str], program: str = "flashrt capsule") -> int:
    """Run one subcommand; returns its exit code."""
    options = _parser(program).parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except RuntimeFault as fault:
        sys.stderr.write(f"{program}: {fault.code.name}: {fault}\n")
        return REFUSED


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Exit code 0: fine, 1: damage or a difference was found, 2: refused.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], summary: str) -> Any:
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=run)
        return command

    directory = {"type": Path, "help": "directory of capsules"}
    capsule = {"help": "id, start of an id, or name"}
    add("ls", _ls, "list capsules, oldest first").add_argument("directory", **directory)
    show = add("show", _show, "everything about a capsule but its tensors")
    show.add_argument("directory", **directory)
    show.add_argument("capsule", **capsule)
    diff = add("diff", _diff, "which buffers of two capsules differ, and by how much")
    diff.add_argument("directory", **directory)
    diff.add_argument("a", **capsule)
    diff.add_argument("b", **capsule)
    verify = add("verify", _verify, "read every byte and compare it with its checksum")
    verify.add_argument("directory", **directory)
    verify.add_argument("capsule", nargs="*", help="all when none is named")
    remove = add("rm", _rm, "remove capsules, and rows that no other capsule has")
    remove.add_argument("directory", **directory)
    remove.add_argument("capsule", nargs="+", **capsule)
    add("gc", _gc, "remove rows that no capsule has, and what killed writers left").add_argument(
        "directory", **directory
    )
    check = add("audit", _audit, "is the closed set of buffers of a program complete?")
    check.add_argument("program", metavar="module:factory", help="makes the program, see Program")
    check.add_argument("--steps", type=int, default=8, help="steps to continue (default 8)")
    return parser


# -- subcommands


def _ls(options: argparse.Namespace) -> int:
    good, bad = _directory(options.directory).entries()
    if options.json:
        _print_json({"capsules": [_summary(stored) for stored in good], "refused": _refused(bad)})
    else:
        rows = [
            [
                stored.meta.id,
                stored.meta.name or "-",
                stored.meta.session,
                str(stored.meta.record.number),
                str(stored.meta.record.step),
                ",".join(str(rows) for _, rows in stored.meta.record.rows) or "-",
                _stamp(stored.meta.record.stamp_ns),
                _size(stored.header.nbytes),
                _size(stored.rows_nbytes),
                ",".join(stored.meta.tags) or "-",
            ]
            for stored in good
        ]
        _table(_COLUMNS, rows)
        _print_refused(bad)
    return FOUND if bad else OK


def _show(options: argparse.Namespace) -> int:
    stored = _find(_directory(options.directory), options.capsule)
    if options.json:
        _print_json(_summary(stored) | {"table": [spec.line() for spec in stored.table]})
        return OK
    for key, value in _summary(stored).items():
        sys.stdout.write(f"{key}: {json.dumps(value) if isinstance(value, dict) else value}\n")
    sys.stdout.write("buffers:\n")
    for spec in stored.table:
        sys.stdout.write(f"  {spec.line()}\n")
    return OK


def _diff(options: argparse.Namespace) -> int:
    directory = _directory(options.directory)
    a, b = _find(directory, options.a), _find(directory, options.b)
    if a.table != b.table:
        raise InvalidArgument(f"capsules {a.meta.id} and {b.meta.id} have different buffer tables")
    found = compared(Geometry.of(a.table), *(_tensors(directory, side) for side in (a, b)))
    if options.json:
        _print_json([asdict(diff) for diff in found])
    else:
        rows = [
            [
                diff.name,
                diff.role,
                _size(diff.nbytes),
                f"{diff.largest:.6g}",
                f"{diff.rows[0]} / {diff.rows[1]}" if diff.rows[0] >= 0 else "-",
            ]
            for diff in found
        ]
        _table(["buffer", "role", "bytes", "largest difference", "rows a / b"], rows)
    return FOUND if found else OK


def _verify(options: argparse.Namespace) -> int:
    directory = _directory(options.directory)
    good, bad = directory.entries()
    if options.capsule:
        good, bad = [_find(directory, name) for name in options.capsule], []
    sound = []
    for stored in good:
        try:
            directory.verify(stored)
            sound.append(stored.meta.id)
        except RuntimeFault as fault:
            bad.append(BadFile(stored.header.path, str(fault)))
    if options.json:
        _print_json({"verified": sound, "refused": _refused(bad)})
    else:
        sys.stdout.write(f"{len(sound)} verified, {len(bad)} refused\n")
        _print_refused(bad)
    return FOUND if bad else OK


def _rm(options: argparse.Namespace) -> int:
    directory = _directory(options.directory)
    chosen = [_find(directory, name) for name in options.capsule]
    freed = sum(directory.remove(stored.meta.id) for stored in chosen)
    if options.json:
        _print_json({"removed": [stored.meta.id for stored in chosen], "bytes_freed": freed})
    else:
        sys.stdout.write(f"{len(chosen)} removed, {_size(freed)} freed\n")
    return OK


def _gc(options: argparse.Namespace) -> int:
    report = _directory(options.directory).gc()
    if options.json:
        _print_json(asdict(report))
    else:
        sys.stdout.write(
            f"{report.pieces} pieces of rows and {report.temporaries} temporary files removed, "
            f"{_size(report.bytes_freed)} freed\n"
        )
    return OK


def _audit(options: argparse.Namespace) -> int:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # an adapter in the current folder, not installed
    report = audit(options.program, steps=options.steps)
    if options.json:
        _print_json(asdict(report) | {"ok": report.ok})
        return OK if report.ok else FOUND
    found = {finding.trial: finding for finding in report.findings}
    for trial in report.trials:
        if trial in found:
            where = f"differs first in {found[trial].buffer}, step {found[trial].step}"
        else:
            where = f"{report.steps} steps, every buffer bit-identical"
        sys.stdout.write(f"{trial}: {where}\n")
    for leak in report.leaks:
        sys.stdout.write(f"changed outside of the arena: {leak}\n")
    sys.stdout.write("closed\n" if report.ok else "NOT CLOSED\n")
    return OK if report.ok else FOUND


# -- help


def _directory(path: Path) -> CapsuleDirectory:
    if not (path / "capsules").is_dir():
        raise InvalidArgument(f"{path} is no directory of capsules (it has no 'capsules' in it)")
    return CapsuleDirectory(path)


def _find(directory: CapsuleDirectory, name: str) -> StoredCapsule:
    good, _ = directory.entries()
    named = [stored for stored in good if stored.meta.name == name]
    if named:
        return named[-1]  # of two, one is being replaced: the younger
    started = [stored for stored in good if len(name) > 3 and stored.meta.id.startswith(name)]
    if len(started) != 1:
        raise UnknownCapsule(
            f"{name!r} is the name or start of the id of {len(started)} capsules in "
            f"{directory.path}, expected one; see flashrt capsule ls"
        )
    return started[0]


def _tensors(directory: CapsuleDirectory, stored: StoredCapsule) -> dict[str, torch.Tensor]:
    parts: dict[str, list[bytearray]] = {spec.name: [] for spec in stored.table}
    for spec, data in directory.fixed(stored):
        parts[spec.name].append(data)
    for piece in stored.pieces:
        for spec, data in directory.rows(stored, piece):
            parts[spec.name].append(data)
    tensors = {}
    for spec in stored.table:
        data = bytearray().join(parts[spec.name])
        flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0).byte()
        append = spec.kind is Kind.APPEND
        tensors[spec.name] = flat.view(-1, spec.row_nbytes) if append else flat
    return tensors


def _summary(stored: StoredCapsule) -> dict[str, Any]:
    record = stored.meta.record
    return {
        "id": stored.meta.id,
        "name": stored.meta.name,
        "session": stored.meta.session,
        "parent": stored.meta.parent,
        "boundary": record.number,
        "step": record.step,
        "stamp_ns": record.stamp_ns,
        "rows": dict(record.rows),
        "inputs_digest": record.inputs_digest,
        "seed": stored.meta.seed,
        "tags": list(stored.meta.tags),
        "fixed_bytes": stored.header.nbytes,
        "rows_bytes": stored.rows_nbytes,
        "pieces": [piece.id for piece in stored.pieces],
        "fingerprint": asdict(stored.meta.fingerprint),
        "state": {item.name: item.value() for item in stored.meta.state},
    }


def _refused(bad: Sequence[BadFile]) -> list[dict[str, str]]:
    return [{"file": str(file.path), "reason": file.reason} for file in bad]


def _print_refused(bad: Sequence[BadFile]) -> None:
    for file in bad:
        sys.stdout.write(f"refused: {file.reason}\n")


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


def _size(nbytes: int) -> str:
    size, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _stamp(stamp_ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stamp_ns // 10**9))
