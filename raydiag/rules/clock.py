"""Clocks that differ from the head's, as surely as the way of question and answer can tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from raydiag.model import Evidence, Finding, Severity, Snapshot
from raydiag.rules.nodes import by_host

_SKEWED_S = 2.0  # less is what readers of logs and Prometheus can bear
_GRAVE_S = 60.0  # more expires tokens and certificates
_MOST, _FEWEST = 0.8, 3  # hosts that differ alike, from which on it is the head that is wrong
_ALIKE_S = 1.0
_SOURCE = "clock of the node minus clock of the head"

_Bounds = tuple[float, float]  # seconds, lowest and highest offset that fits what was measured


def skewed_clocks(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts whose clock is off for certain; one finding without host when it is the head's."""
    offsets = _offsets(snapshot)
    alike = _alike(offsets)
    if alike:
        some = alike.values()
        bounds = (min(low for low, _ in some), max(high for _, high in some))
        text = f"{len(alike)} of {len(offsets)} hosts: {_words(bounds)}"
        yield _finding(snapshot, None, bounds, text)
    for host, bounds in offsets.items():
        if host not in alike and _is_skewed(bounds):
            yield _finding(snapshot, host, bounds, _words(bounds))


def _offsets(snapshot: Snapshot) -> dict[str, _Bounds]:
    """By host; several Ray nodes of one machine have one clock, and narrow it down."""
    offsets = {}
    for host, reports in by_host(snapshot).items():
        measured = [one.clock_offset_s for one in reports if one.clock_offset_s is not None]
        bounds = (
            max((x for x, _ in measured), default=0),
            min((x for _, x in measured), default=0),
        )
        if measured and bounds[0] <= bounds[1]:  # else it was set in between
            offsets[host] = bounds
    return offsets


def _alike(offsets: Mapping[str, _Bounds]) -> dict[str, _Bounds]:
    """Nearly all hosts, where they agree with each other and not with the head; else none."""
    skewed = {host: bounds for host, bounds in offsets.items() if _is_skewed(bounds)}
    if not skewed:
        return {}
    usual = median(sum(bounds) / 2 for bounds in skewed.values())
    alike = {
        host: (low, high)
        for host, (low, high) in skewed.items()
        if low - _ALIKE_S <= usual <= high + _ALIKE_S
    }
    # The head itself does not differ from the head.
    enough = len(alike) >= max(_FEWEST, _MOST * (len(offsets) - 1))
    return alike if enough else {}


def _is_skewed(bounds: _Bounds) -> bool:
    return bounds[0] > _SKEWED_S or bounds[1] < -_SKEWED_S


def _words(bounds: _Bounds) -> str:
    """`31.2 to 31.9 s ahead of the head's clock`."""
    near, far = sorted(abs(bound) for bound in bounds)
    return f"{near:.1f} to {far:.1f} s {'ahead of' if bounds[0] > 0 else 'behind'} the head's clock"


def _finding(snapshot: Snapshot, host: str | None, bounds: _Bounds, text: str) -> Finding:
    grave = min(abs(bound) for bound in bounds) > _GRAVE_S
    return Finding(
        "clock-skew",
        host=host,
        severity=Severity.CRITICAL if grave else Severity.WARNING,
        evidence=(Evidence(_SOURCE, text, sum(bounds) / 2, snapshot.time),),
        title="" if host else "The head's clock is wrong",
        explanation=""
        if host
        else (
            "Nearly all hosts agree with each other and not with the head, so the head's clock is "
            "the wrong one. When something began, as told here, is by the clock of its own host."
        ),
    )
