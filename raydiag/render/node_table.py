"""The table of nodes: nodes that look the same share one row, so a healthy cluster is one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from raydiag.model import NodeReport, NodeStatus, Status
from raydiag.render.escape import terminal
from raydiag.render.layout import GREEN, RED, YELLOW, ReportPage, count, extent, hosts, wrap

_COLOURS = {
    NodeStatus.DEAD: RED,
    NodeStatus.UNREACHABLE: RED,
    NodeStatus.TIMEOUT: RED,
    NodeStatus.PARTIAL: YELLOW,
    NodeStatus.OK: GREEN,
}
_ORDER = list(_COLOURS)  # the worst first
_HEADER = ("NODES", "STATUS", "GPUS", "TEMP", "POWER", "MEM USED", "FULLEST FS")
_GAP = "  "
_SEEN = (Status.OK, Status.NO_DATA)
_VERSIONS = ("kernel", "amdgpu")
# Images that are full by nature.
_WORTH_NAMING_PERCENT = 80.0
_READ_ONLY_FS = ("squashfs", "iso9660", "erofs", "cramfs")


@dataclass
class _Row:
    """Nodes with the same status, GPU count, notes and versions, and what varies among them."""

    status: NodeStatus
    gpus: int | None  # None: not measured
    versions: tuple[str, ...]
    notes: tuple[str, ...]
    hosts: list[str] = field(default_factory=list)
    temperatures_c: list[float] = field(default_factory=list)
    powers_w: list[float] = field(default_factory=list)
    memory_percent: list[float] = field(default_factory=list)
    fullest_percent: list[float] = field(default_factory=list)
    fullest: set[str] = field(default_factory=set)  # mount points

    def add(self, report: NodeReport) -> None:
        self.hosts.append(report.node.host)
        for sensors in report.records("gpu_sensors"):
            if sensors.temperature_c is not None:
                self.temperatures_c.append(sensors.temperature_c)
            if sensors.power_w is not None:
                self.powers_w.append(sensors.power_w)
        for memory in report.records("memory"):
            if memory.total_bytes > 0:
                used = memory.total_bytes - memory.available_bytes
                self.memory_percent.append(100 * used / memory.total_bytes)
        mounts = [fullness for fullness in map(_fullness, report.records("storage")) if fullness]
        if mounts:
            percent, mount_point = max(mounts)
            self.fullest_percent.append(percent)
            self.fullest.add(mount_point)

    def cells(self) -> list[str]:
        return [
            hosts(self.hosts),
            self.status.value,
            "-" if self.gpus is None else str(self.gpus),
            extent(self.temperatures_c, "C"),
            extent(self.powers_w, "W"),
            extent(self.memory_percent, "%"),
            extent(self.fullest_percent, "%"),
        ]

    def mount_point(self) -> str:
        """The fullest file system, when it is full and the same one on all nodes of the row."""
        full = max(self.fullest_percent, default=0.0) >= _WORTH_NAMING_PERCENT
        return min(self.fullest) if full and len(self.fullest) == 1 else ""


@dataclass(frozen=True)
class TableRow:
    """What a row shows. Not escaped, except for the cells."""

    status: NodeStatus
    cells: Sequence[str]  # as many as the table's header
    mount_point: (
        str  # of the fullest file system, where it is worth naming; belongs to the last cell
    )
    notes: Sequence[str]


@dataclass(frozen=True)
class NodeTable:
    """The nodes in rows, the worst first; columns that no node fills are left out."""

    header: Sequence[str]
    rows: Sequence[TableRow]
    versions: Sequence[str]  # that all nodes share; where they differ, each row notes its own


def tabulate(reports: Sequence[NodeReport]) -> NodeTable:
    """The table of these nodes, to be set by `node_table` or by another format."""
    rows = _rows(reports)
    cells = [row.cells() for row in rows]
    kept = [i for i in range(len(_HEADER)) if i < 2 or any(line[i] != "-" for line in cells)]
    versions = {row.versions for row in rows if row.versions}
    shared = versions.pop() if len(versions) == 1 else ()
    return NodeTable(
        [_HEADER[i] for i in kept],
        [
            TableRow(
                row.status,
                [line[i] for i in kept],
                row.mount_point(),
                [*(() if shared else row.versions), *row.notes],
            )
            for row, line in zip(rows, cells, strict=True)
        ],
        shared,
    )


def node_table(reports: Sequence[NodeReport], page: ReportPage) -> list[str]:
    """Lines of the table."""
    table = tabulate(reports)
    if not table.rows:
        return []
    columns = list(zip(table.header, *(row.cells for row in table.rows), strict=True))
    widths = [max(map(len, column)) for column in columns]
    # Node names wrap inside their column, what is left goes to them; the last column is open.
    others = sum(widths[1:-1]) + len(_GAP) * (len(widths) - 1) + len(table.header[-1])
    widths[0] = min(widths[0], max(page.width - others, 16))
    lines = [_line(table.header, widths)]
    for row in table.rows:
        lines += _row_lines(row, widths, page)
    if table.versions:
        lines += page.wrap(terminal(f"All: {', '.join(table.versions)}"), rest=_GAP)
    return lines


def _rows(reports: Sequence[NodeReport]) -> list[_Row]:
    rows: dict[tuple[object, ...], _Row] = {}
    for report in reports:
        sensors = report.probes.get("gpu_sensors")
        measured = sensors is not None and sensors.status in _SEEN
        gpus = len(report.records("gpu_sensors")) if measured else None
        key = (report.status, gpus, _versions(report), _notes(report))
        if key not in rows:
            rows[key] = _Row(*key)
        rows[key].add(report)
    return sorted(rows.values(), key=lambda row: (_ORDER.index(row.status), min(row.hosts)))


def _versions(report: NodeReport) -> tuple[str, ...]:
    found = {version.component: version.version for version in report.records("versions")}
    return tuple(f"{name} {found[name]}" for name in _VERSIONS if name in found)


def _notes(report: NodeReport) -> tuple[str, ...]:
    """What a reader should know about the node beside its numbers.

    The node's own reason stands in only where no probe says more: it often names a pid or a time,
    and would keep like nodes from sharing a row.
    """
    notes = []
    for name in sorted(report.probes):
        status = report.probes[name].status
        if status not in _SEEN:
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


def _row_lines(row: TableRow, widths: Sequence[int], page: ReportPage) -> list[str]:
    cells, notes = list(row.cells), list(row.notes)
    names = wrap(cells[0], widths[0])
    mount_point = terminal(row.mount_point)
    if sum(widths[:-1]) + len(_GAP) * len(cells) + len(cells[-1] + mount_point) <= page.width:
        cells[-1] = f"{cells[-1]} {mount_point}"
    elif mount_point:
        notes.insert(0, f"fullest file system {row.mount_point}")
    status = page.paint(cells[1].ljust(widths[1]), _COLOURS[row.status])
    lines = [_line([names[0], status, *cells[2:]], [widths[0], len(status), *widths[2:]])]
    lines += names[1:]
    if notes:
        lines += page.wrap(terminal("; ".join(notes)), _GAP * 2, _GAP * 2)
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return _GAP.join(padded).rstrip()
