"""File systems that are full, or nearly so, in bytes or in inodes; storage that all wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydiag.model import Confidence, Evidence, Finding, NodeReport, Severity, Snapshot
from raydiag.probes.processes import RayProcess
from raydiag.probes.storage import MountUsage
from raydiag.rules.cpu import settled
from raydiag.rules.nodes import by_host, distinct

_GIB = 1 << 30
_JUDGED_FROM_BYTES = 64 << 10  # smaller ones hold control files, not data
_LOW_FRACTION, _LOW_BYTES = 0.05, 20 * _GIB
_FULL_FRACTION = 0.01
_SHARED_MEMORY, _SHARED_MEMORY_LOW_BYTES = "/dev/shm", 64 << 20
_STALLED_MINUTE, _STALLED_5_MINUTES = 20, 10  # percent of the time in which nothing else ran


def full_disks(snapshot: Snapshot) -> Iterator[Finding]:
    """File systems where little or nothing more can be written."""
    for host, mount, time in _mounts(snapshot):
        severity = _disk_severity(mount)
        available = mount.available_bytes
        if severity:
            text = f"{_size(available)} of {_size(mount.total_bytes)} available"
            yield _finding("disk-full", severity, host, mount, text, available, time)


def exhausted_inodes(snapshot: Snapshot) -> Iterator[Finding]:
    """File systems where few or no more files can be made, however much space is left."""
    for host, mount, time in _mounts(snapshot):
        severity = _inode_severity(mount)
        # XFS makes inodes out of free space, so a full one has none left either.
        if severity and not (mount.fs_type == "xfs" and _disk_severity(mount)):
            text = (
                f"{mount.free_inodes} of {mount.total_inodes} inodes free "
                f"({_size(mount.available_bytes)} of {_size(mount.total_bytes)} available)"
            )
            yield _finding("inode-exhausted", severity, host, mount, text, mount.free_inodes, time)


def stalled_storage(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes on which, for minutes, work stood still because all that could run waited for I/O.

    A warning when threads wait for I/O in both samples, else a remark: a save has ended, perhaps.
    On a host without work of the job, one copy is all that could run.
    """
    at_work = {host for host, reports in by_host(snapshot).items() if _runs_work(reports)}
    for load in settled(snapshot):
        if load.host not in at_work:
            continue
        minute = load.now.pressure.get("io_full_avg60", 0)
        minutes = load.now.pressure.get("io_full_avg300", 0)
        if minute <= _STALLED_MINUTE or minutes <= _STALLED_5_MINUTES:
            continue
        blocked = min(load.first.blocked, load.now.blocked)
        text = (
            f"everything waited for I/O {minute:g} % of the last minute, {minutes:g} % of the last "
            f"5; {load.now.blocked} threads wait for it now"
        )
        yield Finding(
            "storage-stall",
            host=load.host,
            severity=Severity.WARNING if blocked else Severity.INFO,
            confidence=Confidence.LIKELY,
            evidence=(Evidence("/proc/pressure/io", text, minutes, load.time),),
        )


def _runs_work(reports: Sequence[NodeReport]) -> bool:
    processes: list[RayProcess] = distinct(reports, "processes", "pid", "start_time_s")
    return any(one.role in ("worker", "child") and one.command != "ray::IDLE" for one in processes)


def _mounts(snapshot: Snapshot) -> Iterator[tuple[str, MountUsage, float | None]]:
    """(host, file system, when it was measured)."""
    for host, reports in by_host(snapshot).items():
        mounts: list[MountUsage] = distinct(reports, "storage", "mount_point")
        for mount in _without_copies(mounts):
            if mount.total_bytes >= _JUDGED_FROM_BYTES:
                yield host, mount, reports[0].collected_at or None


def _without_copies(mounts: Sequence[MountUsage]) -> Iterator[MountUsage]:
    """The file systems without the overlays of containers on one of them, which show its numbers.

    Not compared to the byte: others write while the mounts are read one after another.
    """
    seen = set()
    for mount in sorted(mounts, key=lambda mount: mount.fs_type == "overlay"):
        numbers = (mount.total_bytes, _disk_severity(mount), _inode_severity(mount))
        if mount.fs_type != "overlay" or numbers not in seen:
            yield mount
        seen.add(numbers)


def _finding(
    failure_class: str,
    severity: Severity,
    host: str,
    mount: MountUsage,
    text: str,
    value: int,
    time: float | None,
) -> Finding:
    named = f"{mount.device} ({mount.fs_type}): {text}"
    return Finding(
        failure_class,
        host=host,
        device=mount.mount_point,
        severity=severity,
        evidence=(Evidence(mount.mount_point, named, float(value), time),),
    )


def _disk_severity(mount: MountUsage) -> Severity | None:
    """Little of a large file system may be plenty, so both the share and the size must be low."""
    available = mount.available_bytes
    full = available < mount.total_bytes * _FULL_FRACTION
    if mount.mount_point == _SHARED_MEMORY:  # Ray's object store fills it by design
        return Severity.CRITICAL if full and available < _SHARED_MEMORY_LOW_BYTES else None
    if available >= _LOW_BYTES or available >= mount.total_bytes * _LOW_FRACTION:
        return None
    return Severity.CRITICAL if full else Severity.WARNING


def _inode_severity(mount: MountUsage) -> Severity | None:
    if mount.total_inodes <= 0 or mount.free_inodes >= mount.total_inodes * _FULL_FRACTION:
        return None
    return Severity.WARNING if mount.free_inodes > 0 else Severity.CRITICAL


def _size(size_bytes: int) -> str:
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} PiB"
