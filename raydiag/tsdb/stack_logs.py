"""What Prometheus and the exporters wrote about themselves in a job's directory.

A job's directory keeps the start-up and watchdog lines of each exporter; what plugins said went to
a file on the node. So that a line is not there proves nothing.

Source: prometheus/prometheus.log, metrics_exporter/<host>.log
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from typing import Optional

import yaml

from raydiag.model import Unread
from raydiag.tsdb.unread import unread_file
from raydiag.untrusted import regular

_MOST_BYTES = 8 << 20  # of one log, from its end
_MOST_LINE = 4096
_FIRST_LINES = 64  # of one kind and file
_MOST_FILES = 4096

_TABLE = resources.files(__package__).joinpath("stack_lines.yaml")
_LINES: Mapping[str, str] = yaml.safe_load(_TABLE.read_text("utf-8"))
_KINDS = {kind: re.compile(pattern) for kind, pattern in _LINES.items()}
_TARGET = re.compile(
    r"https?://(?P<host>[\w.-]{1,253}|\[[0-9a-fA-F:]{1,64}\]):\d"
    r"|target=(?!http)(?P<other>[\w.-]{1,253})"
)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,9})?(?:Z|\+00:00)")


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
    unread: tuple[Unread, ...] = field(default=())

    def of(self, kind: str, host: Optional[str] = None) -> list[StackLine]:
        """The lines of a kind, of all hosts or of one."""
        return [line for line in self.lines if line.kind == kind and host in (None, line.host)]


def read(job_dir: Path) -> StackLogs:
    """Never raises: what cannot be read is in `unread`."""
    unread: list[Unread] = []
    server = job_dir / "prometheus" / "prometheus.log"
    files = {server: ""} if server.is_file() else {}
    folder = job_dir / "metrics_exporter"
    try:
        files.update((path, path.stem.split(".")[0]) for path in _logs_in(folder))
    except FileNotFoundError:
        pass
    except OSError as error:
        unread.append(unread_file(folder, error))
    lines: list[StackLine] = []
    for path, host in files.items():
        try:
            lines += _lines(path, host)
        except OSError as error:
            unread.append(unread_file(path, error))
    return StackLogs(tuple(lines), tuple(unread))


def _logs_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == ".log")[:_MOST_FILES]


def _lines(path: Path, host: str) -> Iterator[StackLine]:
    """The first ones of each kind, and every restart: the newest has the number of all of them."""
    counts: Counter[str] = Counter()
    with open(path, "rb", opener=regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MOST_BYTES:
            file.seek(size - _MOST_BYTES)
            file.readline()
        for number, raw in enumerate(file, 1):
            text = raw[:_MOST_LINE].decode("utf-8", "replace").rstrip()
            line = _read_line(text, host, str(path), number)
            if line is None:
                continue
            counts[line.kind] += 1
            if line.kind == "restart" or counts[line.kind] <= _FIRST_LINES:
                yield line


def _read_line(text: str, host: str, file: str, number: int) -> Optional[StackLine]:
    for kind, pattern in _KINDS.items():
        match = pattern.search(text)
        if match:
            groups = match.groupdict()
            return StackLine(
                kind=kind,
                file=file,
                line=number,
                text=text,
                host=(_target(text) if kind == "scrape-failed" else "") or host,
                time=_time(text),
                code=_number(groups.get("code")),
                number=_number(groups.get("number")),
                plugin=groups.get("plugin", ""),
            )
    return None


def _target(text: str) -> str:
    """Which target could not be scraped, its short name or its address; "" where none is named."""
    target = _TARGET.search(text)
    if target is None:
        return ""
    name = target["host"] or target["other"]
    return name if name.replace(".", "").isdigit() else name.split(".")[0]


def _number(digits: Optional[str]) -> Optional[int]:
    return int(digits) if digits else None


def _time(text: str) -> Optional[float]:
    match = _TIME.search(text)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
