"""Kernel log: lines -> events.

An event is what happened once to one device or process, however many lines report it. What a line
means stands in `catalog/kernel_events.yaml`; here the lines of one report are put together, one
after the other and in bounded memory, because a log may be of any size.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from raydiag import catalog
from raydiag.catalog.kernel_table import ERROR_LEVEL, KernelEvent, NvidiaCode
from raydiag.model import Severity
from raydiag.probes.kernel_log import KernelLine
from raydiag.rules.grades import known

_REPORT_GAP_S = 5.0  # lines of one report about one device follow each other within this
_TRACE_GAP_S = 1.0  # a stack trace is printed in one go
_LOSS_S = 60.0  # an event this soon after lost records may have begun among them
_BESIDE, _BESIDE_S = 16, 10.0  # events, and seconds, that count as beside an event
_OPEN = 64  # reports that a line may still belong to
_BATCH = 1024  # finished reports that are looked at side by side
_KINDS = 8192  # different events that are told apart by process; beyond, by device only
_KEPT_LINES = 32768  # of all events together; beyond, one of each
_DEBUG = 7  # level
_BOOT_S = 300.0  # after the start of the node, for what is normal then
TRACE_LINES = 64  # at most kept of an event

_PCI_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
_TRACE_LINE = re.compile(
    r"\+0x[0-9a-f]+/0x[0-9a-f]+|^\s*(?:RIP|RSP|R[A-Z0-9]{2}|CR2|FS|CS|Code|CPU|Hardware name|IP|"
    r"Workqueue|Modules linked in|Call [Tt]race|PKRU|EFLAGS|pc|lr|sp|task) ?:|^\s*</?[A-Z]+>|"
    r"---\[ end trace|#PF: |^\s*(?:PGD|Oops:) |\b(?:Not t|T)ainted|hung_task_timeout_secs"
)
_SHORT_ADDRESS = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?")
# The type of an error section comes after the severity of the whole report, and is more specific.
_FIRMWARE_SEVERITY = re.compile(r"(?:event severity|Error \d+, type): (\w+)")
_CALLED = re.compile(r"(?<!\? )(?<!\.)\b([A-Za-z_]\w*)(?:\.\w+)*\+0x[0-9a-f]+/0x[0-9a-f]+")

# With a driver-fault symbol in their trace, these are that fault, and those are a sign of it.
_ARE_THE_FAULT = frozenset({"kernel-oops", "amdgpu-other-error"})
_SHOW_THE_FAULT = frozenset({"hung-task", "soft-lockup", "hard-lockup", "rcu-stall"})


@dataclass(frozen=True, kw_only=True)
class _Stated:
    """What the lines of an event state; None: nothing."""

    device: str | None = None  # PCI address, lower case
    pid: int | None = None  # as the kernel counts, outside of containers
    process: str | None = None  # the kernel's name of it, 15 characters
    ring: str | None = None
    block: str | None = None  # hardware block, lower case
    errors: int | None = None  # the largest number of errors that one line states
    code: int | None = None  # NVIDIA's number of the error
    symbol: str | None = None  # driver-fault function in the trace

    def also(self, other: _Stated) -> _Stated:
        """With what the other one states besides."""
        own = {name: value for name, value in vars(self).items() if value not in (None, "")}
        return replace(other, **{**own, "errors": _larger(self.errors, other.errors)})


@dataclass(frozen=True, kw_only=True)
class KernelEventSeen(_Stated):
    """One event, or the same one several times."""

    row: KernelEvent  # what the catalog knows of it
    finding: str  # failure class that it is evidence of
    severity: Severity
    lines: tuple[KernelLine, ...]  # the first ones, verbatim
    first_s: float  # Unix seconds; NaN where the log has no times
    last_s: float
    userspace: bool  # not written by the kernel
    trace: bool
    not_later_than: bool  # it may have begun in records that are lost
    meaning: NvidiaCode | None
    related: tuple[str, ...]  # other events that the lines are as much about
    count: int = 1  # how often it happened
    device_beside: bool = False  # it does not name its device, all lines beside it name this one

    @property
    def event(self) -> str:
        """Class id of the kernel-log family."""
        return self.row.event

    @property
    def unclassified(self) -> bool:
        """Whether all that is known is which driver printed it, as an error."""
        return self.row.unclassified


@dataclass
class _Report:
    """An event whose lines are still being collected."""

    row: KernelEvent
    severity: Severity
    userspace: bool
    not_later_than: bool
    stated: _Stated
    recent_s: float
    lines: list[KernelLine] = field(default_factory=list)
    trace: bool = False

    def add(self, line: KernelLine) -> None:
        if len(self.lines) < TRACE_LINES:
            self.lines.append(line)
        self.recent_s = line.time_s

    def note_symbol(self, line: KernelLine) -> None:
        called = _CALLED.search(line.text)
        if called and called[1] in catalog.kernel_table().driver_fault_symbols:
            self.stated = self.stated.also(_Stated(symbol=called[1]))

    def seen(self) -> KernelEventSeen:
        row, stated, severity = self.row, self.stated, self.severity
        finding = row.finding_for(stated.block)
        if stated.symbol and row.event in _ARE_THE_FAULT | _SHOW_THE_FAULT:
            rows = catalog.kernel_table().events
            fault = next(entry for entry in rows if entry.event == "amdgpu-cper")
            row = fault if row.event in _ARE_THE_FAULT else replace(row, lasting=True)
            finding, severity = fault.finding, fault.severity
        meaning = catalog.nvidia_code(row.codes, stated.code) if stated.code is not None else None
        related = (*row.also, *{self.row.event} - {row.event})  # an oops stays an oops as well
        if meaning:
            finding = meaning.finding or finding
            related += meaning.also
        if finding == "xgmi-error" and row.event != "amdgpu-xgmi":
            related += ("amdgpu-xgmi",)
        return KernelEventSeen(
            finding=finding,
            severity=severity,
            lines=tuple(self.lines),
            first_s=self.lines[0].time_s,
            last_s=self.recent_s,
            meaning=meaning,
            related=related,
            row=row,
            userspace=self.userspace,
            trace=self.trace,
            not_later_than=self.not_later_than,
            **vars(stated),
        )


def events(lines: Iterable[KernelLine], border_s: float = -math.inf) -> list[KernelEventSeen]:
    """The events that the lines of one kernel log report, in the order of their first lines.

    Lines are in the order of the log. A repeated event comes once, with its count; what began
    before `border_s` (Unix s) and what began after it are not the same.
    """
    grouping = Grouping(border_s)
    for line in lines:
        grouping.offer(line)
    return grouping.events()


class Grouping:
    """Puts the lines of one kernel log together, in bounded memory.

    `offer` each line in the order of the log, then ask for the `events`.
    """

    def __init__(self, border_s: float = -math.inf) -> None:
        self._border_s = border_s
        self._open: deque[_Report] = deque()
        self._closed: list[KernelEventSeen] = []
        self._found: dict[object, KernelEventSeen] = {}
        self._kept_lines = 0
        self._trace: _Report | None = None
        self._loss_s = -math.inf
        self._boot_s: float | None = None
        self._firmware = ""  # severity of the error, as the firmware states it
        self._begun = False

    def offer(self, line: KernelLine, since_boot_s: float | None = None) -> None:
        """The next line. `since_boot_s`: where the caller knows; else by the log's first record."""
        trace = self._trace
        if line.lost_before or (not self._begun and line.seq > 0):
            self._loss_s, trace = line.time_s, None
        if not self._begun and line.seq == 0:
            self._boot_s = line.time_s
        self._begun = True
        if since_boot_s is None and self._boot_s is not None:
            since_boot_s = line.time_s - self._boot_s
        if trace and (line.time_s - trace.recent_s > _TRACE_GAP_S or "cut here" in line.text):
            trace = None
        self._trace = trace
        if trace and not line.facility and _TRACE_LINE.search(line.text):
            trace.add(line)
            trace.note_symbol(line)
            if "end trace" in line.text:
                self._trace = None
            return
        level = _DEBUG if line.facility else line.level  # a program fails by itself
        hit = catalog.kernel_event(self._in_context(line.text), level)
        if hit is None:
            return
        report = self._report_for(line, *hit, since_boot_s)
        if hit[0].trace and not line.facility:
            self._trace, report.trace = report, True
            report.note_symbol(line)

    def events(self) -> list[KernelEventSeen]:
        """What was found, in the order of first lines; the end of the log is reached."""
        while self._open:
            self._closed.append(self._open.popleft().seen())
        self._collapse()
        return [_weighed(event) for event in self._found.values()]

    def _in_context(self, text: str) -> str:
        """The message; of a firmware report, its kind together with its severity stated before."""
        if "ardware E" not in text:
            return text
        stated = _FIRMWARE_SEVERITY.search(text)
        if stated:
            self._firmware = stated[1]
        if "section_type" in text and self._firmware:
            return f"{text} (event severity: {self._firmware})"
        return text

    def _report_for(
        self, line: KernelLine, row: KernelEvent, match: re.Match[str], since_boot_s: float | None
    ) -> _Report:
        """The report that the line belongs to, with the line in it; a new one if there is none."""
        fresh = _report(line, row, match, line.time_s - self._loss_s <= _LOSS_S)
        is_booting = row.boot_grace and since_boot_s is not None and since_boot_s < _BOOT_S
        if is_booting or (row.by_words and not 0 <= line.level <= ERROR_LEVEL):
            fresh.severity = Severity.INFO
        related = catalog.related_events(row.event)
        for report in reversed(self._open):
            if report.row.event in related and _is_same(report, fresh):
                _merge(report, fresh)
                report.add(line)
                return report
        fresh.add(line)
        self._open.append(fresh)
        if len(self._open) > _OPEN:
            self._closed.append(self._open.popleft().seen())
            if len(self._closed) >= _BATCH:
                self._collapse()
        return fresh

    def _collapse(self) -> None:
        """Events that differ in time only become one."""
        for event in _placed(self._closed):
            new = event.first_s >= self._border_s
            recovers = bool(event.row.recovers)
            what = (event.event, event.finding, event.device, event.code, recovers, new)
            key: object = (what, event.block, event.pid, event.process, event.userspace)
            if key not in self._found and len(self._found) >= _KINDS:
                key = (what, event.userspace)
            if self._kept_lines > _KEPT_LINES:
                event = replace(event, lines=event.lines[:1])
            if key in self._found:
                self._kept_lines -= len(self._found[key].lines)
                event = _together(self._found[key], event)
            self._kept_lines += len(event.lines)
            self._found[key] = event
        self._closed.clear()


