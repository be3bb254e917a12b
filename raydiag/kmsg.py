"""`raydiag kmsg`: kernel log text from files -> events and findings, without a cluster.

One file is one log; in a central syslog each host has its own. Memory does not grow with a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional, Union

from raydiag import catalog
from raydiag.errors import ReadError
from raydiag.explain.diagnosis import of_findings
from raydiag.host import Host
from raydiag.kernel_text import LogLine, log_lines
from raydiag.model import Coverage, Diagnosis, Finding, HostUnread, Severity, Unread, Window
from raydiag.probes.kernel_log import KernelLine, kernel_log
from raydiag.rules.kernel import findings_of
from raydiag.rules.kernel_events import Grouping, KernelEventSeen
from raydiag.rules.victims import RayProcesses

THIS_MACHINE = "/dev/kmsg"
_HOSTS = 1024  # in one file; what more there are count as one
_NO_RAY = RayProcesses({}, ())


@dataclass(frozen=True)
class LoggedEvent:
    """One event as the command tells it."""

    event_class: str
    severity: Severity
    file: str
    line: int  # of the first line, from 1; of /dev/kmsg the record's number
    count: int
    time: Optional[float]  # Unix seconds of the first; None where the log has no date
    last_time: Optional[float]
    since_boot_s: Optional[float]
    level: Optional[int]  # 0 emergency to 7 debug; None where the form has none
    device: Optional[str]
    pid: Optional[int]
    process: Optional[str]
    code: Optional[int]
    text: str  # the first line, without its header
    host: Optional[str]
    ring: Optional[str]
    block: Optional[str]
    errors: Optional[int]
    userspace: bool
    recovery: bool
    finding: str
    meaning: str  # of the number, else of the class
    next_step: str


@dataclass(frozen=True)
class ExaminedKernelLog:
    """What the files hold."""

    events: Sequence[LoggedEvent]
    diagnosis: Diagnosis
    files: int  # 0: this machine's own log
    unread: Sequence[Unread]
    nothing_read: bool  # no file could be read at all


def examine(paths: Sequence[str], now_s: float) -> ExaminedKernelLog:
    """Events and findings of the files; without any, of this machine's own kernel log.

    `now_s`, Unix seconds, ages what this machine's log holds; files may be of any time.
    """
    logs = [_KernelLogFile(path).read() for path in dict.fromkeys(paths)] or [_this_machine(now_s)]
    events = [event for log in logs for event in log.events]
    unread = [item for log in logs for item in log.unread]
    findings = [finding for log in logs for finding in log.findings]
    times = [t for event in events for t in (event.time, event.last_time) if t is not None]
    window = Window(min(times), max(times)) if times else None
    items = tuple(HostUnread("", item.source, item.status, item.reason) for item in unread)
    diagnosis = of_findings(findings, Coverage(0, 0, (), items, window))
    blind = all(log.unread and not log.lines for log in logs)
    return ExaminedKernelLog(events, diagnosis, len(logs) if paths else 0, unread, blind)


class _KernelLogFile:
    """One file on its way: lines go in, events and findings come out."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines = 0
        self.events: list[LoggedEvent] = []
        self.findings: list[Finding] = []
        self.unread: list[Unread] = []
        self._logs: dict[tuple[str, bool], Grouping] = {}

    def read(self) -> _KernelLogFile:
        return self.take(log_lines(self.path, catalog.kernel_words()), None)

    def take(
        self, items: Iterator[Union[LogLine, Unread]], now_s: Optional[float]
    ) -> _KernelLogFile:
        for item in items:
            if isinstance(item, Unread):
                self.unread.append(item)
                continue
            self.lines += 1
            place = (item.host, item.dated)
            if place not in self._logs and len(self._logs) >= _HOSTS:
                place = ("", item.dated)
            self._logs.setdefault(place, Grouping()).offer(item, item.since_boot_s)
        for (host, dated), grouping in self._logs.items():
            seen = grouping.events()
            self.events += [one for event in seen for one in _told(event, self.path)]
            self.findings += findings_of(
                seen, host or None, now_s, None, _NO_RAY, _where(self.path), dated
            )
        self.events.sort(key=lambda event: event.line)
        return self


def _this_machine(now_s: float) -> _KernelLogFile:
    return _KernelLogFile(THIS_MACHINE).take(_own_lines(), now_s)


def _own_lines() -> Iterator[Union[LogLine, Unread]]:
    try:
        for item in kernel_log(Host(), words=catalog.kernel_words()):
            if isinstance(item, KernelLine):
                yield LogLine(**vars(item), number=item.seq, dated=True, since_boot_s=None, host="")
            else:
                yield item
    except ReadError as error:
        yield Unread(THIS_MACHINE, error.status, str(error))


def _where(path: str) -> Callable[[Any], str]:
    return lambda line: f"{path}:{line.number}"


def _told(event: KernelEventSeen, path: str) -> Iterator[LoggedEvent]:
    """The event, and once more for each other class that its lines are as much about."""
    first = event.lines[0]
    assert isinstance(first, LogLine)
    entry = catalog.failures()[event.finding]
    meaning, next_step = entry.title, entry.next_steps[0]
    if event.meaning:
        meaning = f"{event.meaning.name}: {event.meaning.title}"
        next_step = event.meaning.next_step
    told = LoggedEvent(
        event_class=event.event,
        severity=event.severity,
        file=path,
        line=first.number,
        count=event.count,
        time=_finite(event.first_s) if first.dated else None,
        last_time=_finite(event.last_s) if first.dated else None,
        since_boot_s=first.since_boot_s,
        level=first.level if first.level >= 0 else None,
        device=event.device,
        pid=event.pid,
        process=event.process,
        code=event.code,
        text=first.text,
        host=first.host or None,
        ring=event.ring,
        block=event.block,
        errors=event.errors,
        userspace=event.userspace,
        recovery=bool(event.recovers),
        finding=event.finding,
        meaning=meaning,
        next_step=next_step,
    )
    yield told
    for other in event.also:
        yield replace(told, event_class=other)


def _finite(time_s: float) -> Optional[float]:
    return time_s if math.isfinite(time_s) else None
