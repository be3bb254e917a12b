"""What the answer rests on: who answered, what could not be read, how readers were confined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from raydiag.model import Coverage, HostUnread, Snapshot
from raydiag.render.escape import terminal
from raydiag.render.layout import ReportPage, count, hosts, shape, utc

_WITHOUT_LANDLOCK = "processes"  # it would hide from these readers what they are there to read
_SAME_START_S = 60.0  # nodes that booted together


def coverage_section(
    snapshot: Snapshot, coverage: Coverage, page: ReportPage, verbose: bool
) -> list[str]:
    """Lines of the section; equal reasons share a line with the set of nodes."""
    lines = [f"COVERAGE  {answered(coverage)}"]
    for text in coverage_lines(snapshot, coverage, verbose):
        lines += page.wrap(terminal(text), "  ", "    ")
    return lines


def answered(coverage: Coverage) -> str:
    """`6 of 8 nodes answered`."""
    return f"{coverage.answered} of {count(coverage.asked, 'node')} answered"


def coverage_lines(snapshot: Snapshot, coverage: Coverage, verbose: bool) -> list[str]:
    """What the section says, one text per line. Not escaped."""
    return [
        *_blind(coverage),
        *_unread(coverage.unread, verbose),
        *_kernel_log(snapshot),
        *_sandbox(snapshot),
    ]


def _blind(coverage: Coverage) -> Iterator[str]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for item in coverage.blind:
        by_reason[item.reason].append(item.host)
    for reason, names in by_reason.items():
        yield f"not seen: {hosts(names)}: {reason}"


def _unread(unread: Iterable[HostUnread], verbose: bool) -> Iterator[str]:
    """One line per kind of source and reason; numbered sources (pids, GPUs) share one."""
    groups: dict[tuple[str, str, str], list[HostUnread]] = defaultdict(list)
    for item in unread:
        reason = item.reason.removeprefix(item.source).lstrip(": ")
        source = item.source if verbose else shape(item.source, item.host)
        reason = reason if verbose else shape(reason, item.host)
        groups[source, item.status.value, reason].append(item)
    for (source, status, _), items in groups.items():
        names = {item.source for item in items}
        what = source if len(names) > 1 else items[0].source
        number = f" ({len(names)} sources)" if len(names) > 1 else ""
        reason = items[0].reason.removeprefix(items[0].source).lstrip(": ")
        text = f"unread: {what}{number} on {hosts(item.host for item in items)}: {status}"
        yield f"{text}, {reason}" if reason and reason != status else text


def _kernel_log(snapshot: Snapshot) -> Iterator[str]:
    """How far back the kernel logs reach: the ring holds little, and older events are unseen."""
    starts, missing = [], []
    for report in snapshot.nodes:
        if "kernel_log" not in report.probes:
            continue
        records = report.records("kernel_log")
        if records:
            starts.append((records[0].time_s, report.node.host))
        else:
            missing.append(report.node.host)
    if starts:
        (oldest, first), (newest, last) = min(starts), max(starts)
        text = f"kernel log: reaches back to {utc(oldest)} on {first}"
        apart = newest - oldest > _SAME_START_S
        yield f"{text}, only to {utc(newest)} on {last}" if apart else text
    if missing:
        yield f"kernel log: no record from {hosts(missing)}"


def _sandbox(snapshot: Snapshot) -> Iterator[str]:
    """How each kind of reader was confined, as its node says."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    answered = [report for report in snapshot.nodes if report.sandbox]
    for report in answered:
        for kind, holds in sorted(report.sandbox.items()):
            groups[str(kind), _holds(str(kind), holds)].append(report.node.host)
    for (kind, holds), names in groups.items():
        where = "" if len(names) == len(answered) else f" on {hosts(names)}"
        yield f"sandbox of {kind} readers{where}: {holds}"


def _holds(kind: str, holds: Any) -> str:
    if not isinstance(holds, Mapping):
        return str(holds)
    if kind == _WITHOUT_LANDLOCK:
        holds = {name: value for name, value in holds.items() if value or name != "landlock_abi"}
    return ", ".join(_held(str(name), value) for name, value in sorted(holds.items())) or "nothing"


def _held(name: str, value: Any) -> str:
    name = name.replace("_", "-")
    if not value:
        return f"no {name}"
    return name if value is True else f"{name} {value}"