def _report(
    line: KernelLine, row: KernelEvent, match: re.Match[str], not_later_than: bool
) -> _Report:
    """What the line alone says."""
    stated = {name: value.strip() for name, value in match.groupdict().items() if value}
    numbers = {name: int(stated[name]) for name in ("pid", "count", "code") if name in stated}
    pid = numbers.get("pid") or None  # pid 0: the driver does not know
    severity, code = row.severity, None
    if "code" in numbers and row.codes:
        code = numbers["code"]
        meaning = catalog.nvidia_code(row.codes, code)
        if meaning and meaning.severity and not row.recovers:
            severity = meaning.severity
    known_here = _Stated(
        device=_device(stated.get("device"), line.text),
        pid=pid,
        process=(stated.get("process") if pid or "pid" not in stated else None) or None,
        ring=stated.get("ring"),
        block=stated.get("block", "").lower() or None,
        errors=numbers.get("count"),
        code=code,
    )
    return _Report(row, severity, bool(line.facility), not_later_than, known_here, line.time_s)


def _device(stated: str | None, text: str) -> str | None:
    """The device that the line is about; PCI addresses in lower case and with all four parts."""
    if stated is None:
        address = _PCI_ADDRESS.search(text)
        return address[0].lower() if address else None
    lower = stated.lower()
    if not _SHORT_ADDRESS.fullmatch(lower):
        return stated
    if lower.count(":") == 1:
        lower = f"0000:{lower}"
    return lower if "." in lower else f"{lower}.0"


