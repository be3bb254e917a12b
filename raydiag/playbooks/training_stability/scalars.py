"""Loss, gradients, the balance of experts, and the learning rate."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from raydiag.playbooks.report_writer import Period, ReportWriter
from raydiag.playbooks.training_stability.rises import (
    LOSS_SHARE,
    MIN_STEPS,
    SIGMAS,
    first_rise,
    runs,
    slow_rise,
    turning_point,
)
from raydiag.timeline.context import TrainingJob
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.training_series import BALANCE, GRAD, LOSS, RATE, RAW_GRAD
from raydiag.tsdb.series import Floats, Series

_GRAD_FACTOR, _BALANCE_FACTOR = 8.0, 1.5
_CLIP_FACTOR = 10.0
_SAME_TIME_STEPS = 10.0
_JUMP = 1.6  # of the learning rate from one step to the next
_DECAYING = 4  # samples after a restart
_LEVEL = 0.1  # of a learning rate, that it may change afterwards
_FEW_STEPS = 5  # in which a learning rate may leave its schedule
_OFF_SCHEDULE_STEPS = 5
_OFF_SHARE = 0.15  # of what the schedule has


@dataclass(frozen=True)
class _Explosion:
    """Gradients that grew many times over, or became NaN."""

    time: float
    value: float
    usual: float


def _report_at(report: ReportWriter, row: str, text: str, time: float, value: float) -> None:
    """A row and an observation about training's own numbers, dated to a step."""
    period = Period(time, uncertainty_s=report.timeline.step_time_s)
    report.finding(row, text, value=value, period=period)


def judge_loss(timeline: RunTimeline, report: ReportWriter) -> None:
    """NaN in the loss, or a rise that stays."""
    series = timeline.training.series(LOSS)
    if series is None:
        report.row("loss", None, f"{LOSS}: metric absent")
        return
    broken = _broken_at(series)
    if broken.size:
        _report_broken_loss(timeline, report, broken)
        return
    report.row("loss-nan", False, "no NaN in the loss")
    rise = first_rise(series, 1.0, LOSS_SHARE) or slow_rise(series)
    if rise is None:
        report.row("loss-jump", False, "no lasting jump")
        report.rule_out("loss-divergence", "the loss has no NaN and no lasting jump")
        return
    time = float(series.times[turning_point(series.values, rise.index)])
    step = timeline.training.step_at(time)
    text = f"loss rises from {rise.usual:.3g} to {rise.value:.3g} at step {step}"
    explosion = _explosion(timeline)
    if explosion and abs(explosion.time - time) <= _SAME_TIME_STEPS * timeline.step_time_s:
        text += "; gradients rose with it"
    _report_at(report, "loss-jump", text, time, rise.value)


def _report_broken_loss(timeline: RunTimeline, report: ReportWriter, broken: Floats) -> None:
    first = float(broken[0])
    step = timeline.training.step_at(first)
    text = f"loss is NaN or infinite in {broken.size} samples, first at step {step}"
    report.finding(
        "loss-nan",
        text,
        value=float(broken.size),
        evidence=[report.evidence("training", text, None, first)],
        period=Period(first, uncertainty_s=timeline.step_time_s),
    )


def _broken_at(series: Series) -> Floats:
    """When it was NaN or infinite."""
    infinite = series.times[np.isinf(series.values)]
    return np.sort(np.concatenate([series.nan_times, infinite]))


def _explosion(timeline: RunTimeline) -> _Explosion | None:
    """The first one, of raw or of clipped gradients."""
    return min(_explosions(timeline), key=lambda explosion: explosion.time, default=None)


def _explosions(timeline: RunTimeline) -> Iterator[_Explosion]:
    nan, loss = float("nan"), timeline.training.series(LOSS)
    # Of a loss that is broken the gradients are NaN too, and that explains nothing.
    broken = np.inf if loss is None else min(_broken_at(loss), default=np.inf)
    for metric in (RAW_GRAD, GRAD):
        series = timeline.training.series(metric)
        if series is None:
            continue
        if series.nan_times.size and series.nan_times[0] < broken:
            yield _Explosion(float(series.nan_times[0]), nan, nan)
        rise = first_rise(series, _GRAD_FACTOR, hold=2)
        if rise is not None:
            yield _Explosion(float(series.times[rise.index]), rise.value, rise.usual)


def judge_gradients(timeline: RunTimeline, report: ReportWriter) -> None:
    """Gradients that explode, and clipping that is always at work."""
    raw, clipped = timeline.training.series(RAW_GRAD), timeline.training.series(GRAD)
    if raw is None and not clipped:
        report.row("gradients", None, f"{GRAD}: metric absent")
        return
    explosion = _explosion(timeline)
    if explosion is None:
        report.row("gradients", False, "no explosion")
    else:
        text = f"gradient norm rises from {explosion.usual:.3g} to {explosion.value:.3g}"
        _report_at(report, "gradients", text, explosion.time, explosion.value)
    if raw is not None and clipped is not None:
        _report_clipping(report, raw, clipped)


