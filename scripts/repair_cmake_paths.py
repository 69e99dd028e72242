# SPDX-License-Identifier: Apache-2.0
"""Make the ROS wheels' CMake files name this environment's folders.

The wheels export CMake targets that carry the include folders of the machine that built them
(``/opt/python/cp311-cp311/...``). A build against them stops there until the paths are this
interpreter's own. Safe to run again: a repaired file holds none of the old paths.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

BUILDER = r"/opt/python/cp3\d+-cp3\d+"


def repair(text: str, include: str, site_packages: str) -> str:
    """Return the CMake text with the builder's two Python folders replaced."""
    text = re.sub(rf"{BUILDER}/include/python3\.\d+", lambda _: include, text)
    return re.sub(rf"{BUILDER}/lib/python3\.\d+/site-packages", lambda _: site_packages, text)


def main() -> None:
    paths = sysconfig.get_paths()
    repaired = 0
    for file in sorted(Path(sys.prefix).glob("share/*/cmake/*.cmake")):
        before = file.read_text()
        after = repair(before, paths["include"], paths["purelib"])
        if after != before:
            file.write_text(after)
            repaired += 1
    print(f"      repaired the Python paths of {repaired} CMake files")


if __name__ == "__main__":
    main()