def _is_same(report: _Report, fresh: _Report) -> bool:
    """Whether two lines of related events are of one report."""
    if fresh.recent_s - report.recent_s > _REPORT_GAP_S or report.userspace is not fresh.userspace:
        return False
    row, fresh_row = report.row, fresh.row
    if bool(row.recovers) is not bool(fresh_row.recovers):
        return False
    is_part = row.event in fresh_row.part_of or fresh_row.event in row.part_of
    if row.event != fresh_row.event and not is_part:
        return False
    stated = attrgetter("device", "pid", "block", "code")
    for first, second in zip(stated(report.stated), stated(fresh.stated), strict=True):
        if None not in (first, second) and first != second:
            return False
    return True


def _merge(report: _Report, fresh: _Report) -> None:
    if report.row.event not in fresh.row.part_of and fresh.row.event in report.row.part_of:
        report.row = fresh.row  # the line that says what the earlier one was the beginning of
    elif fresh.row.lasting and report.row.event == fresh.row.event:
        report.row = fresh.row
    report.severity = graver(report.severity, fresh.severity)
    report.stated = report.stated.also(fresh.stated)


def _placed(seen: Sequence[KernelEventSeen]) -> Iterator[KernelEventSeen]:
    """The events, those of a GPU that older drivers do not name with the only GPU named beside."""
    for index, event in enumerate(seen):
        if event.device or not _is_of_gpu(event):
            yield event
            continue
        beside = set()
        for other in seen[max(0, index - _BESIDE) : index + _BESIDE + 1]:
            if _is_of_gpu(other) and abs(other.first_s - event.last_s) <= _BESIDE_S:
                beside.add(other.device)
        beside.discard(None)
        if len(beside) == 1 and not event.userspace:
            event = replace(event, device=beside.pop(), device_beside=True)
        yield event


def _is_of_gpu(event: KernelEventSeen) -> bool:
    return event.event.startswith(("amdgpu-", "kfd-")) and event.event != "amdgpu-cper"


def _together(first: KernelEventSeen, again: KernelEventSeen) -> KernelEventSeen:
    return replace(
        first,
        count=first.count + again.count,
        last_s=again.last_s,
        lines=first.lines + again.lines[: max(0, TRACE_LINES - len(first.lines))],
        severity=graver(first.severity, again.severity),
        errors=_larger(first.errors, again.errors),
        related=tuple(dict.fromkeys((*first.related, *again.related))),
        symbol=first.symbol or again.symbol,
        row=replace(first.row, lasting=first.row.lasting or again.row.lasting),
    )


def _weighed(event: KernelEventSeen) -> KernelEventSeen:
    """A few corrected errors are a remark, many are a warning."""
    seen = max(event.count, event.errors or 0)
    if event.row.many is None or seen < event.row.many:
        return event
    return replace(event, severity=graver(event.severity, Severity.WARNING))


def graver(first: Severity, second: Severity) -> Severity:
    """The more severe of the two."""
    return max(first, second, key=attrgetter("rank"))


def _larger(first: int | None, second: int | None) -> int | None:
    return max(known((first, second)), default=None)
