# SPDX-License-Identifier: Apache-2.0
"""Benchmarks' JSON files as Markdown sections and plots, beside text written by hand.

A section lies between two comments, `<!-- flashrt bench NAME -->` and `<!-- end of NAME -->`. What
is between them is replaced; everything else in the document stays as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from .plots import plot
from .report import Measured, read, table


def main(arguments: Sequence[str], program: str) -> int:
    """`flashrt bench report FILE... [--out FILE] [--plots FOLDER]`; 2 for a file it cannot use."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of `--json`")
    parser.add_argument("--out", type=Path, help="Markdown to write sections into (default: print)")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw SVG plots into it")
    options = parser.parse_args(arguments)
    try:
        measured = [read(path) for path in options.files]
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    document = options.out.read_text() if options.out and options.out.exists() else ""
    for one in measured:
        picture = None
        if options.plots is not None:
            picture = options.plots / f"bench_{one.benchmark}.svg"
            plot(one, picture)
            if options.out is not None:
                picture = Path(os.path.relpath(picture, options.out.parent))
        document = with_section(document, one.benchmark, section(one, picture))
    if options.out is None:
        sys.stdout.write(document)
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(document)
    return 0


def section(measured: Measured, picture: Path | None = None) -> str:
    """Machine, versions, table and plot of one file."""
    where = measured.machine
    lines = [
        f"Measured {measured.created}: {where['processor']}, {where['cores']} cores, "
        f"{where['threads']} threads, {where['memory_gib']} GiB, {where['system']} "
        f"{where['architecture']}"
        + (f", {where['gpu']}" if "gpu" in where else "; no GPU")
        + "; "
        + ", ".join(f"{name} {version}" for name, version in measured.versions.items())
        + ".",
        "",
        *[line for note in measured.notes for line in (note, "")],
        table(measured.rows),
    ]
    if picture is not None:
        lines += ["", f"![{measured.benchmark}]({picture.as_posix()})"]
    return "\n".join(lines)


def with_section(document: str, name: str, text: str) -> str:
    """The document with this section put in its place; at the end where it has none yet."""
    begin, end = f"<!-- flashrt bench {name} -->", f"<!-- end of {name} -->"
    block = f"{begin}\n{text}\n{end}"
    found = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if found.search(document):
        return found.sub(lambda _: block, document, count=1)
    gap = "\n" if document and not document.endswith("\n\n") else ""
    return f"{document}{gap}## `flashrt bench {name}`\n\n{block}\n"
