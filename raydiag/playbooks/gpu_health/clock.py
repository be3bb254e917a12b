"""Hosts whose slowest GPU falls well below what the job's GPUs run at."""

from __future__ import annotations

from itertools import islice
from operator import attrgetter

import numpy as np

from raydiag.playbooks.gpu_health.single_gpus import NAMED, extreme_gpu
from raydiag.playbooks.report_writer import Period, ReportWriter
from raydiag.timeline import known_values
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import Span, below, sustained_by_host

CLOCK_SHARE = 0.8  # of what the job's GPUs run at, at the same moment


def slow_hosts(timeline: RunTimeline) -> list[str]:
    """Hosts whose slowest GPU is well below the job's in training."""
    table = timeline.steady("gpu-clock").pick("min")
    usual = known_values.median(table.values)
    if usual is None or timeline.trained is None:
        return []
    slowness = ResultTable(
        table.subjects, table.times, usual - table.values, "gpu-clock", table.step_s
    )
    return list(sustained_by_host(slowness, (1 - CLOCK_SHARE) * usual))


def judge_clock(timeline: RunTimeline, report: ReportWriter) -> dict[str, Span]:
    """Hosts whose slowest GPU stays slow; a clock follows load, so it is judged in training."""
    if report.cannot_judge("clock", "gpu-clock"):
        return {}
    table = timeline.steady("gpu-clock")
    lows = table.pick("min")
    if not len(lows) or not lows.times.size or timeline.trained is None:
        report.row("clock", None, "no clock while training went on", query="gpu-clock")
        return {}
    usual = known_values.column_medians(table.pick("avg").values)
    overall = known_values.median(usual) or 0.0
    slow: dict[str, Span] = {}
    for subject, row in lows:
        early = known_values.median(row[: max(3, row.size // 3)]) or overall
        floor = CLOCK_SHARE * np.minimum(np.maximum(usual, 0.5 * overall), max(early, 1.0))
        for span in filter(attrgetter("sustained"), below(lows, row - floor, 0.0)):
            slow.setdefault(subject.host, span)
    for host, span in islice(slow.items(), NAMED):
        _report_slow(timeline, report, lows, host, span, overall)
    if not slow:
        report.row("clock", False, "no GPU runs slower than the others", query="gpu-clock")
    return slow


def _report_slow(
    timeline: RunTimeline,
    report: ReportWriter,
    lows: ResultTable,
    host: str,
    span: Span,
    overall: float,
) -> None:
    lowest = float(np.nanmin(lows.pick(hosts=[host]).between(span.start, span.end).values))
    report.finding(
        "gpu-clock-drop",
        "clock",
        f"{lowest:.0f} MHz, where the job's GPUs run at {overall:.0f} MHz",
        query="gpu-clock",
        host=host,
        value=lowest,
        unit="MHz",
        at=span.start,
        period=Period(span.start, span.end, not span.open, lows.step_s),
        gpu=extreme_gpu(timeline, "gpu-clock-fine", host, span, highest=False),
    )
