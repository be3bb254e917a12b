"""Find raydiag's own exporter, by its pid file and nothing else.

Source: the pid file, `<pid> [<start time in clock ticks since boot>]`; /proc/<pid>/cwd (proc(5))
"""

from __future__ import annotations

import contextlib
import os
from typing import Optional

from raydiag.errors import ParseError
from raydiag.hotfix import found_exporter, process
from raydiag.hotfix.found_exporter import NO_WATCHDOG, FoundExporter
from raydiag.hotfix.messages import NodeRequest, ProcessInfo
from raydiag.hotfix.process import SeenProcess
from raydiag.hotfix.watchdog_log import watchdog_of
from raydiag.untrusted import regular

_PID_FILE_BYTES = 200


_NO_PID_FILE = (
    "no pid file was named: start the exporter with --pid-file FILE (deploy/ writes "
    "/run/raydiag/exporter.pid), and name FILE here with --pid-file"
)


class _NotFound(Exception):
    """The message says why no process is the exporter."""


def find(request: NodeRequest) -> FoundExporter:
    """The process that the pid file means, its directory and its watchdog."""
    try:
        running = _of_pid_file(request.pid_file)
    except _NotFound as error:
        return FoundExporter(doubts=(str(error),))
    exporter = found_exporter.process_info(running, process.arguments(running), "exporter")
    watchdog, doubt = watchdog_of(running.pid)
    doubts = [doubt, NO_WATCHDOG * (not _is_supervised(running))]
    elsewhere = found_exporter.files_doubt(running.pid)
    directory = None if elsewhere else _directory(exporter)
    environment = found_exporter.environment_of(running.pid)
    known = (watchdog, directory, elsewhere, tuple(filter(None, doubts)), environment)
    return FoundExporter(exporter, None, (), *known)


def _of_pid_file(path: Optional[str]) -> SeenProcess:
    """Raises _NotFound when there is any doubt that it is the exporter."""
    if not path:
        raise _NotFound(_NO_PID_FILE)
    try:
        with open(regular(path, os.O_RDONLY), encoding="ascii") as file:
            words = file.read(_PID_FILE_BYTES).split()
            written_at = os.fstat(file.fileno()).st_mtime
        pid = int(words[0])
        running = process.see(pid)
    except (OSError, ValueError, IndexError, ParseError) as error:
        raise _NotFound(f"{path}: names no process: {error}") from None
    if words[1:] and words[1] != str(running.start_ticks):
        raise _NotFound(f"pid {pid}: is another process than {path} means")
    if not words[1:] and found_exporter.started_at(running) > written_at + 1:
        raise _NotFound(f"pid {pid}: is younger than {path}")
    argv = process.arguments(running)
    if not process.is_own_exporter(argv) or not process.program(pid).startswith("python"):
        raise _NotFound(f"pid {pid}: is no exporter of ours: {' '.join(argv)[:100]!r}")
    return running


def _is_supervised(exporter: SeenProcess) -> bool:
    with contextlib.suppress(OSError, ParseError):
        argv = process.arguments(process.see(exporter.parent))
        return process.is_own_exporter(argv) and "--supervise" in argv
    return False


def _directory(exporter: ProcessInfo) -> Optional[str]:
    """The directory of `--plugins`, where there is exactly one."""
    words: list[str] = []
    for word in exporter.argv:
        words += word.split("=", 1)
    named = [value for option, value in zip(words, words[1:]) if option == "--plugins"]
    with contextlib.suppress(OSError):
        if len(named) == 1:
            return os.path.join(os.readlink(f"/proc/{exporter.pid}/cwd"), named[0])
    return None
