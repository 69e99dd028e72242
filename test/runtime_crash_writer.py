# SPDX-License-Identifier: Apache-2.0
"""Kills writers of a directory of capsules at random moments. Run by test_runtime_disk.

    python runtime_crash_writer.py DIRECTORY KILLS SEED

Forks one writer after another (a fresh interpreter for each would take minutes), kills each with
SIGKILL, and verifies after each kill that whatever is listed is whole. Prints what it saw.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import replace

import torch

from flashrt_ros.runtime import Arena, BufferSpec, Fingerprint, Kind, Role
from flashrt_ros.runtime.capsule import CapsuleMeta, new_id
from flashrt_ros.runtime.directory import CapsuleDirectory
from flashrt_ros.runtime.lineage import BoundaryRecord

SPECS = [
    BufferSpec("meta.rows", Role.META, torch.int64, ()),
    BufferSpec("state", Role.RECURRENT, torch.float32, (4096,)),
    BufferSpec("key", Role.KV, torch.float32, (256, 64), Kind.APPEND, 0, "meta.rows"),
]


def write_for_ever(directory: CapsuleDirectory, draw: random.Random, progress: int) -> None:
    """Write capsules of lineages that branch, and remove old ones, until killed."""
    arena = Arena(SPECS)
    arena["key"].copy_(torch.arange(256 * 64).view(256, 64))
    while True:
        os.write(progress, b".")
        rows = draw.randrange(1, 256)
        arena["state"].fill_(draw.random())
        if draw.random() < 0.3:
            arena["key"][draw.randrange(256)] = draw.random()
        record = BoundaryRecord(rows, -1, rows, rows, (("meta.rows", rows),), "")
        meta = CapsuleMeta(new_id(), "", "", "s", record, 0, Fingerprint("crash"), ())
        directory.write(
            replace(meta, name=f"n{rows}"),
            arena.geometry,
            arena.fixed,
            [[plane[:, :rows] for plane in arena.groups[0].planes]],
        )
        good, _ = directory.entries()
        while len(good) > 6:
            directory.remove(good.pop(draw.randrange(len(good))).meta.id)


def main(path: str, kills: int, seed: int) -> None:
    torch.set_num_threads(1)  # a forked child must not wait for threads that it does not have
    draw = random.Random(seed)
    directory = CapsuleDirectory(path)
    written = temporaries = 0
    for number in range(kills):
        reading, progress = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write_for_ever(CapsuleDirectory(path), random.Random(seed + number), progress)
            finally:
                os._exit(1)
        # let it finish some capsules, so that a slow machine kills in the middle of one as well
        for _ in range(draw.randrange(1, 4)):
            os.read(reading, 1)
        time.sleep(draw.uniform(0.0, 0.01))
        os.kill(child, signal.SIGKILL)
        os.close(reading)
        os.close(progress)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"writer {number} ended by itself"
        good, bad = directory.entries()
        assert not bad, bad
        for stored in good:
            directory.verify(stored)
        written = max(written, len(good))
        temporaries += directory.gc().temporaries
        for stored in directory.entries()[0]:
            directory.verify(stored)
    print(f"kills={kills} most_listed={written} temporaries={temporaries}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
