"""Kernel log: lines -> events.

An event is what happened once to one device or process, however many lines report it. What a line
means stands in `catalog/kernel_events.yaml`; here the lines of one report are put together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from raydiag import catalog
from raydiag.catalog import KernelEvent
from raydiag.model import Severity
from raydiag.probes.kernel_log import KernelLine

_REPORT_GAP_S = 5.0  # lines of one report about one device follow each other within this
_TRACE_GAP_S = 1.0  # a stack trace is printed in one go
_LOSS_S = 60.0  # an event this soon after lost records may have begun among them
_BESIDE, _BESIDE_S = 16, 10.0  # events, and seconds, that count as beside an event
_OPEN = 64  # reports that a line may still belong to
TRACE_LINES = 64  # at most kept of an event

_PCI_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
_TRACE_LINE = re.compile(
    r"\+0x[0-9a-f]+/0x[0-9a-f]+|^\s*(?:RIP|RSP|R[A-Z0-9]{2}|CR2|FS|CS|Code|CPU|Hardware name|IP|"
    r"Workqueue|Modules linked in|Call [Tt]race|PKRU|EFLAGS|pc|lr|sp|task) ?:|^\s*</?[A-Z]+>|"
    r"---\[ end trace|#PF: |^\s*(?:PGD|Oops:) |\b(?:Not t|T)ainted|hung_task_timeout_secs"
)
_CALLED = re.compile(r"(?<!\? )\b([A-Za-z_]\w*)(?:\.\w+)*\+0x[0-9a-f]+/0x[0-9a-f]+")

# With a driver-fault symbol in their trace, these are that fault, and those are a sign of it.
_ARE_THE_FAULT = frozenset({"kernel-oops", "amdgpu-other-error"})
_SHOW_THE_FAULT = frozenset({"hung-task", "soft-lockup", "hard-lockup", "rcu-stall"})


@dataclass(frozen=True)
class KernelEventSeen:
    """One event, or the same one several times."""

    event: str  # class id of the kernel-log family
    finding: str  # failure class that it is evidence of
    severity: Severity
    lines: tuple[KernelLine, ...]  # the first ones, verbatim
    count: int  # how often it happened
    first_s: float  # Unix seconds; NaN where the log has no times
    last_s: float
    device: str | None  # PCI address, lower case
    device_beside: bool  # the event does not name its device, all lines beside it name this one
    pid: int | None  # as the kernel counts, outside of containers
    process: str | None  # the kernel's name of it, 15 characters
    ring: str | None
    block: str | None  # hardware block, lower case
    errors: int | None  # the largest number of errors that one line states
    symbol: str | None  # driver-fault function in the trace
    userspace: bool  # not written by the kernel
    recovers: tuple[str, ...]  # events that this one ends
    lasting: bool
    trace: bool
    not_later_than: bool  # it may have begun in records that are lost


@dataclass
class _Report:
    """An event whose lines are still being collected."""

    row: KernelEvent
    severity: Severity
    userspace: bool
    not_later_than: bool
    lines: list[KernelLine] = field(default_factory=list)
    recent_s: float = math.nan
    device: str | None = None
    pid: int | None = None
    process: str | None = None
    ring: str | None = None
    block: str | None = None
    errors: int | None = None
    symbol: str | None = None
    trace: bool = False

    def add(self, line: KernelLine) -> None:
        if len(self.lines) < TRACE_LINES:
            self.lines.append(line)
        self.recent_s = line.time_s

    def note_symbol(self, line: KernelLine) -> None:
        called = _CALLED.search(line.text)
        if called and called[1] in catalog.driver_fault_symbols():
            self.symbol = self.symbol or called[1]

    def seen(self) -> KernelEventSeen:
        row, finding, severity = self.row, self.row.finding_for(self.block), self.severity
        if self.symbol and row.event in _ARE_THE_FAULT | _SHOW_THE_FAULT:
            fault = next(entry for entry in catalog.kernel_events() if entry.event == "amdgpu-cper")
            row = fault if row.event in _ARE_THE_FAULT else replace(row, lasting=True)
            finding, severity = fault.finding, fault.severity
        return KernelEventSeen(
            event=row.event,
            finding=finding,
            severity=severity,
            lines=tuple(self.lines),
            count=1,
            first_s=self.lines[0].time_s,
            last_s=self.recent_s,
            device=self.device,
            device_beside=False,
            pid=self.pid,
            process=self.process,
            ring=self.ring,
            block=self.block,
            errors=self.errors,
            symbol=self.symbol,
            userspace=self.userspace,
            recovers=row.recovers,
            lasting=row.lasting,
            trace=self.trace,
            not_later_than=self.not_later_than,
        )


def events(lines: Iterable[KernelLine]) -> list[KernelEventSeen]:
    """The events that the lines of one kernel log report, in the order of their first lines.

    Lines are in the order of the log. A repeated event comes once, with its count.
    """
    reports: list[_Report] = []
    trace: _Report | None = None
    loss_s = -math.inf
    for number, line in enumerate(lines):
        if line.lost_before or (number == 0 and line.seq > 0):
            loss_s, trace = line.time_s, None
        if trace and (line.time_s - trace.recent_s > _TRACE_GAP_S or "cut here" in line.text):
            trace = None
        if trace and not line.facility and _TRACE_LINE.search(line.text):
            trace.add(line)
            trace.note_symbol(line)
            if "end trace" in line.text:
                trace = None
            continue
        hit = catalog.kernel_event(line.text)
        if hit is None:
            continue
        report = _report_for(reports, line, *hit, line.time_s - loss_s <= _LOSS_S)
        if hit[0].trace and not line.facility:
            trace, report.trace = report, True
            report.note_symbol(line)
    return _collapsed(_placed([report.seen() for report in reports]))


def _report_for(
    reports: list[_Report],
    line: KernelLine,
    row: KernelEvent,
    match: re.Match[str],
    not_later_than: bool,
) -> _Report:
    """The report that the line belongs to, with the line in it; a new one where there is none."""
    stated = {name: value.strip() for name, value in match.groupdict().items() if value}
    address = _PCI_ADDRESS.search(line.text)
    fresh = _Report(row, row.severity, bool(line.facility), not_later_than)
    fresh.device = (stated.get("device") or (address[0] if address else "")).lower() or None
    fresh.pid = int(stated.get("pid", 0)) or None  # pid 0: the driver does not know
    fresh.process = (stated.get("process") if fresh.pid else None) or None
    fresh.ring = stated.get("ring")
    fresh.block = stated.get("block", "").lower() or None
    fresh.errors = int(stated["count"]) if "count" in stated else None
    fresh.recent_s = line.time_s
    for known in reversed(reports[-_OPEN:]):
        if _is_same(known, fresh):
            _merge(known, fresh)
            known.add(line)
            return known
    fresh.add(line)
    reports.append(fresh)
    return fresh


def _is_same(known: _Report, fresh: _Report) -> bool:
    if fresh.recent_s - known.recent_s > _REPORT_GAP_S or known.userspace is not fresh.userspace:
        return False
    if bool(known.row.recovers) is not bool(fresh.row.recovers):
        return False
    alike = known.row.event == fresh.row.event
    if not (alike or known.row.event in fresh.row.part_of or fresh.row.event in known.row.part_of):
        return False
    return all(
        one is None or other is None or one == other
        for one, other in (
            (known.device, fresh.device),
            (known.pid, fresh.pid),
            (known.block, fresh.block),
        )
    )


def _merge(known: _Report, fresh: _Report) -> None:
    if known.row.event not in fresh.row.part_of and fresh.row.event in known.row.part_of:
        known.row = fresh.row  # the line that says what the earlier one was the beginning of
    elif fresh.row.lasting and known.row.event == fresh.row.event:
        known.row = fresh.row
    known.severity = graver(known.severity, fresh.severity)
    known.device = known.device or fresh.device
    known.process = known.process or fresh.process
    known.pid = known.pid or fresh.pid
    known.ring = known.ring or fresh.ring
    known.block = known.block or fresh.block
    known.errors = _larger(known.errors, fresh.errors)


def _placed(seen: Sequence[KernelEventSeen]) -> Iterator[KernelEventSeen]:
    """The events, those of a GPU that older drivers do not name with the only GPU named beside."""
    for index, event in enumerate(seen):
        if event.device or not _is_of_gpu(event):
            yield event
            continue
        beside = {
            other.device
            for other in seen[max(0, index - _BESIDE) : index + _BESIDE + 1]
            if other.device and _is_of_gpu(other) and abs(other.first_s - event.last_s) <= _BESIDE_S
        }
        known = len(beside) == 1 and not event.userspace
        yield replace(event, device=beside.pop(), device_beside=True) if known else event


def _is_of_gpu(event: KernelEventSeen) -> bool:
    return event.event.startswith(("amdgpu-", "kfd-")) and event.event != "amdgpu-cper"


def _collapsed(seen: Iterable[KernelEventSeen]) -> list[KernelEventSeen]:
    """One event for each set of those that differ in time only."""
    found: dict[object, KernelEventSeen] = {}
    for event in seen:
        what = (event.event, event.finding, event.device, event.block, bool(event.recovers))
        key = (what, event.pid, event.process, event.userspace)
        first = found.get(key)
        found[key] = event if first is None else _together(first, event)
    return list(found.values())


def _together(first: KernelEventSeen, again: KernelEventSeen) -> KernelEventSeen:
    return replace(
        first,
        count=first.count + again.count,
        last_s=again.last_s,
        lines=first.lines + again.lines[: max(0, TRACE_LINES - len(first.lines))],
        severity=graver(first.severity, again.severity),
        errors=_larger(first.errors, again.errors),
        symbol=first.symbol or again.symbol,
        lasting=first.lasting or again.lasting,
    )


def graver(one: Severity, other: Severity) -> Severity:
    return max(one, other, key=lambda severity: severity.rank)


def _larger(one: int | None, other: int | None) -> int | None:
    return max((number for number in (one, other) if number is not None), default=None)
