"""Steps that are slow, and throughput that falls."""

import numpy as np

from raydiag.playbooks.report_writer import Period, ReportWriter
from raydiag.timeline.context import SAVE
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.slowdowns import MIN_STEPS, REGRESSION, steady_throughput, usual_level
from raydiag.timeline.training_series import SECONDS, TGS
from raydiag.tsdb.series import Floats

_SPIKE_FACTOR = 2.0  # times the usual step time
_GRADUAL = 0.05  # of step time, over the run
_QUARTERS = 4


def report_step_times(timeline: RunTimeline, report: ReportWriter) -> None:
    """Slow steps: at saves they are normal, elsewhere they are reported."""
    series = timeline.training.series(SECONDS)
    if series is None or len(series) < MIN_STEPS:
        report.row("step-time", None, f"{SECONDS}: metric absent")
        return
    judged, seconds = timeline.context.judged, series.values
    normal = float(np.median(seconds))
    slow = seconds > _SPIKE_FACTOR * normal
    at_saves = slow & ~judged(series.times, "", SECONDS, SAVE)
    if at_saves.any():
        extra = float(np.median(seconds[at_saves]) - normal)
        text = f"{int(at_saves.sum())} slow steps, each at a save, {extra:.0f} s longer: normal"
        report.row("save-steps", True, text, value=extra)
    keep = judged(series.times, "", SECONDS)
    count = int((slow & keep).sum())
    text = f"{count} slow steps away from saves"
    report.row("slow-steps", count > 0, text, value=normal)
    _report_gradual(report, seconds[keep & ~slow])


def _report_gradual(report: ReportWriter, steady: Floats) -> None:
    """Steps that take longer from quarter to quarter of the run."""
    if steady.size < _QUARTERS * MIN_STEPS:
        return
    medians = [float(np.median(part)) for part in np.array_split(steady, _QUARTERS)]
    first, last = medians[0], medians[-1]
    gradual = medians == sorted(medians) and last > (1 + _GRADUAL) * first
    text = f"from {first:.2f} s to {last:.2f} s over the run" if gradual else "steady"
    report.row("gradual", gradual, text, value=last)


def judge_throughput(timeline: RunTimeline, report: ReportWriter) -> None:
    """Throughput below its steady mean; a symptom, with the time at which it began."""
    unit, slow = timeline.training.throughput_unit, timeline.slowdown
    steady = steady_throughput(timeline)
    if steady is None:
        text = f"{TGS}: metric absent"
        if timeline.training.throughput is not None:
            text = "too few steps outside saves and warm-up"
        report.row("throughput", None, text)
        return
    if slow is None:
        level = usual_level(steady.values)
        text = f"within {100 * REGRESSION:.0f} % of {level:.4g} {unit}"
        report.row("throughput", False, text, value=level)
        return
    text = f"{slow.change:.0f} % of {slow.level:.4g} {unit}"
    if slow.recovered:
        text += ", and back since"
    report.finding(
        "throughput",
        text,
        value=slow.worst,
        unit=unit,
        period=Period(slow.start, slow.end, slow.recovered, timeline.step_time_s),
        facts={"change_percent": slow.change},
    )
