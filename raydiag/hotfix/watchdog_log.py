"""The exporter's watchdog as its log tells of it: how often it restarted, and what came after.

Source: the watchdog's own lines, `[2026-02-12T19:58:10Z] [Metrics Exporter] Watchdog: exited with
code 137, restart #3`, in the file that the exporter's output goes to
"""

from __future__ import annotations

import calendar
import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from raydiag.hotfix.log_tail import TAIL_BYTES, tail
from raydiag.hotfix.messages import Restarted, Watchdog

MOST_RESTARTS = 50
CLOCK_S = 2.0  # the lines have whole seconds
_MOST_BLOCKS = 16  # of a log that are read, from its end
_LONGEST_LINE_BYTES = 1024
_KILLED = 137  # exit status that the watchdog sees of a process ended by SIGKILL
_NO_FILE = "the exporter's output goes to no file: restarts cannot be counted"
_TOO_FAR = "the watchdog's last line is too far back in its log: restarts cannot be counted"
_LINE = re.compile(
    r"^\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)\] \[Metrics Exporter\] Watchdog: (.*)$", re.MULTILINE
)
_RESTART = re.compile(r"exited with code (-?\d+), restart #(\d+)$")


@dataclass(frozen=True)
class RestartLine:
    """One line of the watchdog about a restart."""

    time: float  # Unix s
    code: int  # exit status of the exporter that ended
    number: int  # of the restart, since the watchdog's own start


def watchdog_of(exporter_pid: int) -> tuple[Optional[Watchdog], str]:
    """The watchdog that logs to the exporter's output; or None, and why it cannot be known.

    A watchdog counts from its own start, so the last line's number is what it has used up.
    """
    log, log_bytes = _output_file(exporter_pid)
    if not log:
        return None, _NO_FILE
    text = _text_with_last_line(log, log_bytes)
    if text is None:
        return None, _TOO_FAR
    number, restarted_at = 0, None
    for restart in restarts_in(text):
        number, restarted_at = restart.number, restart.time
    gave_up = any("too many restarts" in message for _, message in _LINE.findall(text)[-1:])
    counts = (number, max(0, MOST_RESTARTS - number), restarted_at)
    return Watchdog(log, log_bytes, *counts, gave_up), ""


def restarts_in(text: str) -> Iterator[RestartLine]:
    """Restart lines of the exporter's watchdog, in order."""
    for stamp, message in _LINE.findall(text):
        restart = _RESTART.match(message)
        if restart:
            with contextlib.suppress(ValueError):
                seconds = calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))
                yield RestartLine(float(seconds), int(restart[1]), int(restart[2]))


def line_of_restart(restarted: Restarted) -> Optional[RestartLine]:
    """The line that our own signal has caused, by number, time and exit status; None: not yet."""
    for line in restarts_in(tail(restarted.log, restarted.log_bytes)):
        is_next = line.number == restarted.restarts + 1
        if is_next and line.time >= restarted.at - CLOCK_S and line.code == _KILLED:
            return line
    return None


def has_found_port_taken(restarted: Restarted) -> bool:
    """Whether the new exporter's server complains: it does so where the exporter's output goes."""
    text = tail(restarted.log, restarted.log_bytes)
    # Before that line it is the complaint of a server that was ended, or ended by itself.
    _, line, after = text.partition(f", restart #{restarted.restarts + 1}\n")
    return bool(line) and "Address already in use" in after


def _output_file(pid: int) -> tuple[str, int]:
    """Path and size of the file that a process's output goes to; "" where there is none."""
    for fd in (1, 2):
        link = f"/proc/{pid}/fd/{fd}"
        with contextlib.suppress(OSError):
            path = os.readlink(link)
            opened, named = os.stat(link), os.stat(path)
            if stat.S_ISREG(opened.st_mode) and os.path.samestat(opened, named):
                return path, opened.st_size
    return "", 0


def _text_with_last_line(log: str, log_bytes: int) -> Optional[str]:
    """The log's text around the watchdog's last line; None when that line is too far back.

    The output of the exporter and of its server goes to the same file.
    """
    begin = log_bytes
    for _ in range(_MOST_BLOCKS):
        begin = max(0, begin - TAIL_BYTES + _LONGEST_LINE_BYTES)  # a line may span two blocks
        text = tail(log, begin)
        if begin == 0 or _LINE.search(text):
            return text
    return None
