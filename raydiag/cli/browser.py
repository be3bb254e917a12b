"""`--open`: a report in the browser of this machine, where it has one."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from pathlib import Path


def temporary_file(command: str) -> str:
    """A place for a report that stays, because the browser reads it after the command has ended."""
    return str(Path(tempfile.mkdtemp(prefix="raydiag-")) / f"{command}.html")


def show(path: str) -> None:
    """Open the report; where that is not possible, say where it is."""
    try:
        opened = has_screen() and webbrowser.open(Path(path).resolve().as_uri())
    except (webbrowser.Error, OSError):
        opened = False
    if not opened and sys.stderr is not None:
        print(f"raydiag: there is no browser here: the report is {path}", file=sys.stderr)


def has_screen() -> bool:
    """Whether a window could be seen; a browser in the terminal would cover what it shows."""
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
