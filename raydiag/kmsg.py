"""`raydiag kmsg`: kernel log text from files -> events and findings, without a cluster.

One file is one log; in a central syslog each host has its own. Memory does not grow with a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Optional, Union

from raydiag import catalog
from raydiag.errors import ReadError
from raydiag.explain.diagnosis import of_findings
from raydiag.host import Host
from raydiag.kernel_text import LogLine, log_lines
from raydiag.model import Coverage, Diagnosis, Finding, HostUnread, Severity, Unread, Window
from raydiag.probes.kernel_log import kernel_log
from raydiag.rules.grades import known
from raydiag.rules.kernel import KernelLog
from raydiag.rules.kernel_events import Grouping, KernelEventSeen
from raydiag.rules.victims import RayProcesses

THIS_MACHINE = "/dev/kmsg"
_HOSTS = 1024  # in one file; further ones count as one
_NO_RAY = RayProcesses({}, ())
# What an event and its report call the same.
_OF_EVENT = (
    *("severity", "count", "device", "pid", "process", "code", "ring", "block", "errors"),
    *("userspace", "finding", "unclassified"),
)


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
    unclassified: bool  # all that is known is which driver printed it, as an error
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
    files, wanted = dict.fromkeys(paths), catalog.kernel_table().filter_options()
    logs = [_KernelLogFile(path, log_lines(path, is_message=_is_event, **wanted)) for path in files]
    if not files:
        logs = [_KernelLogFile(THIS_MACHINE, _own_lines(), now_s)]
    events: list[LoggedEvent] = []
    unread: list[Unread] = []
    findings: list[Finding] = []
    for log in logs:
        events += log.events
        unread += log.unread
        findings += log.findings
    hosts_unread = tuple(map(HostUnread.without_host, unread))
    coverage = Coverage(0, 0, (), hosts_unread, _window(events))
    nothing_read = all(log.unread and not log.lines for log in logs)
    diagnosis = of_findings(findings, coverage)
    return ExaminedKernelLog(events, diagnosis, len(files), unread, nothing_read)


def _window(events: Sequence[LoggedEvent]) -> Optional[Window]:
    """From the first event with a date to the last one."""
    dates = known(chain.from_iterable(map(attrgetter("time", "last_time"), events)))
    return Window(min(dates), max(dates)) if dates else None


class _KernelLogFile:
    """One kernel log: lines go in, events and findings come out.

    `now_s`: None when it may be of any time.
    """

    def __init__(
        self, path: str, lines: Iterator[Union[LogLine, Unread]], now_s: Optional[float] = None
    ) -> None:
        self.path = path
        self.lines = 0
        self.events: list[LoggedEvent] = []
        self.findings: list[Finding] = []
        self.unread: list[Unread] = []
        self._groupings: dict[tuple[str, bool], Grouping] = {}

        for line in lines:
            if isinstance(line, Unread):
                self.unread.append(line)
            else:
                self.lines += 1
                self._grouping(line).offer(line, line.since_boot_s)
        for (host, dated), grouping in self._groupings.items():
            seen = grouping.events()
            for event in seen:
                self.events += _logged_events(event, path)
            log = KernelLog(seen, now_s, _NO_RAY, source=self._line_reference, dated=dated)
            self.findings += log.findings(host or None)
        self.events.sort(key=attrgetter("line"))

    def _grouping(self, line: LogLine) -> Grouping:
        """The one for the line's host; hosts beyond the limit share one."""
        key = (line.host, line.dated)
        if key not in self._groupings and len(self._groupings) >= _HOSTS:
            key = ("", line.dated)
        return self._groupings.setdefault(key, Grouping())

    def _line_reference(self, line: Any) -> str:
        return f"{self.path}:{line.number}"


def _is_event(text: str) -> bool:
    return catalog.kernel_event(text) is not None


def _own_lines() -> Iterator[Union[LogLine, Unread]]:
    try:
        table = catalog.kernel_table()
        for line in kernel_log(Host(), words=table.words, drivers=table.driver_names):
            if isinstance(line, Unread):
                yield line
            else:
                yield LogLine(**vars(line), number=line.seq, dated=True, since_boot_s=None, host="")
    except ReadError as error:
        yield Unread(THIS_MACHINE, error.status, str(error))


def _logged_events(event: KernelEventSeen, path: str) -> Iterator[LoggedEvent]:
    """The event, and a copy of it for each further class of its lines."""
    first = event.lines[0]
    assert isinstance(first, LogLine)
    entry = catalog.failures()[event.finding]
    meaning, next_step = event.row.meaning or entry.title, entry.next_steps[0]
    if event.meaning:
        meaning = f"{event.meaning.name}: {event.meaning.title}"
        next_step = event.meaning.next_step
    for event_class in (event.event, *event.related):
        yield LoggedEvent(
            event_class=event_class,
            file=path,
            line=first.number,
            time=_date(first, event.first_s),
            last_time=_date(first, event.last_s),
            since_boot_s=first.since_boot_s,
            level=first.level if first.level >= 0 else None,
            text=first.text,
            host=first.host or None,
            recovery=bool(event.row.recovers),
            meaning=meaning,
            next_step=next_step,
            **{name: getattr(event, name) for name in _OF_EVENT},
        )


def _date(first: LogLine, time_s: float) -> Optional[float]:
    return time_s if first.dated and math.isfinite(time_s) else None
