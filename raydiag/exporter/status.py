"""Is there an exporter on this node, whose, and do its values live: two looks, some seconds apart.

An exporter that answers may serve the past, so the second look waits until values move, for two
cycles at most. Everything that may hang is done in a guarded reader. What is wrong is judged by the
rules that `raydiag probe` has for all nodes (`rules.exporter`), and by what raydiag's own exporter
says of itself.

Source: http://127.0.0.1:<port>/metrics; /proc/<pid>/{stat,cmdline,fd}; the watchdog's log, which is
what the exporter's output goes to. Sample of it:

    [2026-02-12T19:58:10Z] [Metrics Exporter] Watchdog: exited with code 137, restart #3
"""

from __future__ import annotations

import os
import re
import select
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from raydiag import exposition, sandbox
from raydiag.errors import ParseError, ReadError
from raydiag.explain import diagnosis
from raydiag.exporter import listener
from raydiag.exporter.findings import (
    TWO_CYCLES_S,
    ServedMetrics,
    Watched,
    judge_exporter,
    standstill,
)
from raydiag.exporter.metrics import OWN_PREFIX
from raydiag.exposition import ExpositionLine
from raydiag.host import Host
from raydiag.model import (
    Diagnosis,
    Node,
    NodeReport,
    NodeStatus,
    ProbeResult,
    Snapshot,
    Status,
    Unread,
)
from raydiag.probes import SOCKETS
from raydiag.probes import exporter as probe
from raydiag.records import decode

LONGEST_WAIT_S = 25.0
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


@dataclass(frozen=True)
class ExaminedExporter:
    """The exporter of this node."""

    host: str
    port: int
    kind: str  # "raydiag", "shell", "other", "none"
    answer: str  # "ok", "refused", "timeout", "error", as of the second look
    fresh: Optional[bool]  # values moved between the looks; None: there were none to compare
    moved: int  # series of hw_ metrics whose value moved
    compared: int  # those that both looks saw
    waited_s: float  # between the looks
    first: Look
    now: Look
    served: ServedMetrics
    diagnosis: Diagnosis = field(repr=False)


def examine(
    port: int,
    host: str,
    root: str = "/",
    wait_s: float = LONGEST_WAIT_S,
    logs: Sequence[str] = (),
    again_s: float = 1.0,
) -> ExaminedExporter:
    """Look twice; `again_s` apart, and once more until values move or `wait_s` are over.

    `logs` are further logs of the watchdog; those that the exporter prints to are found.
    """
    first = _look(port, root, logs)
    began = time.monotonic()
    now = first
    while True:
        left_s = began + wait_s - time.monotonic()
        if left_s <= 0 or first.record is None:
            break
        time.sleep(min(again_s, left_s))
        now = _look(port, root, logs)
        if first.record.answer == "ok" and _moved(first, now)[0]:
            break
    moved, compared = _moved(first, now)
    waited_s = time.monotonic() - began
    served = ServedMetrics.of(now.own_lines, first.own_lines)
    kind = _kind(now, served)
    snapshot = _snapshot(host, first, now, waited_s, is_unsure=bool(compared) and not moved)
    findings = list(judge_exporter(snapshot, now.record, served, now.watched, now.processes))
    if not any(finding.failure_class == "ghost-data" for finding in findings):
        findings += standstill(snapshot, first.record, now.record, moved, compared)
    diagnosed = diagnosis.of_findings(findings, diagnosis.coverage(snapshot))
    return ExaminedExporter(
        host=host,
        port=port,
        kind=kind,
        answer=now.record.answer if now.record else "refused",
        fresh=moved > 0 if compared else None,
        moved=moved,
        compared=compared,
        waited_s=waited_s,
        first=first,
        now=now,
        served=served,
        diagnosis=diagnosed,
    )


def _kind(look: Look, served: ServedMetrics) -> str:
    roles = {process.role for process in look.processes}
    if served.is_there or "raydiag" in roles:
        return "raydiag"
    if look.record is None:
        return "none"
    if roles & {"loop", "server"} or look.record.file_age_s is not None:
        return "shell"
    return "none" if look.record.answer == "refused" else "other"


