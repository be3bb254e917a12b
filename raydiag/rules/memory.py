"""Memory of the node and of the control group that the job runs in."""

from __future__ import annotations

from collections.abc import Iterator

from raydiag.model import Confidence, Finding, Severity, Snapshot
from raydiag.probes.memory import MemoryState
from raydiag.rules.machines import each_record

_PRESSURE_FRACTION = 0.90


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
