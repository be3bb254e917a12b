"""Times of nodes whose clock is off, told by the head's clock: what came first is asked of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raydiag.model import NodeReport, ProbeResult, Snapshot

# Clocks that are kept by NTP agree far better; what is off by less blurs no order of events.
_AGREES_WITHIN_S = 1.0

# Probes whose records carry times of the node's clock, and the fields that do.
_TIMES = {
    "kernel_log": ("time_s",),
    "processes": ("start_time_s",),
    "previous_boot": ("time_s",),
    "exporter": ("data_time_s", "restarts"),
}


def clock_offset_s(report: NodeReport) -> float:
    """How far the node's clock is ahead of the head's; 0 where it may agree, or is not known."""
    if report.clock_offset_s is None:
        return 0.0
    low, high = report.clock_offset_s
    return 0.0 if low <= _AGREES_WITHIN_S and high >= -_AGREES_WITHIN_S else (low + high) / 2


def on_one_clock(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the times of its kernel logs and processes by the head's clock."""
    return replace(snapshot, nodes=[_moved(report) for report in snapshot.nodes])


def _moved(report: NodeReport) -> NodeReport:
    offset_s = clock_offset_s(report)
    if not offset_s:
        return report
    probes = {
        name: _by(-offset_s, result, *_TIMES[name]) if name in _TIMES else result
        for name, result in report.probes.items()
    }
    collected_at = report.collected_at and report.collected_at - offset_s
    return replace(report, probes=probes, collected_at=collected_at)


def _by(seconds: float, result: ProbeResult, *fields: str) -> ProbeResult:
    def moved(record: Any) -> Any:
        return replace(record, **{name: _later(getattr(record, name), seconds) for name in fields})

    return replace(
        result,
        records=[moved(record) for record in result.records],
        later=[moved(record) for record in result.later],
    )


def _later(time_s: Any, seconds: float) -> Any:
    """A time, several, or None."""
    if isinstance(time_s, tuple):
        return tuple(one + seconds for one in time_s)
    return None if time_s is None else time_s + seconds
