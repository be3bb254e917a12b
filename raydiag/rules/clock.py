"""Clock skew: clocks that differ from the head's by more than the measurement leaves open.

Times of nodes with such a clock are corrected to the head's, so that onsets can be compared.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

from raydiag import catalog
from raydiag.model import Evidence, Finding, NodeReport, Snapshot
from raydiag.rules.grades import critical_if
from raydiag.rules.machines import machines

# Clocks that are kept by NTP agree far better; a smaller offset does not blur the order of events.
_AGREES_WITHIN_S = 1.0

# Probes whose records hold times of the node's clock, and the fields that do.
_TIME_FIELDS = {
    "kernel_log": ("time_s",),
    "processes": ("start_time_s",),
    "previous_boot": ("time_s",),
    "exporter": ("data_time_s", "restarts"),
}
_SKEWED_S = 2.0  # less is what readers of logs and Prometheus can bear
_SEVERE_S = 60.0  # more expires tokens and certificates
# Hosts that agree with each other and not with the head: from how many on the head is wrong.
_MAJORITY, _FEWEST = 0.8, 3
_AGREE_WITHIN_S = 1.0
_SOURCE = "clock of the node minus clock of the head"


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


class _Offset(NamedTuple):
    """Bounds in seconds between which a clock is ahead of the head's."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The most likely offset."""
        return sum(self) / 2

    @property
    def is_skewed(self) -> bool:
        """Whether the clock is off for certain."""
        return self.low > _SKEWED_S or self.high < -_SKEWED_S

    def contains(self, offset_s: float) -> bool:
        """Whether this offset is possible, or nearly so."""
        return self.low - _AGREE_WITHIN_S <= offset_s <= self.high + _AGREE_WITHIN_S

    def __str__(self) -> str:
        """`31.2 to 31.9 s ahead of the head's clock`."""
        near, far = sorted(map(abs, self))
        direction = "ahead of" if self.low > 0 else "behind"
        return f"{near:.1f} to {far:.1f} s {direction} the head's clock"


def skewed_clocks(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts whose clock is off for certain; one finding without host when it is the head's."""
    offsets = dict(_offsets(snapshot))
    agreeing = _agreeing_against_head(offsets)
    if agreeing:
        lows, highs = zip(*agreeing.values(), strict=True)
        joint = _Offset(min(lows), max(highs))
        text = f"{len(agreeing)} of {len(offsets)} hosts: {joint}"
        of_head = catalog.variant("clock-skew", "of-the-head")
        yield replace(_finding(snapshot, None, joint, text), **of_head)
    for host, offset in offsets.items():
        if host not in agreeing and offset.is_skewed:
            yield _finding(snapshot, host, offset, str(offset))


def _offsets(snapshot: Snapshot) -> Iterator[tuple[str, _Offset]]:
    """By host; several Ray nodes of one machine have one clock, and narrow it down."""
    for machine in machines(snapshot):
        bounds = filter(None, map(attrgetter("clock_offset_s"), machine.reports))
        lows, highs = zip((-math.inf, math.inf), *bounds, strict=True)
        offset = _Offset(max(lows), min(highs))
        # Infinite where it was not measured; contrary where the clock was set in between.
        if -math.inf < offset.low <= offset.high:
            yield machine.name, offset


def _agreeing_against_head(offsets: Mapping[str, _Offset]) -> dict[str, _Offset]:
    """Nearly all hosts, where they agree with each other and not with the head; else none."""
    skewed = {host: offset for host, offset in offsets.items() if offset.is_skewed}
    if not skewed:
        return {}
    usual_s = median(map(attrgetter("middle"), skewed.values()))
    agreeing = {host: offset for host, offset in skewed.items() if offset.contains(usual_s)}
    # The head itself does not differ from the head.
    if len(agreeing) < max(_FEWEST, _MAJORITY * (len(offsets) - 1)):
        return {}
    return agreeing


def _finding(snapshot: Snapshot, host: str | None, offset: _Offset, text: str) -> Finding:
    evidence = (Evidence(_SOURCE, text, offset.middle, snapshot.time),)
    severity = critical_if(min(map(abs, offset)) > _SEVERE_S)
    return Finding("clock-skew", host=host, severity=severity, evidence=evidence)