def _report_clipping(report: ReportWriter, raw: Series, clipped: Series) -> None:
    if not len(raw) or not len(clipped):
        return
    ratio = float(np.median(raw.values)) / max(float(np.median(clipped.values)), 1e-12)
    if ratio > _CLIP_FACTOR:
        text = "raw gradients are far above clipped ones: clipping is at work, maybe too much"
        report.row("clipping", True, text, value=ratio)


def judge_expert_balance(timeline: RunTimeline, report: ReportWriter) -> None:
    """Expert load imbalance: their balance loss rises and stays there."""
    series = timeline.training.series(BALANCE)
    if series is None:
        report.row("moe-balance", None, f"{BALANCE}: metric absent")
        return
    rise = first_rise(series, _BALANCE_FACTOR)
    if rise is None:
        report.row("moe-balance", False, "experts stay balanced")
        report.rule_out("moe-imbalance", "the balance loss of the experts is steady")
        return
    change = f"from {rise.usual:.3g} to {rise.value:.3g}"
    text = f"balance loss of the experts rises {change}: routing changed"
    time = float(series.times[rise.index])
    _report_at(report, "moe-balance", text, time, rise.value)


@dataclass(frozen=True)
class _Anomaly:
    time: float
    value: float
    text: str


def judge_learning_rate(timeline: RunTimeline, report: ReportWriter) -> None:
    """A finding where it leaves its schedule."""
    series = timeline.training.series(RATE)
    if series is None or len(series) < MIN_STEPS:
        report.row("learning-rate", None, f"{RATE}: metric absent")
        return
    apart = max(_FEW_STEPS // max(int(np.median(np.diff(timeline.training.steps))), 1), 1)
    anomaly = _off_schedule(timeline, series)
    if anomaly is None and not _restarts(series.values[MIN_STEPS:]):
        anomaly = _jump(series, 1) or _jump(series, apart) or _rise_after_peak(series)
    if anomaly is None:
        report.row("learning-rate", False, "follows a smooth schedule")
        return
    about = (anomaly.text, anomaly.time, anomaly.value)
    _report_at(report, "learning-rate", *about)


def _rise_after_peak(series: Series) -> _Anomaly | None:
    """Well above the peak from which it had fallen: no schedule does that."""
    values, highest = series.values, np.maximum.accumulate(series.values)
    settled = np.flatnonzero(highest[MIN_STEPS:] == highest[:-MIN_STEPS])
    if not settled.size or highest[settled[0]] <= 0:
        return None
    peak = float(highest[settled[0]])
    above = next(iter(np.flatnonzero(values > _JUMP * peak)), None)
    if above is None:
        return None
    since_peak = values[settled[0] : above + 1]
    if since_peak.min() >= peak:
        return None  # a warm-up that is printed with few digits has steps like that
    value, turned = float(values[above:].max()), int(above - np.argmin(since_peak[::-1]))
    text = f"learning rate rises to {value:.3g}, beyond the {peak:.3g} of its schedule's peak"
    return _Anomaly(float(series.times[turned]), value, text)


def _restarts(values: Floats) -> bool:
    """Whether it jumps to one level again, or to its first peak, and decays from there."""
    ratios = values[1:] / np.maximum(values[:-1], 1e-30)
    rises = np.flatnonzero(ratios > _JUMP)
    rises = rises[rises + _DECAYING < ratios.size]
    if not rises.size:
        return False
    peaks = np.append(values[rises + 1], values[: rises[0] + 1].max())[: max(2, rises.size)]
    after = ratios[rises[:, None] + 1 + np.arange(_DECAYING)]
    is_decaying = (after <= 1).all() and (after[:, -1] < 1).all() and (after > 1 / _JUMP).all()
    return bool(is_decaying) and float(np.ptp(peaks)) <= _LEVEL * float(peaks.max())


def _jump(series: Series, apart: int) -> _Anomaly | None:
    """Between samples so many apart by more than any schedule does, but for the first steps.

    What takes several steps is a jump only where it is flat afterwards: a decay goes on.
    """
    values, usual_s = series.values, series.spacing_s or 1.0
    for start in range(MIN_STEPS - 1, values.size - apart):
        index = start + apart
        before, now = float(values[start]), float(values[index])
        usual_change = float(np.max(np.abs(np.diff(values[start + 1 - MIN_STEPS : start + 1]))))
        # Where steps have no samples, it may have changed in each of them.
        steps = max(apart, float(series.times[index] - series.times[start]) / usual_s)
        if abs(now - before) <= SIGMAS * usual_change * steps or before < 0 or now < 0:
            continue
        low, high = min(before, now), max(before, now)
        after = values[index : index + MIN_STEPS]
        is_level = after.size > 2 and float(np.ptp(after)) <= _LEVEL * now
        if before > 0 and (low == 0 or high / low > _JUMP) and (apart == 1 or is_level):
            text = f"learning rate jumps from {before:.3g} to {now:.3g}"
            return _Anomaly(float(series.times[index]), now, text)
    return None


def _off_schedule(timeline: RunTimeline, series: Series) -> _Anomaly | None:
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


def _number(text: str | None) -> float:
    try:
        return float(text) if text else 0.0
    except ValueError:
        return 0.0
