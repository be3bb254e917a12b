"""File systems that are full, or nearly so, in bytes or in inodes."""

from __future__ import annotations

from collections.abc import Iterator

from raydiag.model import Evidence, Finding, Severity, Snapshot
from raydiag.probes.storage import MountUsage
from raydiag.rules.nodes import by_host, distinct

_GIB = 1 << 30
_JUDGED_FROM_BYTES = 64 << 10  # smaller ones hold control files, not data
_LOW_FRACTION, _LOW_BYTES = 0.05, 20 * _GIB
_FULL_FRACTION = 0.01


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


def _mounts(snapshot: Snapshot) -> Iterator[tuple[str, MountUsage, float | None]]:
    """(host, file system, when it was measured)."""
    for host, reports in by_host(snapshot).items():
        mounts: list[MountUsage] = distinct(reports, "storage", "mount_point")
        for mount in mounts:
            if mount.total_bytes >= _JUDGED_FROM_BYTES:
                yield host, mount, reports[0].collected_at or None


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
    available = mount.available_bytes
    if available < mount.total_bytes * _FULL_FRACTION:
        return Severity.CRITICAL
    if available < mount.total_bytes * _LOW_FRACTION and available < _LOW_BYTES:
        return Severity.WARNING
    return None


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
