"""Steps that are slow, and throughput that falls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from raydiag.model import Confidence
from raydiag.playbooks.report_writer import Period, ReportWriter
from raydiag.playbooks.training_stability.rises import BASELINE_STEPS, HOLD, MIN_STEPS, runs
from raydiag.timeline.context import SAVE
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.training_series import SECONDS, TGS
from raydiag.tsdb.series import Floats

REGRESSION = 0.10  # of throughput
_REGRESSION_STEPS = 5
_SPIKE_FACTOR = 2.0  # times the usual step time
_GRADUAL = 0.05  # of step time, over the run
_QUARTERS = 4


@dataclass(frozen=True)
class Slowdown:
    """When throughput was low, and by how much (%, negative)."""

    start: float
    end: float
    change: float

    def overlaps(self, start: float, end: float) -> bool:
        """Whether it was slow at some time of a stretch."""
        return start <= self.end and end >= self.start


def report_step_times(timeline: RunTimeline, report: ReportWriter) -> None:
    """Slow steps: at saves they are normal, elsewhere they are reported."""
    series = timeline.training.series(SECONDS)
    if series is None or len(series) < MIN_STEPS:
        report.row("step-time", None, f"{SECONDS}: metric absent", query="training")
        return
    judged, seconds = timeline.context.judged, series.values
    normal = float(np.median(seconds))
    slow = seconds > _SPIKE_FACTOR * normal
    at_saves = slow & ~judged(series.times, "", SECONDS, SAVE)
    if at_saves.any():
        extra = float(np.median(seconds[at_saves]) - normal)
        text = f"{int(at_saves.sum())} slow steps, each at a save, {extra:.0f} s longer: normal"
        report.row("save-steps", True, text, value=extra, unit="s", query="training")
    keep = judged(series.times, "", SECONDS)
    count = int((slow & keep).sum())
    text = f"{count} slow steps away from saves"
    report.row("slow-steps", count > 0, text, value=normal, unit="s", query="training")
    _report_gradual(report, seconds[keep & ~slow])


def _report_gradual(report: ReportWriter, steady: Floats) -> None:
    """Steps that take longer from quarter to quarter of the run."""
    if steady.size < _QUARTERS * MIN_STEPS:
        return
    medians = [float(np.median(part)) for part in np.array_split(steady, _QUARTERS)]
    first, last = medians[0], medians[-1]
    gradual = medians == sorted(medians) and last > (1 + _GRADUAL) * first
    text = f"from {first:.2f} s to {last:.2f} s over the run" if gradual else "steady"
    report.row("gradual", gradual, text, value=last, unit="s", query="training")


def judge_throughput(timeline: RunTimeline, report: ReportWriter) -> Optional[Slowdown]:
    """Throughput below its steady mean; a symptom, with the time at which it began."""
    series, unit = timeline.training.throughput, timeline.training.throughput_unit
    if series is None or len(series) < 2 * MIN_STEPS:
        report.row("throughput", None, f"{TGS}: metric absent", query="training")
        return None
    keep = timeline.context.judged(series.times, "", TGS)
    times, values = series.times[keep], series.values[keep]
    if values.size < 2 * MIN_STEPS:
        report.row("throughput", None, "too few steps outside saves and warm-up")
        return None
    early = values[: max(MIN_STEPS, min(BASELINE_STEPS, values.size // 3))]
    level = float(np.median(early))
    low = values < (1 - REGRESSION) * level
    first = next(runs(low, _REGRESSION_STEPS), None)
    if first is None:
        text = f"within {100 * REGRESSION:.0f} % of {level:.4g} {unit}"
        report.row("throughput", False, text, value=level, query="training")
        return None
    # Several phases are one regression, from the first to the last.
    last = int(np.flatnonzero(low)[-1])
    worst = float(np.median(values[low]))
    slowdown = Slowdown(float(times[first]), float(times[last]), 100 * (worst / level - 1))
    _report_slowdown(timeline, report, slowdown, level, worst, last < values.size - HOLD)
    return slowdown


def _report_slowdown(
    timeline: RunTimeline,
    report: ReportWriter,
    slowdown: Slowdown,
    level: float,
    worst: float,
    recovered: bool,
) -> None:
    unit = timeline.training.throughput_unit
    text = f"{slowdown.change:.0f} % of {level:.4g} {unit}"
    if recovered:
        text += ", and back since"
    report.finding(
        "tgs-degradation",
        "throughput",
        text,
        query="training",
        value=worst,
        unit=unit,
        at=slowdown.start,
        period=Period(slowdown.start, slowdown.end, recovered, timeline.step_time_s),
        confidence=Confidence.CONFIRMED,
        facts={"change_percent": slowdown.change},
    )
