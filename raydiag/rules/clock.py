"""Clock skew: clocks that differ from the head's by more than the measurement leaves open."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from raydiag import catalog
from raydiag.model import Evidence, Finding, Snapshot
from raydiag.rules.grades import critical_if
from raydiag.rules.machines import machines

_SKEWED_S = 2.0  # less is what readers of logs and Prometheus can bear
_SEVERE_S = 60.0  # more expires tokens and certificates
# Hosts that agree with each other and not with the head: from how many on the head is wrong.
_MAJORITY, _FEWEST = 0.8, 3
_AGREE_WITHIN_S = 1.0
_SOURCE = "clock of the node minus clock of the head"


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
