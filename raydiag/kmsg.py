"""`raydiag kmsg`: kernel log text from files -> events and findings, without a cluster.

One file is one log; in a central syslog each host has its own. Memory does not grow with a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Optional, Union

from raydiag import catalog
from raydiag.errors import ReadError
from raydiag.explain.diagnosis import of_findings
from raydiag.host import Host
from raydiag.kernel_text import LogLine, log_lines
from raydiag.model import Coverage, Diagnosis, Finding, HostUnread, Severity, Unread, Window
from raydiag.probes.kernel_log import kernel_log
from raydiag.rules.kernel import findings_of
from raydiag.rules.kernel_events import Grouping, KernelEventSeen
from raydiag.rules.victims import RayProcesses

THIS_MACHINE = "/dev/kmsg"
_HOSTS = 1024  # in one file; further ones count as one
_NO_RAY = RayProcesses({}, ())


@dataclass(frozen=True)
class LoggedEvent:
    """One event as the command reports it."""

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
    """Events and findings of the files."""

    events: Sequence[LoggedEvent]
    diagnosis: Diagnosis
    files: int  # 0: this machine's own log
    unread: Sequence[Unread]
    nothing_read: bool  # no file could be read at all


def examine(paths: Sequence[str], now_s: float) -> ExaminedKernelLog:
    """Events and findings of the files; without any, of this machine's own kernel log.

    `now_s`, Unix seconds, ages what this machine's log holds; files may be of any time.
    """
    logs = list(map(_read_file, dict.fromkeys(paths))) or [_this_machine(now_s)]
    events = list(chain.from_iterable(log.events for log in logs))
    unread = list(chain.from_iterable(log.unread for log in logs))
    findings = chain.from_iterable(log.findings for log in logs)
    hosts_unread = tuple(map(HostUnread.without_host, unread))
    coverage = Coverage(0, 0, (), hosts_unread, _window(events))
    nothing_read = all(log.unread and not log.lines for log in logs)
    return ExaminedKernelLog(
        events, of_findings(list(findings), coverage), len(set(paths)), unread, nothing_read
    )


def _window(events: Sequence[LoggedEvent]) -> Optional[Window]:
    """From the first event with a date to the last one."""
    times = [event.time for event in events] + [event.last_time for event in events]
    dates = [time_s for time_s in times if time_s is not None]
    return Window(min(dates), max(dates)) if dates else None


class _KernelLogFile:
    """One kernel log: lines go in, events and findings come out."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines = 0
        self.events: list[LoggedEvent] = []
        self.findings: list[Finding] = []
        self.unread: list[Unread] = []
        self._groupings: dict[tuple[str, bool], Grouping] = {}

    def take(self, lines: Iterator[Union[LogLine, Unread]], now_s: Optional[float]) -> None:
        """Read the log to its end. `now_s`: None when it may be of any time."""
        for line in lines:
            if isinstance(line, Unread):
                self.unread.append(line)
            else:
                self.lines += 1
                self._grouping(line).offer(line, line.since_boot_s)
        for (host, dated), grouping in self._groupings.items():
            self._judge(grouping.events(), host or None, dated, now_s)
        self.events.sort(key=lambda event: event.line)

    def _grouping(self, line: LogLine) -> Grouping:
        """The one for the line's host; hosts beyond the limit share one."""
        key = (line.host, line.dated)
        if key not in self._groupings and len(self._groupings) >= _HOSTS:
            key = ("", line.dated)
        return self._groupings.setdefault(key, Grouping())

    def _judge(
        self,
        events: Sequence[KernelEventSeen],
        host: Optional[str],
        dated: bool,
        now_s: Optional[float],
    ) -> None:
        for event in events:
            self.events += _logged_events(event, self.path)
        source = _line_reference(self.path)
        self.findings += findings_of(events, host, now_s, None, _NO_RAY, source, dated)


def _read_file(path: str) -> _KernelLogFile:
    log = _KernelLogFile(path)
    log.take(log_lines(path, catalog.kernel_words(), is_message=_is_event), None)
    return log


def _is_event(text: str) -> bool:
    return catalog.kernel_event(text) is not None


def _this_machine(now_s: float) -> _KernelLogFile:
    log = _KernelLogFile(THIS_MACHINE)
    log.take(_own_lines(), now_s)
    return log


def _own_lines() -> Iterator[Union[LogLine, Unread]]:
    try:
        for line in kernel_log(Host(), words=catalog.kernel_words()):
            if isinstance(line, Unread):
                yield line
            else:
                yield LogLine(**vars(line), number=line.seq, dated=True, since_boot_s=None, host="")
    except ReadError as error:
        yield Unread(THIS_MACHINE, error.status, str(error))


def _line_reference(path: str) -> Callable[[Any], str]:
    return lambda line: f"{path}:{line.number}"


def _logged_events(event: KernelEventSeen, path: str) -> Iterator[LoggedEvent]:
    """The event, and a copy of it for each further class of its lines."""
    first = event.lines[0]
    assert isinstance(first, LogLine)
    entry = catalog.failures()[event.finding]
    meaning, next_step = entry.title, entry.next_steps[0]
    if event.meaning:
        meaning = f"{event.meaning.name}: {event.meaning.title}"
        next_step = event.meaning.next_step
    logged = LoggedEvent(
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
    yield logged
    for event_class in event.also:
        yield replace(logged, event_class=event_class)


def _finite(time_s: float) -> Optional[float]:
    return time_s if math.isfinite(time_s) else None
