"""One look at the exporter of this node: its page, its processes, its watchdog's log.

Everything that may hang is done in a guarded reader; one that gives no answer is abandoned.

Source: http://127.0.0.1:<port>/metrics; /proc/<pid>/{stat,cmdline,fd}; the watchdog's log, which is
what the exporter's output goes to. Sample of it:

    [2026-02-12T19:58:10Z] [Metrics Exporter] Watchdog: exited with code 137, restart #3
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

from raydiag import exposition
from raydiag.errors import ParseError, ReadError
from raydiag.exporter import listener
from raydiag.exporter.findings import Watched
from raydiag.exporter.metrics import OWN_PREFIX
from raydiag.exporter.readers import ask_one
from raydiag.exposition import ExpositionLine
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes import SOCKETS
from raydiag.probes import exporter as probe
from raydiag.records import decode

_LOOK_S = 8.0
_LOG_BYTES, _MOST_LINES = 1 << 20, 5
_RESTART = re.compile(r"\[Metrics Exporter\] Watchdog: exited with code (\d+), restart #(\d+)")
_GIVES_UP = re.compile(r"\[Metrics Exporter\] Watchdog: too many restarts")


@dataclass(frozen=True)
class Look:
    """What one look saw."""

    record: Optional[probe.Exporter]  # None: nothing listens, and nothing is left
    unread: Sequence[Unread]
    lines: Sequence[ExpositionLine]  # of hw_, tb_ and other metrics, not of raydiag's own
    own_lines: Sequence[ExpositionLine]
    malformed: str  # why Prometheus would refuse the page; "" when it would not
    processes: Sequence[probe.Process]
    watched: Watched
    time: float


def look(port: int, root: str, logs: Sequence[str]) -> Look:
    """In a reader of its own; one that gives no answer is abandoned, and that is what was seen."""
    request = {"port": port, "root": root, "logs": list(logs)}
    answer, _, reason = ask_one(_serve, SOCKETS, request, f"status {os.getpid()}", _LOOK_S)
    return _decoded(answer or {"unread": [["exporter", Status.TIMEOUT.value, reason]]})


def _decoded(answer: Mapping[str, Any]) -> Look:
    record, unread = answer.get("record"), []
    for source, status, reason in answer.get("unread", ()):
        unread.append(Unread(source, Status(status), reason))
    lines: list[ExpositionLine] = []
    own_lines: list[ExpositionLine] = []
    for name, labels, value, time_ms in answer.get("lines", ()):
        part = own_lines if name.startswith(OWN_PREFIX) else lines
        part.append(ExpositionLine(name, tuple(map(tuple, labels)), value, time_ms))
    processes = [probe.Process(**fields) for fields in answer.get("processes", ())]
    return Look(
        decode(probe.Exporter, record) if record else None,
        *(unread, lines, own_lines, answer.get("malformed", ""), processes),
        *(Watched(**answer.get("watched", {})), time.time()),
    )


def _serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the reader: one look."""
    host, port = Host(request["root"]), request["port"]
    record, unread = None, []
    try:
        for item in probe.exporter(host, port=port):
            if isinstance(item, Unread):
                unread.append([item.source, item.status.value, item.reason])
            else:
                record = asdict(item)
    except ReadError as error:
        if error.status is not Status.NO_DATA:
            unread.append(["exporter", error.status.value, str(error)])
    lines, malformed = [], ""
    if record is not None and record["answer"] == "ok":
        _, _, body = probe.fetch(port, 2.0)
        try:
            lines = exposition.parse(body, own=True).lines
        except ParseError as error:
            malformed = str(error)
    processes = _of_port(host, port, list(probe.processes(host)))
    log_paths = list(request["logs"])
    for process in processes:
        log_paths += _outputs(host, process)
    watched, blind = _watchdog(host, log_paths)
    answer: dict[str, Any] = {"record": record, "unread": [*unread, *blind]}
    answer["malformed"], answer["watched"] = malformed, asdict(watched)
    answer["lines"] = [[line.name, line.labels, line.value, line.time_ms] for line in lines]
    answer["processes"] = [asdict(process) for process in processes]
    yield {"answer": answer}


def _of_port(host: Host, port: int, processes: Sequence[probe.Process]) -> Sequence[probe.Process]:
    """Those of the exporter that has the port; all of them where it cannot be told whose it is.

    A machine may run several, on ports of their own: neither's restarts are the other's.
    """
    by_pid = {process.pid: process for process in processes}
    tops = {_top(pid, by_pid) for pid in listener.holders(host, port, by_pid)}
    if not tops or any(by_pid[top].role == "server" for top in tops):  # whose it was is not known
        return processes
    return [process for process in processes if _top(process.pid, by_pid) in tops]


def _top(pid: int, by_pid: Mapping[int, probe.Process]) -> int:
    """The highest of its ancestors that is known as well."""
    while by_pid[pid].parent in by_pid:
        pid = by_pid[pid].parent
    return pid


def _outputs(host: Host, process: probe.Process) -> Iterator[str]:
    """Files that the exporter's loop prints to: its watchdog does too."""
    if process.role not in ("loop", "raydiag"):
        return
    for fd in ("1", "2"):
        with contextlib.suppress(ReadError, OSError):
            path = host.readlink(f"/proc/{process.pid}/fd/{fd}")
            if stat.S_ISREG(os.stat(host.path(path)).st_mode):
                yield path


def _watchdog(host: Host, paths: Sequence[str]) -> tuple[Watched, list[list[str]]]:
    """What the watchdog has written to these logs, and which could not be read."""
    restarts: list[list[float]] = []
    watchdog_lines, gave_up, blind, log = [], False, [], ""
    for path in dict.fromkeys(paths):
        try:
            fd = host.open(path)
        except ReadError as error:
            blind.append([path, error.status.value, str(error)])
            continue
        with os.fdopen(fd, "rb") as file:
            file.seek(max(0, os.fstat(fd).st_size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode("utf-8", "replace")
        for line in text.split("\n"):
            restart = _RESTART.search(line)
            if restart:
                when = next(probe.time_of(line), 0.0)
                restarts.append([when, int(restart[1]), int(restart[2])])
            if restart or _GIVES_UP.search(line):
                gave_up, log = not restart, path  # who starts it again after that has not given up
                watchdog_lines.append(line[:300])
        log = log or path
    return Watched(sorted(restarts), gave_up, log, watchdog_lines[-_MOST_LINES:]), blind
