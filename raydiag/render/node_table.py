"""The table of nodes: nodes that look the same share one row, so a healthy cluster is one row."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from typing import Any

from raydiag.model import Finding, NodeReport, NodeStatus, Severity, Status
from raydiag.nodeset import fold
from raydiag.render.document import severity_of
from raydiag.render.formats import count, extent, filled, grouped, or_dash
from raydiag.render.report import TONES, Paragraph, Row, Section, Table, Tone, Toned

_TONES = {
    **dict.fromkeys((NodeStatus.DEAD, NodeStatus.UNREACHABLE, NodeStatus.TIMEOUT), Tone.BAD),
    NodeStatus.PARTIAL: Tone.DOUBTFUL,
    NodeStatus.OK: Tone.GOOD,
}
_ORDER = list(_TONES)  # the worst first
_HEADER = ("Hosts", "Status", "GPUs", "Temp", "Power", "Mem used", "Fullest FS")
_ALWAYS_SHOWN = 2  # columns, also where no node fills them
_MEASURED = (Status.OK, Status.NO_DATA)
_VERSIONS = ("kernel", "amdgpu")
_WORTH_NAMING_PERCENT = 80.0
_READ_ONLY_FS = ("squashfs", "iso9660", "erofs", "cramfs")  # images that are full by nature


@dataclass
class _LikeNodes:
    """Nodes with the same status, GPU count, notes and versions, and what varies among them."""

    status: NodeStatus
    problem: Severity | None  # the most severe one that was found on each
    gpus: int | None  # None: not measured
    versions: Sequence[str]
    notes: Sequence[str]
    hosts: list[str] = field(default_factory=list)
    temperatures_c: list[float] = field(default_factory=list)
    powers_w: list[float] = field(default_factory=list)
    memory_percent: list[float] = field(default_factory=list)
    fullest_percent: list[float] = field(default_factory=list)
    fullest_mounts: set[str] = field(default_factory=set)

    def add(self, report: NodeReport) -> None:
        """One more node that looks like these."""
        self.hosts.append(report.node.host)
        for sensors in report.records("gpu_sensors"):
            self.temperatures_c += _known(sensors.temperature_c)
            self.powers_w += _known(sensors.power_w)
        for memory in report.records("memory"):
            if memory.total_bytes > 0:
                used = memory.total_bytes - memory.available_bytes
                self.memory_percent.append(100 * used / memory.total_bytes)
        fullest = max(filter(None, map(_fullness, report.records("storage"))), default=None)
        if fullest is not None:
            self.fullest_percent.append(fullest[0])
            self.fullest_mounts.add(fullest[1])

    @property
    def order(self) -> tuple[int, int, str]:
        """The worst first."""
        rank = 0 if self.problem is None else self.problem.rank
        return _ORDER.index(self.status), -rank, min(self.hosts)

    def cells(self) -> list[str | Toned]:
        """One for each column; `-` where nothing was measured."""
        return [
            fold(self.hosts),
            Toned(self.status.value, self._tone()),
            or_dash(self.gpus),
            extent(self.temperatures_c, "C"),
            extent(self.powers_w, "W"),
            extent(self.memory_percent, "%"),
            extent(self.fullest_percent, "%"),
        ]

    def all_notes(self, shared_versions: bool) -> list[str]:
        """What is wrong, versions where nodes differ, a full file system, and the rest."""
        notes = [] if self.problem is None else [f"{self.problem.value} finding"]
        if not shared_versions:
            notes += self.versions
        full = max(self.fullest_percent, default=0.0) >= _WORTH_NAMING_PERCENT
        if full and len(self.fullest_mounts) == 1:
            notes.append(f"fullest file system {min(self.fullest_mounts)}")
        return [*notes, *self.notes]

    def _tone(self) -> Tone:
        """An answer is no good news where a problem was found."""
        if self.status is NodeStatus.OK and self.problem is not None:
            return TONES[self.problem]
        return _TONES[self.status]


def nodes_section(reports: Sequence[NodeReport], problems: Iterable[Finding]) -> Section:
    """The nodes in rows, the worst first; columns that no node fills are left out."""
    rows = _rows(reports, problems)
    shared = _shared_versions(rows)
    cells = list(map(_LikeNodes.cells, rows))
    filled_columns = [set(column) != {"-"} for column in zip(*cells, strict=True)]
    filled_columns[:_ALWAYS_SHOWN] = [True] * _ALWAYS_SHOWN
    shown_cells = [list(compress(row_cells, filled_columns)) for row_cells in cells]
    notes = [nodes.all_notes(bool(shared)) for nodes in rows]
    table = list(map(Row, shown_cells, notes))
    header = list(compress(_HEADER, filled_columns))
    versions = Paragraph(filled("All: {}", ", ".join(shared)))
    return Section("Nodes", [Table(header, table), versions])


def _rows(reports: Sequence[NodeReport], problems: Iterable[Finding]) -> list[_LikeNodes]:
    by_host = grouped(problems, attrgetter("host"))
    alike: dict[tuple[object, ...], _LikeNodes] = {}
    for report in reports:
        problem = _worst_problem(report, by_host)
        key = (report.status, problem, _gpus(report), _versions(report), _notes(report))
        if key not in alike:
            alike[key] = _LikeNodes(*key)
        alike[key].add(report)
    return sorted(alike.values(), key=lambda nodes: nodes.order)


def _worst_problem(report: NodeReport, by_host: Mapping[str, list[Finding]]) -> Severity | None:
    severities = []
    for finding in by_host.get(report.node.host, ()):
        if finding.address in (None, report.node.address):
            severities.append(severity_of(finding))
    return max(severities, key=lambda severity: severity.rank, default=None)


def _shared_versions(rows: Iterable[_LikeNodes]) -> Sequence[str]:
    """Versions that all nodes share; empty where they differ."""
    versions = set(map(attrgetter("versions"), rows)) - {()}
    return versions.pop() if len(versions) == 1 else ()


def _gpus(report: NodeReport) -> int | None:
    sensors = report.probes.get("gpu_sensors")
    if sensors is None or sensors.status not in _MEASURED:
        return None
    return len(report.records("gpu_sensors"))


def _versions(report: NodeReport) -> tuple[str, ...]:
    versions = dict(map(attrgetter("component", "version"), report.records("versions")))
    return tuple(f"{name} {versions[name]}" for name in _VERSIONS if name in versions)


def _notes(report: NodeReport) -> tuple[str, ...]:
    """What a reader should know about the node beside its numbers.

    The node's own reason is given only where no probe says more: it often names a pid or a time,
    and would keep like nodes from sharing a row.
    """
    notes = []
    for name in sorted(report.probes):
        status = report.probes[name].status
        if status not in _MEASURED:
            notes.append(f"{name} {status.value}")
    if report.stuck:
        notes.append(count(len(report.stuck), "stuck reader"))
    if not notes and report.reason and report.status is not NodeStatus.OK:
        notes.append(report.reason)
    return tuple(notes)


def _fullness(mount: Any) -> tuple[float, str] | None:
    """(used percent as `df` counts it, mount point) of a MountUsage that can fill up."""
    used = mount.total_bytes - mount.free_bytes
    usable = used + mount.available_bytes
    if usable <= 0 or mount.fs_type in _READ_ONLY_FS:
        return None
    return 100 * used / usable, mount.mount_point


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]
