"""Times of nodes with clock skew, corrected to the head's clock, so that onsets can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from raydiag.model import NodeReport, Snapshot

# Clocks that are kept by NTP agree far better; a smaller offset does not blur the order of events.
_AGREES_WITHIN_S = 1.0

# Probes whose records hold times of the node's clock, and the fields that do.
_TIME_FIELDS = {
    "kernel_log": ("time_s",),
    "processes": ("start_time_s",),
    "previous_boot": ("time_s",),
    "exporter": ("data_time_s", "restarts"),
}


def clock_offset_s(report: NodeReport) -> float:
    """How far the node's clock is ahead of the head's; 0 where it may agree, or is not known."""
    low, high = report.clock_offset_s or (0.0, 0.0)
    if low <= _AGREES_WITHIN_S and high >= -_AGREES_WITHIN_S:
        return 0.0
    return (low + high) / 2


def on_one_clock(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the times of its kernel logs and processes by the head's clock."""
    return replace(snapshot, nodes=list(map(_corrected, snapshot.nodes)))


def _corrected(report: NodeReport) -> NodeReport:
    offset_s = clock_offset_s(report)
    if not offset_s:
        return report
    probes = dict(report.probes)
    for name in _TIME_FIELDS.keys() & probes.keys():
        result, shifted = probes[name], partial(_shifted_record, _TIME_FIELDS[name], -offset_s)
        records, later = list(map(shifted, result.records)), list(map(shifted, result.later))
        probes[name] = replace(result, records=records, later=later)
    collected_at = report.collected_at and report.collected_at - offset_s
    return replace(report, probes=probes, collected_at=collected_at)


def _shifted_record(fields: Sequence[str], seconds: float, record: Any) -> Any:
    shifted = {name: _shifted(getattr(record, name), seconds) for name in fields}
    return replace(record, **shifted)


def _shifted(time_s: Any, seconds: float) -> Any:
    """A time, several, or None."""
    if isinstance(time_s, tuple):
        return tuple(time + seconds for time in time_s)
    return None if time_s is None else time_s + seconds
