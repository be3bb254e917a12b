"""Memory of the node and of the control group that the job runs in."""

from __future__ import annotations

from collections.abc import Iterator

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.memory import MemoryState
from raydiag.rules.nodes import by_host, distinct

_PRESSURE_FRACTION = 0.90


def cgroup_memory_pressure(snapshot: Snapshot) -> Iterator[Finding]:
    """A control group that has filled its limit with memory the kernel cannot just drop.

    Page cache, active or not, is given back before anything is killed, so it does not count as
    used; where its size is unknown all of it counts, and the finding is a possible one only. OOM
    counters run since boot and decide nothing.
    """
    for host, reports in by_host(snapshot).items():
        groups: list[MemoryState] = distinct(reports, "memory", "cgroup_path", "cgroup_limit_bytes")
        for group in groups:
            current, limit = group.cgroup_current_bytes, group.cgroup_limit_bytes
            inactive, active = group.cgroup_inactive_file_bytes, group.cgroup_active_file_bytes
            if current is None or not limit:
                continue
            cache = None if inactive is None or active is None else inactive + active
            used = current - (cache or 0)
            fraction = used / limit
            if fraction < _PRESSURE_FRACTION:
                continue
            counted = "page cache not counted" if cache is not None else "page cache and all"
            yield Finding(
                "cgroup-memory-pressure",
                host=host,
                severity=Severity.WARNING,
                confidence=Confidence.POSSIBLE if cache is None else Confidence.CONFIRMED,
                evidence=(
                    Evidence(
                        group.cgroup_path,
                        f"{used} of {limit} bytes in use ({fraction:.1%}), {counted}",
                        value=fraction,
                        time=reports[0].collected_at or None,
                    ),
                ),
            )
