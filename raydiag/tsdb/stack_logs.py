"""What Prometheus and the exporters wrote about themselves in a job's directory.

A job's directory keeps the start-up and watchdog lines of each exporter; what plugins said went to
a file on the node. So that a line is not there proves nothing.

Source: prometheus/prometheus.log, metrics_exporter/<host>.log
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from raydiag.model import Status, Unread

_MOST_BYTES = 8 << 20  # of one log, from its end
_MOST_LINE = 4096
_KEPT = 64  # lines of one kind and file, the first ones
_MOST_FILES = 4096

_KINDS = (
    ("gave-up", re.compile(r"Watchdog: too many restarts")),
    ("restart", re.compile(r"Watchdog: exited with code (?P<code>\d+), restart #(?P<number>\d+)")),
    ("plugin-timeout", re.compile(r"(?P<plugin>\w+_plugin)\S* timed out after")),
    ("plugin-skipped", re.compile(r"(?P<plugin>\w+_plugin)\S* exited 99\b")),
    ("port-taken", re.compile(r"address already in use", re.IGNORECASE)),
    ("no-server", re.compile(r"Download failed|Unable to start web listener", re.IGNORECASE)),
    ("too-old", re.compile(r"samples that are too old|out of bounds", re.IGNORECASE)),
    (
        "scrape-failed",
        re.compile(r"context deadline exceeded|connection refused|no route to host", re.IGNORECASE),
    ),
    ("damaged", re.compile(r"corrupt|unexpected checksum|panic:", re.IGNORECASE)),
)
_TARGET = re.compile(
    r"https?://(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):\d+|target=(?!http)(?P<other>[\w.-]+)"
)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)")


@dataclass(frozen=True)
class StackLine:
    """One line that means something."""

    kind: str  # gave-up, restart, plugin-timeout, plugin-skipped, port-taken, no-server, ...
    file: str
    line: int
    text: str
    host: str = ""  # whose exporter, or which target could not be scraped
    time: Optional[float] = None
    code: Optional[int] = None  # of the process that ended
    number: Optional[int] = None  # of restarts so far
    plugin: str = ""


@dataclass(frozen=True)
class StackLogs:
    """All of them together."""

    lines: tuple[StackLine, ...] = ()
    exporters: tuple[str, ...] = ()  # hosts that have an exporter's log
    server_log: bool = False  # there is a prometheus.log
    unread: tuple[Unread, ...] = field(default=())

    def of(self, kind: str, host: Optional[str] = None) -> list[StackLine]:
        return [one for one in self.lines if one.kind == kind and host in (None, one.host)]


def read(job_dir: Path) -> StackLogs:
    """Never raises: what cannot be read is in `unread`."""
    server = job_dir / "prometheus" / "prometheus.log"
    folder = job_dir / "metrics_exporter"
    unread: list[Unread] = []
    try:
        exporters = sorted(one for one in folder.iterdir() if one.suffix == ".log")[:_MOST_FILES]
    except FileNotFoundError:
        exporters = []
    except OSError as error:
        exporters = []
        unread.append(_unread(folder, error))
    files = [(server, "")] if server.is_file() else []
    files += [(one, one.stem.split(".")[0]) for one in exporters]
    lines: list[StackLine] = []
    for path, host in files:
        try:
            lines += _lines(path, host)
        except OSError as error:
            unread.append(_unread(path, error))
    hosts = tuple(host for _, host in files if host)
    return StackLogs(tuple(lines), hosts, server.is_file(), tuple(unread))


def _unread(path: Path, error: OSError) -> Unread:
    denied = isinstance(error, PermissionError)
    return Unread(str(path), Status.DENIED if denied else Status.ERROR, error.strerror or "?")


def _lines(path: Path, host: str) -> Iterator[StackLine]:
    kept: dict[str, int] = {}
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MOST_BYTES:
            file.seek(size - _MOST_BYTES)
            file.readline()
        for number, raw in enumerate(file, 1):
            found = _read_line(raw[:_MOST_LINE].decode("utf-8", "replace").rstrip(), host)
            if found is None:
                continue
            kind, fields = found
            kept[kind] = kept.get(kind, 0) + 1
            # The newest restart has the number of all of them.
            if kept[kind] <= _KEPT or kind == "restart":
                yield StackLine(kind=kind, file=str(path), line=number, **fields)


def _read_line(text: str, host: str) -> Optional[tuple[str, dict[str, Any]]]:
    for kind, pattern in _KINDS:
        match = pattern.search(text)
        if match is None:
            continue
        groups = match.groupdict()
        fields: dict[str, Any] = {"text": text, "host": host, "time": _time(text)}
        for name in ("code", "number"):
            if groups.get(name):
                fields[name] = int(groups[name])
        if groups.get("plugin"):
            fields["plugin"] = groups["plugin"]
        target = _TARGET.search(text)
        if kind == "scrape-failed" and target is not None:
            name = target["host"] or target["other"] or ""
            fields["host"] = name if name.replace(".", "").isdigit() else name.split(".")[0]
        return kind, fields
    return None


def _time(text: str) -> Optional[float]:
    match = _TIME.search(text)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
