"""Memory and file systems that run out; storage on which all work stalls."""

from collections.abc import Iterator, Sequence

from raydiag.model import Confidence, Finding, Severity, Snapshot
from raydiag.probes.memory import MemoryState
from raydiag.probes.storage import MountUsage
from raydiag.rules.cpu import settled_loads
from raydiag.rules.grades import critical_if, warning_if
from raydiag.rules.machines import Machine, each_record, machines

_GIB = 1 << 30
_JUDGED_FROM_BYTES = 64 << 10  # smaller ones hold control files, not data
_LOW_FRACTION, _LOW_BYTES = 0.05, 20 * _GIB
_FULL_FRACTION = 0.01
_SHARED_MEMORY, _SHARED_MEMORY_LOW_BYTES = "/dev/shm", 64 << 20
_STALLED_MINUTE, _STALLED_5_MINUTES = 20, 10  # percent of the time in which nothing else ran
_PRESSURE_FRACTION = 0.90


def full_disks(snapshot: Snapshot) -> Iterator[Finding]:
    """File systems where little or nothing more can be written."""
    for machine, mount in _mounts(snapshot):
        severity = _disk_severity(mount)
        if severity:
            available = mount.available_bytes
            text = f"{_size(available)} of {_size(mount.total_bytes)} available"
            yield _finding("disk-full", severity, (machine, mount), text, available)


def exhausted_inodes(snapshot: Snapshot) -> Iterator[Finding]:
    """File systems where few or no more files can be made, however much space is left."""
    for machine, mount in _mounts(snapshot):
        severity = _inode_severity(mount)
        # XFS makes inodes out of free space, so a full one has none left either.
        if severity and not (mount.fs_type == "xfs" and _disk_severity(mount)):
            text = (
                f"{mount.free_inodes} of {mount.total_inodes} inodes free "
                f"({_size(mount.available_bytes)} of {_size(mount.total_bytes)} available)"
            )
            yield _finding("inode-exhausted", severity, (machine, mount), text, mount.free_inodes)


def stalled_storage(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes where, for minutes, no work ran because every runnable task waited for I/O.

    A warning when threads wait for I/O in both samples, else a note: a save may have ended.
    On a host without work of the job, a single copy is all that could run.
    """
    for load in settled_loads(snapshot):
        last_minute = load.now.pressure.get("io_full_avg60", 0)
        last_minutes = load.now.pressure.get("io_full_avg300", 0)
        if last_minute <= _STALLED_MINUTE or last_minutes <= _STALLED_5_MINUTES:
            continue
        if not load.machine.working_processes():
            continue
        text = (
            f"all tasks waited for I/O {last_minute:g} % of the last minute, {last_minutes:g} % of "
            f"the last 5; {load.now.blocked} threads wait for it now"
        )
        evidence = load.machine.evidence("/proc/pressure/io", text, last_minutes)
        severity = warning_if(min(load.first.blocked, load.now.blocked))
        weight = {"severity": severity, "confidence": Confidence.LIKELY}
        yield load.machine.finding("storage-stall", evidence, **weight)


def _mounts(snapshot: Snapshot) -> Iterator[tuple[Machine, MountUsage]]:
    """The file systems that are large enough to hold data, with their machines."""
    for machine in machines(snapshot):
        for mount in _without_copies(machine.records(MountUsage)):
            if mount.total_bytes >= _JUDGED_FROM_BYTES:
                yield machine, mount


def _without_copies(mounts: Sequence[MountUsage]) -> Iterator[MountUsage]:
    """The file systems without the overlays of containers on one of them, which show its numbers.

    Not compared to the byte: others write while the mounts are read one after another.
    """
    seen_numbers = set()
    for mount in sorted(mounts, key=_is_overlay):
        numbers = (mount.total_bytes, _disk_severity(mount), _inode_severity(mount))
        if not _is_overlay(mount) or numbers not in seen_numbers:
            yield mount
        seen_numbers.add(numbers)


def _is_overlay(mount: MountUsage) -> bool:
    return mount.fs_type == "overlay"


def _finding(
    failure_class: str, severity: Severity, place: tuple[Machine, MountUsage], text: str, value: int
) -> Finding:
    machine, mount = place
    point, named = mount.mount_point, f"{mount.device} ({mount.fs_type}): {text}"
    evidence = machine.evidence(point, named, float(value))
    return machine.finding(failure_class, evidence, device=point, severity=severity)


def _disk_severity(mount: MountUsage) -> Severity | None:
    """Little of a large file system may be plenty, so both the share and the size must be low."""
    available = mount.available_bytes
    full = available < mount.total_bytes * _FULL_FRACTION
    if mount.mount_point == _SHARED_MEMORY:  # Ray's object store fills it by design
        return Severity.CRITICAL if full and available < _SHARED_MEMORY_LOW_BYTES else None
    if available >= _LOW_BYTES or available >= mount.total_bytes * _LOW_FRACTION:
        return None
    return critical_if(full)


def _inode_severity(mount: MountUsage) -> Severity | None:
    if mount.total_inodes <= 0 or mount.free_inodes >= mount.total_inodes * _FULL_FRACTION:
        return None
    return critical_if(mount.free_inodes <= 0)


def _size(size_bytes: int) -> str:
    if abs(size_bytes) < 1024:
        return f"{size_bytes} B"
    value, units = size_bytes / 1024, ["PiB", "TiB", "GiB", "MiB", "KiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop()
    return f"{value:.1f} {units[-1]}"


def cgroup_memory_pressure(snapshot: Snapshot) -> Iterator[Finding]:
    """Control groups that have filled their limit with memory the kernel cannot just drop.

    Page cache, active or not, is given back before anything is killed, so it does not count as
    used; where its size is unknown all of it counts, and the finding is a possible one only. OOM
    counters run since boot and decide nothing.
    """
    for machine, group in each_record(snapshot, MemoryState):
        used_bytes, limit_bytes = group.cgroup_current_bytes, group.cgroup_limit_bytes
        if used_bytes is None or not limit_bytes:
            continue
        inactive, active = group.cgroup_inactive_file_bytes, group.cgroup_active_file_bytes
        counted, confidence = "page cache included", Confidence.POSSIBLE
        if inactive is not None and active is not None:
            counted, confidence = "without page cache", Confidence.CONFIRMED
            used_bytes -= inactive + active
        fraction = used_bytes / limit_bytes
        if fraction >= _PRESSURE_FRACTION:
            text = f"{used_bytes} of {limit_bytes} bytes in use ({fraction:.1%}), {counted}"
            evidence = machine.evidence(group.cgroup_path, text, fraction)
            weight = {"severity": Severity.WARNING, "confidence": confidence}
            yield machine.finding("cgroup-memory-pressure", evidence, **weight)
