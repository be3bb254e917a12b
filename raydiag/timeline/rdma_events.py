"""RDMA retransmits as events: on which host and port, and what training did meanwhile.

Collectives are synchronous: one bad link slows or stops the whole job, so the test of a cause is
whether throughput falls with the retransmits and recovers with their end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydiag.timeline import known_values
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.masked_tables import MaskedTables
from raydiag.timeline.queries import RDMA_RETX, RDMA_TIMEOUTS
from raydiag.timeline.threshold_spans import Span, above
from raydiag.timeline.training_series import TGS
from raydiag.tsdb.series import Series

BURST_PER_S = 1.0  # packets; fewer are noise unless they go on
BEFORE_STALL_S, _INTO_STALL_S = 300.0, 120.0  # of a burst that may have set it off
FLOOD_PER_S, _FLOOD_S = 100.0, 45.0  # packets that lasts to the end of what is known: no burst
_BACKGROUND = 10.0  # times what all hosts do all the time
_SAME_EVENT_S = 300.0  # timeouts so near to retransmits of the host are of the same event
_PORT_SHARE = 0.6  # of a host's retransmits on one port, to name the port
_SLOWER = 0.02  # of throughput
_BACK = 0.98  # of throughput before
_BACK_STEPS = 2
_MIN_STEPS = 5


@dataclass(frozen=True)
class RdmaEvent:
    """One stretch of retransmits on one host."""

    host: str
    span: Span  # of the rate, packets/s
    timeouts_per_s: float  # highest rate of ACK timeouts in it
    device: str | None
    slower: float | None  # share of throughput that was missing meanwhile; None: nothing says
    came_back: bool | None  # within two steps after its end; None: it did not end, or no steps

    @property
    def notable(self) -> bool:
        """More than a few packets once."""
        return self.span.sustained or self.span.peak >= BURST_PER_S or self.timeouts_per_s > 0

    @property
    def lasts(self) -> bool:
        """More than a burst: it went on for minutes, or for a while and at the end it still did."""
        if self.span.sustained:
            return self.span.peak >= BURST_PER_S
        is_flood = self.span.peak >= FLOOD_PER_S and self.span.lasted_s >= _FLOOD_S
        return is_flood and self.span.open


def events(tables: MaskedTables) -> list[RdmaEvent]:
    """Of all hosts, by time: retransmits, and timeouts that no retransmits go with."""
    retransmits, timeouts = tables.table("rdma-retransmits"), tables.table("rdma-timeouts")
    rdma_events = [_event(tables, host, span, retransmits) for host, span in _spans(retransmits)]
    starts: dict[str, list[float]] = {}
    for event in rdma_events:
        starts.setdefault(event.host, []).append(event.span.start)
    for host, span in _spans(timeouts):
        near = [abs(start - span.start) <= _SAME_EVENT_S for start in starts.get(host, ())]
        if not any(near):
            rdma_events.append(_event(tables, host, span, timeouts))
    return sorted(rdma_events, key=lambda event: event.span.start)


def is_burst_before(span: Span, stall_start: float) -> bool:
    """A burst that may have set a stall off."""
    return is_near(span, stall_start) and span.peak >= BURST_PER_S


def is_near(span: Span, stall_start: float) -> bool:
    """Whether a stretch touches the time around the start of a stall."""
    return stall_start - BEFORE_STALL_S <= span.end and span.start <= stall_start + _INTO_STALL_S


def is_slower(slower: float | None) -> bool:
    """Whether a share of missing throughput is more than noise."""
    return slower is not None and slower > _SLOWER


def slowdown(tables: MaskedTables, stretches: Sequence[tuple[float, float]]) -> float | None:
    """Share of throughput that is missing in some stretches of time; below zero: it was faster.

    Steps that save, or that warm up, count on neither side.
    """
    series = tables.training.throughput
    if series is None or not len(series):
        return None
    steady, inside = _steady_steps(tables, series), _inside(series, stretches)
    usual, meanwhile = series.values[steady & ~inside], series.values[steady & inside]
    if usual.size < _MIN_STEPS or not meanwhile.size:
        return None
    return float(1.0 - np.median(meanwhile) / np.median(usual))


def held_up(tables: MaskedTables, stretches: Sequence[tuple[float, float]]) -> float | None:
    """Share of the steps that did not end in some stretches of time, though only one was long."""
    pace = tables.training.pace
    if pace is None:
        return None
    steady, inside = _steady_steps(tables, pace), _inside(pace, stretches)
    usual, meanwhile = pace.values[steady & ~inside], pace.values[steady & inside]
    if usual.size < _MIN_STEPS or not meanwhile.size:
        return None
    return float(1.0 - meanwhile.size / np.sum(1.0 / meanwhile) / np.median(usual))


def _spans(table: ResultTable) -> Iterator[tuple[str, Span]]:
    """Of a rate: what every host does all the time is no fault of one."""
    usual = known_values.median(table.values.ravel())
    floor = _BACKGROUND * (usual or 0.0)
    for subject, row in table:
        for span in above(table, row, floor):
            yield subject.host, span


def _event(tables: MaskedTables, host: str, span: Span, table: ResultTable) -> RdmaEvent:
    start, end = span.start - table.step_s, max(span.start, span.end - table.lookback_s)
    slower = slowdown(tables, [(start, end)])
    # A rate lags, so the end is known to within its look-back: the later bound is the fair one.
    came_back = None if span.open or not slower else _came_back(tables, start, span.end)
    timeouts_per_s = _highest_timeouts(tables, host, span)
    return RdmaEvent(host, span, timeouts_per_s, _port(tables, host, span), slower, came_back)


def _highest_timeouts(tables: MaskedTables, host: str, span: Span) -> float:
    row = tables.table("rdma-timeouts").between(span.start, span.end).row(host)
    if row is None:
        return 0.0
    return known_values.highest(row) or 0.0


def _port(tables: MaskedTables, host: str, span: Span) -> str | None:
    """The network port that most of a host's retransmits are of."""
    table = tables.table("rdma-ports").pick(hosts=[host]).between(span.start, span.end)
    for metric in (RDMA_RETX, RDMA_TIMEOUTS):
        totals: dict[str, float] = {}
        for subject, row in table.pick(metric):
            if subject.device is not None:
                totals[subject.device] = float(np.nansum(row))
        port = max(totals, key=totals.__getitem__, default=None)
        if port is not None and totals[port] > _PORT_SHARE * sum(totals.values()):
            return port
    return None


def _came_back(tables: MaskedTables, start: float, end: float) -> bool | None:
    """Whether throughput was back two steps after `end`; None where nothing says."""
    series = tables.training.throughput
    if series is None or not len(series):
        return None
    steady = _steady_steps(tables, series)
    step_s = tables.training.step_time_s or 0.0
    before = series.values[steady & (series.times < start)]
    after = np.flatnonzero(steady & (series.times - step_s >= end))
    if before.size < _MIN_STEPS or after.size <= _BACK_STEPS:
        return None
    throughput = np.median(series.values[after[_BACK_STEPS : _BACK_STEPS + 5]])
    return bool(throughput >= _BACK * np.median(before))


def _steady_steps(tables: MaskedTables, series: Series) -> NDArray[np.bool_]:
    return tables.context.judged(series.times, "", TGS)


def _inside(series: Series, stretches: Sequence[tuple[float, float]]) -> NDArray[np.bool_]:
    """Steps that overlap one of the stretches; a step lasts from the one before it to its time."""
    begins = np.concatenate([series.times[:1], series.times[:-1]])
    inside = np.zeros(series.times.size, dtype=np.bool_)
    for start, end in stretches:
        inside |= (series.times > start) & (begins < end)
    return inside