def _moved(first: Look, now: Look) -> tuple[int, int]:
    """Series of hw_ metrics that moved, and how many there are to compare."""
    before = {(line.name, line.labels): line.value for line in first.lines if _is_hardware(line)}
    after = {(line.name, line.labels): line.value for line in now.lines if _is_hardware(line)}
    compared_keys = before.keys() & after.keys()
    return sum(before[key] != after[key] for key in compared_keys), len(compared_keys)


def _is_hardware(line: ExpositionLine) -> bool:
    return line.name.startswith("hw_")


def _snapshot(host: str, first: Look, now: Look, interval_s: float, is_unsure: bool) -> Snapshot:
    """The looks as the two samples of a probe's run, which is what rules read."""
    status = Status.OK if now.record else Status.NO_DATA
    unread = list(now.unread)
    if is_unsure and interval_s < TWO_CYCLES_S:
        reason = f"no value moved within {interval_s:.0f} s, which may be less than a cycle"
        unread.append(Unread("freshness of the values", Status.TIMEOUT, reason))
    result = ProbeResult(
        "exporter",
        status,
        records=(first.record,) if first.record else (),
        later=(now.record,) if now.record and now is not first else (),
        interval_s=interval_s,
        unread=tuple(unread),
    )
    node = Node("", host, "127.0.0.1")
    report = NodeReport(node, NodeStatus.OK, probes={"exporter": result}, collected_at=now.time)
    return Snapshot(nodes=(report,), time=now.time)


# ---- one look


def _look(port: int, root: str, logs: Sequence[str]) -> Look:
    """In a reader of its own; one that gives no answer is abandoned, and that is what was seen."""
    reader = sandbox.Reader(_serve, SOCKETS)
    deadline = time.monotonic() + _LOOK_S
    answer: dict[str, Any] = {}
    failed = f"no answer within {_LOOK_S:g} s"
    try:
        name = sandbox.tag(f"status {os.getpid()}")
        reader.ask({"port": port, "root": root, "logs": list(logs)}, name, None)
        while not answer and (left_s := deadline - time.monotonic()) > 0:
            select.select([reader], [], [], left_s)
            for message in reader.receive():
                answer = message.get("answer", answer)
    except (EOFError, OSError) as error:
        failed = str(error)
    finally:
        reader.abandon()
    if not answer:
        answer = {"unread": [["exporter", Status.TIMEOUT.value, failed]]}
    return _decoded(answer)


def _decoded(answer: Mapping[str, Any]) -> Look:
    record = answer.get("record")
    lines = [
        ExpositionLine(name, tuple((key, value) for key, value in labels), value, time_ms)
        for name, labels, value, time_ms in answer.get("lines", ())
    ]
    return Look(
        record=decode(probe.Exporter, record) if record else None,
        unread=[
            Unread(source, Status(s), reason) for source, s, reason in answer.get("unread", ())
        ],
        lines=[line for line in lines if not line.name.startswith(OWN_PREFIX)],
        own_lines=[line for line in lines if line.name.startswith(OWN_PREFIX)],
        malformed=answer.get("malformed", ""),
        processes=[probe.Process(**fields) for fields in answer.get("processes", ())],
        watched=Watched(**answer.get("watched", {})),
        time=time.time(),
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
    log_paths = [path for process in processes for path in _outputs(host, process)]
    watched, blind = _watchdog(host, [*request["logs"], *log_paths])
    yield {
        "answer": {
            "record": record,
            "unread": [*unread, *blind],
            "lines": [[line.name, line.labels, line.value, line.time_ms] for line in lines],
            "malformed": malformed,
            "processes": [asdict(process) for process in processes],
            "watched": asdict(watched),
        }
    }


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
        try:
            path = host.readlink(f"/proc/{process.pid}/fd/{fd}")
            if stat.S_ISREG(os.stat(host.path(path)).st_mode):
                yield path
        except (ReadError, OSError):
            continue


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
