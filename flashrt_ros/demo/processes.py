# SPDX-License-Identifier: Apache-2.0
"""Child processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """In the child: get SIGINT when the parent is gone, killed outright even (prctl(2))."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


class Processes:
    """Starts Python modules as processes, and stops them all at the end of a `with` block.

    Args:
        log_dir: each process writes `<name>.log` there.
    """

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, name: str, module: str, arguments: Sequence[str]) -> None:
        """Start `python -m module arguments`."""
        with (self._log_dir / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                # The machine's cores are shared by all of them; a pool of threads in each only
                # makes them wait for one another.
                env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
                start_new_session=True,  # Ctrl-C reaches the parent alone, which ends them in order
                preexec_fn=_end_with_parent,
            )

    def check(self) -> None:
        """See that all are alive.

        Raises:
            RuntimeError: one has ended; the message has the end of its log.
        """
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(
                    f"{name} ended with status {process.returncode}:\n{self.log_tail(name)}"
                )

    def log_tail(self, name: str, lines: int = 20) -> str:
        """The last lines that a process wrote."""
        text = (self._log_dir / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, patience: float = 10.0) -> dict[str, int]:
        """End them as Ctrl-C would; kill those that don't follow. Returns exit statuses."""
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        statuses = {}
        for name, process in self._running.items():
            try:
                statuses[name] = process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                statuses[name] = process.wait()
        self._running.clear()
        return statuses
