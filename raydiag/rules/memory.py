"""Memory of the node and of the control group that the job runs in."""

from __future__ import annotations

from collections.abc import Iterator

from raydiag.model import Confidence, Finding, Severity, Snapshot
from raydiag.probes.memory import MemoryState
from raydiag.rules.machines import Machine, each_record

_PRESSURE_FRACTION = 0.90


def cgroup_memory_pressure(snapshot: Snapshot) -> Iterator[Finding]:
    """Control groups that have filled their limit with memory the kernel cannot just drop.

    Page cache, active or not, is given back before anything is killed, so it does not count as
    used; where its size is unknown all of it counts, and the finding is a possible one only. OOM
    counters run since boot and decide nothing.
    """
    for machine, group in each_record(snapshot, MemoryState):
        if group.cgroup_current_bytes is None or not group.cgroup_limit_bytes:
            continue
        cache_bytes = _page_cache_bytes(group)
        used_bytes = group.cgroup_current_bytes - (cache_bytes or 0)
        if used_bytes / group.cgroup_limit_bytes >= _PRESSURE_FRACTION:
            yield _finding(machine, group, used_bytes, cache_bytes is not None)


def _page_cache_bytes(group: MemoryState) -> int | None:
    inactive, active = group.cgroup_inactive_file_bytes, group.cgroup_active_file_bytes
    return None if inactive is None or active is None else inactive + active


def _finding(machine: Machine, group: MemoryState, used_bytes: int, without_cache: bool) -> Finding:
    limit_bytes = group.cgroup_limit_bytes or 1
    fraction = used_bytes / limit_bytes
    counted = "without page cache" if without_cache else "page cache included"
    text = f"{used_bytes} of {limit_bytes} bytes in use ({fraction:.1%}), {counted}"
    return Finding(
        "cgroup-memory-pressure",
        host=machine.name,
        severity=Severity.WARNING,
        confidence=Confidence.CONFIRMED if without_cache else Confidence.POSSIBLE,
        evidence=(machine.evidence(group.cgroup_path, text, fraction),),
    )
