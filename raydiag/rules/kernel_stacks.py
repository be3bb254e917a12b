"""Crash reports and stack traces of GPU drivers in a kernel log, verbatim and whole.

From the headline to `---[ end trace`, or to where the log goes on about something else: an
administrator, and after that a vendor, wants the lines as they are.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from raydiag.catalog import kernel_table
from raydiag.probes.kernel_log import KernelLine

_GAP_S = 1.0  # a report is printed in one go
_MOST_LINES = 160  # of one report

# What a report begins with; and what may be the first that is left of one.
_HEADLINE = re.compile(
    r"BUG: |Oops\b|WARNING: |INFO: task .{1,64} blocked for more than|general protection fault|"
    r"watchdog: BUG|rcu: INFO|-+\[ cut here \]-+|Unable to handle kernel"
)
_MIDDLE = re.compile(r"RIP: |Call [Tt]race:|\b\w{1,200}\+0x[0-9a-f]+/0x[0-9a-f]+ \[amdgpu\]")
_FUNCTION = re.compile(r"(?<!\? )(?<!\.)\b([A-Za-z_]\w*)(?:\.\w+)*\+0x[0-9a-f]+/0x[0-9a-f]+")
_OF_GPU = re.compile(r"\[(?:amdgpu|amdkcl|amdttm|amd_sched|nvidia\w*)\b")
_HEX = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,16}\b|\d+")


@dataclass(frozen=True)
class KernelStack:
    """One report of the kernel."""

    lines: Sequence[KernelLine]  # verbatim, in their order
    symbol: str  # the driver-fault function in it, innermost first; "" where none is
    count: int = 1  # how many reports are alike, this one included

    @property
    def headline(self) -> str:
        """Its first line."""
        return self.lines[0].text


def gpu_stacks(lines: Iterable[KernelLine]) -> list[KernelStack]:
    """Reports about a GPU driver, of like ones the first, with how many there are."""
    alike: dict[tuple[str, ...], KernelStack] = {}
    for report in _reports(lines):
        text = "\n".join(map(attrgetter("text"), report))
        functions = _FUNCTION.findall(text)
        symbols = list(filter(kernel_table().driver_fault_symbols.__contains__, functions))
        if not symbols and not _OF_GPU.search(text):
            continue
        key = (_HEX.sub("*", report[0].text), *functions)
        first = alike.get(key, KernelStack(report, "".join(symbols[:1]), 0))
        alike[key] = KernelStack(first.lines, first.symbol, first.count + 1)
    return list(alike.values())


def _reports(lines: Iterable[KernelLine]) -> Iterator[list[KernelLine]]:
    report: list[KernelLine] = []
    for line in lines:
        if line.facility:
            continue  # a program wrote it
        if report and _ends_before(report, line):
            yield report
            report = []
        if report or _HEADLINE.search(line.text) or _MIDDLE.search(line.text):
            report.append(line)
        if report and "end trace" in line.text:
            yield report
            report = []
    if report:
        yield report


def _ends_before(report: Sequence[KernelLine], line: KernelLine) -> bool:
    """Whether the line is of something else: after a pause or a gap, or a new headline."""
    if line.time_s - report[-1].time_s > _GAP_S or line.lost_before:
        return True
    if len(report) >= _MOST_LINES:
        return True
    is_begun = any(map(_MIDDLE.search, map(attrgetter("text"), report)))
    return is_begun and bool(_HEADLINE.search(line.text)) and "Oops" not in line.text
