"""The learning rate: jumps that no schedule makes, and values away from the configured warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from raydiag.playbooks.report_writer import ReportWriter
from raydiag.playbooks.training_stability.rises import MIN_STEPS, SIGMAS, runs
from raydiag.playbooks.training_stability.scalars import report_step_finding
from raydiag.timeline.context import TrainingJob
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.training_series import RATE
from raydiag.tsdb.series import Series

_JUMP = 1.6  # of the learning rate from one step to the next
_OFF_SCHEDULE_STEPS = 5
_OFF_SHARE = 0.15  # of what the schedule has


@dataclass(frozen=True)
class _Anomaly:
    time: float
    value: float
    text: str


def judge_learning_rate(timeline: RunTimeline, report: ReportWriter) -> None:
    """A finding where it leaves its schedule."""
    series = timeline.training.series(RATE)
    if series is None or len(series) < MIN_STEPS:
        report.row("learning-rate", None, f"{RATE}: metric absent", query="training")
        return
    anomaly = _off_schedule(timeline, series) or _jump(series)
    if anomaly is None:
        report.row("learning-rate", False, "follows a smooth schedule", query="training")
        return
    text, value = anomaly.text, anomaly.value
    report_step_finding(timeline, report, "lr-anomaly", "learning-rate", text, anomaly.time, value)


def _jump(series: Series) -> Optional[_Anomaly]:
    """From one step to the next by more than any schedule does, but for the first steps."""
    values = series.values
    for index in range(MIN_STEPS, values.size):
        before, now = float(values[index - 1]), float(values[index])
        usual_change = float(np.max(np.abs(np.diff(values[index - MIN_STEPS : index]))))
        if abs(now - before) <= max(SIGMAS * usual_change, 0.0) or before < 0 or now < 0:
            continue
        low, high = min(before, now), max(before, now)
        if high > 0 and (low == 0 or high / low > _JUMP):
            text = f"learning rate jumps from {before:.3g} to {now:.3g}"
            return _Anomaly(float(series.times[index]), now, text)
    return None


def _off_schedule(timeline: RunTimeline, series: Series) -> Optional[_Anomaly]:
    """Away from the warm-up that the job was configured with; only where its numbers are known."""
    peak, warm_up_steps = _configured(timeline.job)
    if not peak or not warm_up_steps:
        return None
    step_at = timeline.training.step_at
    steps = np.array([step_at(time) or 0 for time in series.times.tolist()])
    inside = (steps > 2) & (steps < 0.95 * warm_up_steps)
    scheduled = peak * (steps + 1) / max(warm_up_steps, 1.0)
    tolerance = _OFF_SHARE * scheduled + peak * 2 / max(warm_up_steps, 1.0)
    off = inside & (np.abs(series.values - scheduled) > tolerance)
    index = next(runs(off, _OFF_SCHEDULE_STEPS), None)
    if index is None:
        return None
    value = float(series.values[index])
    text = (
        f"learning rate {value:.3g} at step {steps[index]}, where the configured warm-up has "
        f"{scheduled[index]:.3g}"
    )
    return _Anomaly(float(series.times[index]), value, text)


def _configured(job: TrainingJob) -> tuple[float, float]:
    """Highest learning rate, and steps until it; 0 where the configuration does not say."""
    peak = _number(job.config.get("learning_rate"))
    scheduled = _number(job.config.get("learning_rate_schedule_steps"))
    total = int(scheduled or job.total_steps or 0)
    return peak, _number(job.config.get("warmup_steps_fraction")) * total


def _number(text: Optional[str]) -> float:
    try:
        return float(text) if text else 0.0
    except ValueError:
        return 0.0
