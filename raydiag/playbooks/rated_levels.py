"""What a part keeps by design while a job trains, and does not any more.

The clock of a GPU's memory, the speed of its PCIe link and the rate of an RDMA port are the same
all the time. Each is judged against what the same host had before. One that fell is a cause where
training got slower, and a remark where it did not. Memory that gets hot lowers its clock.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from operator import attrgetter

from raydiag.model import Confidence
from raydiag.playbooks.report_writer import ReportWriter, likely_if, remark_unless
from raydiag.playbooks.tables import ROWS
from raydiag.timeline import follow_up, known_values
from raydiag.timeline.answers import ResultTable, Subject
from raydiag.timeline.queries import rated_parts
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import Span, above, below
from raydiag.tsdb.series import Floats, Query

MEMORY_CLOCK, PCIE_SPEED = "hw_gpu_memory_clock_mhz", "hw_gpu_pcie_speed"
MEMORY_HEAT, PORT_RATE = "hw_gpu_memory_temperature_celsius", "hw_rdma_port_rate_bytes"
GPU_ROWS = {"memory-clock": MEMORY_CLOCK, "pcie-speed": PCIE_SPEED, "memory-heat": MEMORY_HEAT}
PORT_ROWS = {"port-rate": PORT_RATE}
_FELL = 0.9  # of what it was
_HOT_C, _ROSE_C = 95.0, 10.0  # a GPU's memory, above what was usual for it
_QUERY, _FINE = "parts", "parts-fine"
_NAMED = 8


def fine_parts(timeline: RunTimeline) -> Iterator[Query]:
    """Which GPU or port it is, of hosts where one of them is not as it was."""
    departures = chain.from_iterable(map(partial(_departed, timeline), _metrics()))
    hosts, context = follow_up.first_hosts(departures), timeline.context
    rows = len(_metrics()) * follow_up.PER_HOST
    promql = rated_parts("host, gpu, device, port", "$match")
    yield from follow_up.fine_query(context, _FINE, promql, hosts, rows)


def _metrics() -> tuple[str, ...]:
    return (*GPU_ROWS.values(), *PORT_ROWS.values())


def judge_rated(timeline: RunTimeline, report: ReportWriter, rows: dict[str, str]) -> None:
    """A finding for each host that lost some of what it had; `rows`: of the report, by metric."""
    for row, metric in rows.items():
        if not len(timeline.table(_QUERY).pick(metric)):
            report.row(row, None, f"{metric}: metric absent")
            continue
        departures = _departed(timeline, metric)
        for host in list(departures)[:_NAMED]:
            _report_part(timeline, report, row, host, departures[host])
        if not departures:
            report.row(row, False, "as before on every host")


def _departed(timeline: RunTimeline, metric: str) -> dict[str, Span]:
    """Hosts that left their level for minutes, with the first such time."""
    table, departures = timeline.steady(_QUERY).pick(metric), {}
    for subject, row in table:
        spans = _spans(table, row, metric)
        first = next(filter(attrgetter("sustained"), spans), None)
        if first is not None:
            departures[subject.host] = first
    return departures


def _spans(table: ResultTable, row: Floats, metric: str) -> list[Span]:
    usual = known_values.median(row[: max(3, row.size // 3)])
    if not usual:
        return []
    if metric == MEMORY_HEAT:
        return above(table, row, max(_HOT_C, usual + _ROSE_C))
    return below(table, row, _FELL * usual)


def _report_part(
    timeline: RunTimeline, report: ReportWriter, row: str, host: str, span: Span
) -> None:
    metric = {**GPU_ROWS, **PORT_ROWS}[row]
    felt = timeline.slowdown is not None and timeline.slowdown.overlaps(span.start, span.end)
    part = _odd_part(timeline, metric, host, span)
    table = timeline.steady(_QUERY)
    before = known_values.median(table.pick(metric, [host]).between(0.0, span.start).values)
    report.finding(
        row,
        f"{metric}: {span.peak:.4g}, {before or 0.0:.4g} before",
        host=host,
        gpu=part.gpu if part else None,
        device=part.device if part else None,
        value=span.peak,
        period=report.period(span, table.step_s + timeline.context.resolution_s()),
        confidence=likely_if(felt) if metric == MEMORY_HEAT else _confidence(felt),
        severity=remark_unless(felt),
        facts={"slower_part": float(felt)},
        failure_class=ROWS[row].failure_class,
    )


def _confidence(felt: bool) -> Confidence:
    """What is rated cannot differ by chance."""
    return Confidence.CONFIRMED if felt else Confidence.POSSIBLE


def _odd_part(timeline: RunTimeline, metric: str, host: str, span: Span) -> Subject | None:
    """The GPU or port that is furthest off; None where none was asked for."""
    table = timeline.of_host(_FINE, host, metric).between(span.start, span.end)
    sign, off_by = -1.0 if metric == MEMORY_HEAT else 1.0, dict[Subject, float]()
    for subject, row in table:
        median = known_values.median(row)
        if median is not None:
            off_by[subject] = sign * median
    return min(off_by, key=off_by.__getitem__, default=None)
