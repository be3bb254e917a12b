"""What the answer rests on: who answered, what could not be read, how readers were confined."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from raydiag.model import Coverage, HostUnread, Snapshot, Unread
from raydiag.nodeset import fold
from raydiag.render.formats import count, grouped, hosts_of, shape, utc
from raydiag.render.report import Section, bullets

_WITHOUT_LANDLOCK = "processes"  # it would hide from these readers what they are there to read
_FILES = "files"  # the kind that reads nearly everything
_SAME_START_S = 60.0  # nodes that booted together


def coverage_section(snapshot: Snapshot, coverage: Coverage, verbose: bool) -> Section:
    """Everything that was or was not seen; equal reasons share a line with the set of nodes."""
    answered = f"{coverage.answered} of {count(coverage.asked, 'node')} answered"
    lines = [*blind_lines(coverage), *_unread(coverage.unread, verbose)]
    lines += [*_kernel_log(snapshot), *_sandbox(snapshot, verbose)]
    return Section("Coverage", facts=[answered], blocks=[bullets(lines)])


def not_read(unread: Iterable[Unread | HostUnread]) -> Section:
    """Every source that could not be read, and why."""
    return Section("Not read", [bullets(map("{0.source}: {0.reason}".format, unread))])


def blind_lines(coverage: Coverage) -> Iterator[str]:
    """Nodes that were not seen; equal reasons share a line."""
    for reason, blind in grouped(coverage.blind, attrgetter("reason")).items():
        yield f"not seen: {hosts_of(blind)}: {reason}"


def _unread(unread: Iterable[HostUnread], verbose: bool) -> Iterator[str]:
    """One line per kind of source and reason; numbered sources (pids, GPUs) share one."""
    alike: dict[tuple[str, str, str], list[HostUnread]] = defaultdict(list)
    for gap in unread:
        source, reason = gap.source, _reason(gap)
        if not verbose:
            source, reason = shape(source, gap.host), shape(reason, gap.host)
        alike[source, gap.status.value, reason].append(gap)
    for (source, _, _), gaps in alike.items():
        yield _unread_line(source, gaps)


def _unread_line(shared_source: str, gaps: list[HostUnread]) -> str:
    sources = set(map(attrgetter("source"), gaps))
    source = gaps[0].source
    if len(sources) > 1:
        source = f"{shared_source} ({len(sources)} sources)"
    status, reason = gaps[0].status.value, _reason(gaps[0])
    line = f"unread: {source} on {hosts_of(gaps)}: {status}"
    return f"{line}, {reason}" if reason and reason != status else line


def _reason(gap: HostUnread) -> str:
    return gap.reason.removeprefix(gap.source).lstrip(": ")


def _kernel_log(snapshot: Snapshot) -> Iterator[str]:
    """How far back the kernel logs reach: the ring holds little, and older events are unseen."""
    starts, missing = [], []
    for report in snapshot.nodes:
        records = report.records("kernel_log")
        if records:
            starts.append((records[0].time_s, report.node.host))
        elif "kernel_log" in report.probes:
            missing.append(report.node.host)
    if starts:
        (oldest, first), (newest, last) = min(starts), max(starts)
        line = f"kernel log: reaches back to {utc(oldest)} on {first}"
        if newest - oldest > _SAME_START_S:
            line += f", only to {utc(newest)} on {last}"
        yield line
    if missing:
        yield f"kernel log: no record from {fold(missing)}"


def _sandbox(snapshot: Snapshot, verbose: bool) -> Iterator[str]:
    """How each kind of reader was confined, as its node says; those of files alone without -v."""
    hosts_alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    confined = list(filter(attrgetter("sandbox"), snapshot.nodes))
    for report in confined:
        kinds = sorted(report.sandbox) if verbose else {_FILES} & report.sandbox.keys()
        for kind in kinds:
            bonds = report.sandbox[kind]
            hosts_alike[str(kind), _bonds(str(kind), bonds)].append(report.node.host)
    for (kind, bonds), hosts in hosts_alike.items():
        readers = f"{kind} readers"
        if len(hosts) < len(confined):
            readers += f" on {fold(hosts)}"
        yield f"sandbox of {readers}: {bonds}" + ("" if verbose else " (-v: all kinds)")


def _bonds(kind: str, bonds: Any) -> str:
    if not isinstance(bonds, Mapping):
        return str(bonds)
    named = []
    for name, value in sorted(bonds.items()):
        if value or name != "landlock_abi" or kind != _WITHOUT_LANDLOCK:
            named.append(_bond(str(name).replace("_", "-"), value))
    return ", ".join(named) or "nothing"


def _bond(name: str, value: Any) -> str:
    if not value:
        return f"no {name}"
    return name if value is True else f"{name} {value}"
