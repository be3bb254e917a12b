"""A report on a terminal goes through a pager, as git's output does.

The pager is RAYDIAG_PAGER, else PAGER, else less; an empty one or `cat` is none. What fits the
screen just stays there (LESS=FRX, unless LESS is set). It reads a file and not a pipe, so that the
command cleans up while its report is read.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_running: list[subprocess.Popen[bytes]] = []


def command() -> str | None:
    """The pager for stdout; None where there is no terminal, no user or no such program."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None
    import shutil

    pager = os.environ.get("RAYDIAG_PAGER", os.environ.get("PAGER", "less")).strip()
    if pager in ("", "cat") or shutil.which(pager.split()[0]) is None:
        return None
    return pager


def page(pager: str, text: str) -> None:
    """Start the pager over the text; `wait` waits for its end."""
    import subprocess
    import tempfile

    # Ctrl-C is the pager's now; cleaning up goes on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with tempfile.TemporaryFile() as file:
        file.write(text.encode("utf-8", "replace"))
        file.seek(0)
        environment = {"LESS": "FRX", "LV": "-c", **os.environ}
        _running.append(subprocess.Popen(["sh", "-c", pager], stdin=file, env=environment))


def wait() -> None:
    """Until whoever reads has seen enough."""
    while _running:
        with contextlib.suppress(KeyboardInterrupt):  # the terminal went away: so does the pager
            _running.pop().wait()
