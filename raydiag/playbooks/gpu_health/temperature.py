"""GPUs that are too hot, GPUs that run slower than the others, and whether the heat is why."""

from collections.abc import Mapping
from itertools import islice
from operator import attrgetter

import numpy as np

from raydiag.model import Confidence
from raydiag.playbooks.gpu_health.single_gpus import NAMED, OUTSIDE_STEADY, extreme_gpu
from raydiag.playbooks.report_writer import Period, ReportWriter, likely_if, remark_unless
from raydiag.timeline import known_values
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.deviations import departure
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.slowdowns import CLOCK_FELL, odd_changes
from raydiag.timeline.threshold_spans import Span, above, below
from raydiag.tsdb.series import Floats

WARM_C, HOT_C = 90.0, 100.0  # of AMD's hottest spot
# dcgm-exporter has the mean of the die, at which NVIDIA's boards slow down: from 83 to 87 degrees.
_MEAN_IS_COOLER_C = 7.0
_WARMER_C = 4.0  # above its level: it began
_SOON_S = 120.0
_CLOCK_FELL_S = 60.0  # so long before the heat a clock may fall for it
CLOCK_SHARE = 0.8  # of what the job's GPUs run at, at the same moment
_ALIKE = 1.05  # of the lowest clock of a host the mean is no more: all its GPUs are slow
_NEIGHBOURS_SHARE = 0.7  # of what the GPUs of the host run at: no job is slow on one GPU by design


def warm_hosts(timeline: RunTimeline) -> list[str]:
    """Hosts with a GPU above the threshold, the hottest first."""
    peaks = {}
    for subject, row in timeline.table("gpu-temperature").pick("max"):
        peak = known_values.highest(row)
        if peak is not None and peak > _slowing_c(timeline, subject.host):
            peaks[subject.host] = peak
    return sorted(peaks, key=peaks.__getitem__, reverse=True)


def _slowing_c(timeline: RunTimeline, host: str) -> float:
    """At how many degrees a GPU of the host may be slow for the heat."""
    dialects = timeline.context.discovery.dialects
    is_mean = any(dialect.name == "dcgm" and host in dialect.hosts for dialect in dialects)
    return WARM_C - _MEAN_IS_COOLER_C * is_mean


def judge_temperature(report: ReportWriter, slow_clocks: Mapping[str, Span]) -> None:
    """A hot moment is a remark; hot for minutes a concern; hot and slow, or too hot, throttles."""
    if report.cannot_judge("temperature"):
        return
    any_warm = False
    table = report.timeline.table("gpu-temperature").pick("max")
    for subject, row in table:
        clock = slow_clocks.get(subject.host)
        limit = WARM_C if clock is None else _slowing_c(report.timeline, subject.host)
        spans = above(table, row, limit)
        if spans:
            any_warm = True
            throttled = clock is not None and clock.start >= spans[0].start - _CLOCK_FELL_S
            _report_warm(report, table, row, subject.host, spans, throttled)
    if not any_warm:
        text = f"none above {WARM_C:.0f} degrees"
        report.row("temperature", False, text)
        report.rule_out("thermal-throttling", text)


def _report_warm(
    report: ReportWriter,
    table: ResultTable,
    row: Floats,
    host: str,
    spans: list[Span],
    throttled: bool,
) -> None:
    hottest = max(spans, key=attrgetter("peak"))
    gpu = extreme_gpu(report.timeline, "gpu-temperature-fine", host, hottest)
    hot = hottest.peak > HOT_C
    text = f"{hottest.peak:.0f} degrees at most"
    if throttled:
        text += ", and its clock fell"
    severe = hot or throttled
    meaning = "throttling" if severe else "of concern"
    report.row("temperature", True, f"{text}: {meaning}", [host], hottest.peak, gpu=gpu)
    lasting = any(span.sustained for span in spans)
    onset = _heating_start(report.timeline, table, row, host, spans[0].start)
    report.observe(
        "temperature",
        [report.evidence("gpu-temperature", text, hottest.peak, hottest.peak_time)],
        host=host,
        period=report.period(spans[-1], table.step_s, onset),
        confidence=Confidence.CONFIRMED if throttled else likely_if(hot),
        severity=remark_unless(severe or lasting),
        gpu=gpu,
    )


