"""RDMA retransmits as events: on which host and port, and what training did meanwhile.

Collectives are synchronous: one bad link slows or stops the whole job, so the test of a cause is
whether throughput falls with the retransmits and comes back with their end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from raydiag.playbooks.queries import RDMA_RETX, RDMA_TIMEOUTS
from raydiag.playbooks.query_results import ResultTable
from raydiag.playbooks.spans import Span, above
from raydiag.playbooks.timeline import RunTimeline, middle
from raydiag.playbooks.training import TGS
from raydiag.tsdb.series import Floats, Series

BURST_PER_S = 1.0  # packets; fewer are noise unless they go on
_BACKGROUND = 10.0  # times what all hosts do all the time
_SHARE = 0.6  # of a host's retransmits on one port, to name the port
_SLOWER = 0.02  # of throughput
_BACK = 0.98  # of throughput before
_BACK_STEPS = 2
BEFORE_STALL_S, _INTO_STALL_S = 300.0, 120.0  # of a burst that may have set it off


@dataclass(frozen=True)
class Event:
    """One stretch of retransmits on one host."""

    host: str
    span: Span  # of the rate, packets/s
    timeouts_per_s: float  # highest rate of ACK timeouts in it
    device: Optional[str]
    slower: Optional[float]  # share of throughput that was missing meanwhile; None: nothing says
    came_back: Optional[bool]  # within two steps after its end; None: it did not end, or no steps

    @property
    def notable(self) -> bool:
        return self.span.sustained or self.span.peak >= BURST_PER_S or self.timeouts_per_s > 0


def events(scene: RunTimeline) -> list[Event]:
    """Of all hosts, by time."""
    if "rdma" not in scene.memory:
        scene.memory["rdma"] = _events(scene)
    found = scene.memory["rdma"]
    assert isinstance(found, list)
    return found


def _events(scene: RunTimeline) -> list[Event]:
    found = []
    retransmits, timeouts = scene.table("rdma-retransmits"), scene.table("rdma-timeouts")
    floor = background(retransmits)
    for where, row in retransmits:
        other = timeouts.row(where.host)
        for span in above(retransmits, row, floor):
            found.append(_event(scene, where.host, span, retransmits, timeouts, other))
    seen = {(one.host, one.span.start) for one in found}
    floor = background(timeouts)
    for where, row in timeouts:
        for span in above(timeouts, row, floor):
            near = [s for h, s in seen if h == where.host and abs(s - span.start) <= 300]
            if not near:
                found.append(_event(scene, where.host, span, timeouts, timeouts, row))
    return sorted(found, key=lambda one: one.span.start)


def before_stall(scene: RunTimeline, span: Span) -> bool:
    """A burst just before steps stopped."""
    stall = scene.stall
    if stall is None:
        return False
    near = stall.start - BEFORE_STALL_S <= span.end and span.start <= stall.start + _INTO_STALL_S
    return near and span.peak >= BURST_PER_S


def background(table: ResultTable) -> float:
    """What every host does all the time is no fault of one: ten times the job's own median."""
    usual = middle(table.values.ravel())
    return _BACKGROUND * usual if usual else 0.0


def _event(
    scene: RunTimeline,
    host: str,
    span: Span,
    table: ResultTable,
    timeouts: ResultTable,
    row: Optional[Floats],
) -> Event:
    peak = 0.0
    if row is not None:
        during = row[(timeouts.times >= span.start) & (timeouts.times <= span.end)]
        peak = float(np.nanmax(during)) if during.size and not np.isnan(during).all() else 0.0
    start, end = span.start - table.step_s, max(span.start, span.end - table.span_s)
    slower = slowdown(scene, [(start, end)])
    # A rate lags, so the end is known to within its look-back: the later bound is the fair one.
    back = None if span.open or not slower else came_back(scene, start, span.end)
    return Event(host, span, peak, port(scene, host, span), slower, back)


def port(scene: RunTimeline, host: str, span: Span) -> Optional[str]:
    """The network port that most of a host's retransmits are of."""
    table = scene.table("rdma-ports").pick(hosts=[host]).between(span.start, span.end)
    for metric in (RDMA_RETX, RDMA_TIMEOUTS):
        part = table.pick(metric)
        totals = {
            where.device: float(np.nansum(row)) for where, row in part if where.device is not None
        }
        best = max(totals, key=lambda name: totals[name], default=None)
        if best is not None and totals[best] > _SHARE * sum(totals.values()):
            return best
    return None


def slowdown(scene: RunTimeline, stretches: Sequence[tuple[float, float]]) -> Optional[float]:
    """Share of throughput that is missing in some stretches of time; below zero: it was faster.

    Steps that save, or that warm up, count on neither side.
    """
    series, keep = _throughput(scene)
    if series is None:
        return None
    inside = _inside(series, stretches)
    usual, then = series.values[keep & ~inside], series.values[keep & inside]
    if usual.size < 5 or not then.size:
        return None
    return float(1.0 - np.median(then) / np.median(usual))


def came_back(scene: RunTimeline, start: float, end: float) -> Optional[bool]:
    """Whether throughput was back two steps after `end`; None where nothing says."""
    series, keep = _throughput(scene)
    if series is None:
        return None
    each = scene.training.step_time_s or 0.0
    before = series.values[keep & (series.times < start)]
    after = np.flatnonzero(keep & (series.times - each >= end))
    usual = middle(before) if before.size >= 5 else None
    if usual is None or after.size <= _BACK_STEPS:
        return None
    return float(np.median(series.values[after[_BACK_STEPS : _BACK_STEPS + 5]])) >= _BACK * usual


def is_slower(slower: Optional[float]) -> bool:
    return slower is not None and slower > _SLOWER


def _throughput(scene: RunTimeline) -> tuple[Optional[Series], NDArray[np.bool_]]:
    """Tokens per second by step, and which steps are steady ones."""
    series = scene.training.series(TGS)
    if series is None or not len(series):
        return None, np.empty(0, dtype=np.bool_)
    return series, scene.context.judged(series.times, "", TGS)


def _inside(series: Series, stretches: Sequence[tuple[float, float]]) -> NDArray[np.bool_]:
    """Steps that overlap one of the stretches; a step lasts from the one before it to its time."""
    begins = np.concatenate([series.times[:1], series.times[:-1]])
    inside = np.zeros(series.times.size, dtype=np.bool_)
    for start, end in stretches:
        inside |= (series.times > start) & (begins < end)
    return inside