def _heating_start(
    timeline: RunTimeline, table: ResultTable, row: Floats, host: str, crossed: float
) -> float:
    """When it began to get hotter: the series of the hottest GPU left its level."""
    soon = Span(crossed, crossed + _SOON_S, 0.0, crossed, 1, 0.0, False)
    gpu = extreme_gpu(timeline, "gpu-temperature-fine", host, soon)
    fine = timeline.of_host("gpu-temperature-fine", host)
    fine_row = next((values for subject, values in fine if subject.gpu == gpu), None)
    if fine_row is not None:
        table, row = fine, fine_row
    return departure(timeline.context, table, row, host, crossed, _WARMER_C, 1, OUTSIDE_STEADY)


def slow_clocks(timeline: RunTimeline) -> dict[str, Span]:
    """Hosts with a GPU whose clock stays low: beside the job's, its neighbours, or its own before.

    A clock follows load, so it is judged in training.
    """
    table = timeline.steady("gpu-clock")
    lows, averages = table.pick("min"), table.pick("avg")
    if not len(lows) or not lows.times.size or timeline.trained is None:
        return {}
    usual = known_values.column_medians(averages.values)
    overall = known_values.median(usual) or 0.0
    slowdown = timeline.slowdown
    slow: dict[str, Span] = {}
    changes = odd_changes(lows, slowdown, CLOCK_FELL) if slowdown is not None else None
    fell_to = changes.halfway_down if changes is not None else {}
    for subject, row in lows:
        early = known_values.median(row[: max(3, row.size // 3)]) or overall
        floor = CLOCK_SHARE * np.minimum(usual, max(early, 1.0))
        neighbours = averages.row(subject.host, "avg")
        floor = np.fmax(floor, 0.0 if neighbours is None else _NEIGHBOURS_SHARE * neighbours)
        floor = np.fmax(floor, fell_to.get(subject.host, 0.0))
        for span in filter(attrgetter("sustained"), below(lows, row - floor, 0.0)):
            slow.setdefault(subject.host, span)
    return slow


def judge_clock(timeline: RunTimeline, report: ReportWriter) -> dict[str, Span]:
    """Hosts whose slowest GPU stays slow."""
    if report.cannot_judge("clock"):
        return {}
    table = timeline.steady("gpu-clock")
    slow = slow_clocks(timeline)
    if timeline.trained is None or not table.times.size:
        report.row("clock", None, "no clock while training went on")
    elif not slow:
        report.row("clock", False, "no GPU runs slower than the others")
    overall = known_values.median(table.pick("avg").values) or 0.0
    for host, span in islice(slow.items(), NAMED):
        _report_slow(report, table, host, span, overall)
    return slow


def _report_slow(
    report: ReportWriter, table: ResultTable, host: str, span: Span, overall: float
) -> None:
    timeline = report.timeline
    clocks = table.pick(hosts=[host]).between(span.start, span.end)
    lowest, gpu = float(np.nanmin(clocks.pick("min").values)), None
    if np.nanmedian(clocks.pick("avg").values) > _ALIKE * np.nanmedian(clocks.pick("min").values):
        gpu = extreme_gpu(timeline, "gpu-clock-fine", host, span, highest=False)
    report.finding(
        "clock",
        f"{lowest:.0f} MHz, where the job's GPUs run at {overall:.0f} MHz",
        host=host,
        value=lowest,
        period=Period(
            span.start, span.end, not span.open, table.step_s + timeline.context.resolution_s()
        ),
        gpu=gpu,
    )
