"""GPUs of one node that draw differently for the same work."""

import math
from dataclasses import dataclass

import numpy as np

from raydiag.playbooks.gpu_health.single_gpus import OUTSIDE_STEADY
from raydiag.playbooks.report_writer import Period, ReportWriter, remark_unless
from raydiag.timeline import known_values
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.deviations import TO_SIGMA, departure
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Floats

SPREAD_WATTS = 50.0
SMOOTH_S = 300.0  # over which power is averaged before GPUs are compared
_CERTAIN = 5.0  # standard deviations of a mean
_MOVED_WATTS = 30.0  # from a GPU's own level: it changed
_ODD = 1.5  # times the widest gap on the other hosts: GPUs of one fleet differ alike
_KNOWN = 0.8  # of the samples that an average must have


@dataclass(frozen=True)
class _Outlier:
    """The GPU furthest from the others of its node."""

    spread: float  # W, widest gap of averages between GPUs
    gpu: int | None
    since: float
    moved: bool  # it once drew as the others did


def spreads(steady: ResultTable) -> dict[str, float]:
    """Widest gap between a host's highest and lowest GPU, each averaged over five minutes.

    Noise makes extremes of many GPUs wider than any GPU's own average: an upper bound.
    """
    gaps = {}
    lows = steady.pick("min")
    for subject, highs in steady.pick("max"):
        low = lows.row(subject.host, "min")
        if low is None or highs.size * max(steady.step_s, 1.0) < SMOOTH_S:
            continue
        gap = _smoothed(highs, steady.step_s) - _smoothed(low, steady.step_s)
        widest = known_values.highest(gap)
        if widest is not None:
            gaps[subject.host] = widest
    return gaps


def uneven_hosts(timeline: RunTimeline) -> list[str]:
    """Hosts whose GPUs may differ too much, the widest gap first."""
    widest = spreads(timeline.steady("gpu-power"))
    uneven = [host for host, spread in widest.items() if spread > SPREAD_WATTS]
    return sorted(uneven, key=widest.__getitem__, reverse=True)


def judge_power_spread(timeline: RunTimeline, report: ReportWriter) -> None:
    """A finding for each node with a GPU that draws much more or less than its neighbours."""
    if report.cannot_judge("power-spread"):
        return
    any_odd = False
    if timeline.trained is not None:
        bounds = spreads(timeline.steady("gpu-power"))
        for host, bound in bounds.items():
            if bound > SPREAD_WATTS:
                others = [bounds[other] for other in bounds if other != host]
                any_odd |= _judge_host(timeline, report, host, bound, known_values.median(others))
    if not any_odd:
        text = f"no node's GPUs differ by more than {SPREAD_WATTS:.0f} W"
        if timeline.trained is None:
            text += ", but no training was seen"
        holds = None if timeline.trained is None else False
        report.row("power-spread", holds, text)


def _judge_host(
    timeline: RunTimeline, report: ReportWriter, host: str, bound: float, usual: float | None
) -> bool:
    """`usual`: the widest gap on the other hosts, W; None without others."""
    fine = timeline.steady("gpu-power-fine").pick(hosts=[host])
    if len(fine) < 2:
        text = "at most, by extremes of single moments; not measured GPU by GPU"
        report.row("power-spread", None, text, [host], bound)
        return False
    outlier = _outlier(timeline, fine, host)
    if outlier is None or outlier.spread <= SPREAD_WATTS:
        return False
    spread, minutes = outlier.spread, SMOOTH_S / 60
    is_odd = outlier.moved or spread > _ODD * (usual or 0.0)
    text = f"{spread:.0f} W between GPUs of one node over {minutes:.0f} minutes"
    report.finding(
        "power-spread",
        text if is_odd else f"{text}, about as on the other hosts",
        severity=remark_unless(is_odd),
        host=host,
        value=spread,
        period=Period(outlier.since, uncertainty_s=fine.step_s),
        gpu=outlier.gpu,
    )
    return True


def _outlier(timeline: RunTimeline, fine: ResultTable, host: str) -> _Outlier | None:
    """None where no GPU is further away than chance takes the mean of such samples."""
    away = fine.values - known_values.column_medians(fine.values)[None, :]
    means = np.array([_smoothed(row, fine.step_s) for row in away])
    complete = np.flatnonzero(~np.isnan(means).any(axis=0))
    if not complete.size:
        return None
    width = _width(fine.step_s)
    means = means[:, complete]
    gaps = _lasting(means.max(axis=0) - means.min(axis=0), width)
    widest = int(np.argmax(gaps))
    odd = int(np.argmax(np.abs(means[:, widest])))
    furthest = float(means[odd, widest])
    levels = np.median(means, axis=1)
    moved = abs(furthest - float(levels[odd])) > _MOVED_WATTS
    # No two GPUs are alike: a gap that is usually less, and widens as power drifts, is nothing.
    apart = float(np.ptp(levels)) > SPREAD_WATTS
    if not (moved or apart) or abs(furthest) <= _CERTAIN * _chance(away, means, width):
        return None
    time = float(fine.times[min(int(complete[widest]), fine.times.size - 1)])
    since = _since(timeline, host, odd, time, int(np.sign(furthest)))
    return _Outlier(float(gaps[widest]), fine.subjects[odd].gpu, min(since, time), moved)


def _chance(away: Floats, means: Floats, width: int) -> float:
    """Standard deviation of an average of so many samples, W."""
    return max(
        float(np.median(list(map(_scatter, away)))) / math.sqrt(width),
        float(np.median(list(map(_wander, means)))),
    )


def _since(timeline: RunTimeline, host: str, odd: int, time: float, sign: int) -> float:
    # Against its neighbours a GPU can be judged in a save as well: all of them pause.
    table = timeline.of_host("gpu-power-fine", host)
    lone = table.values[odd] - known_values.column_medians(table.values)
    until, least = time + SMOOTH_S, SPREAD_WATTS / 2
    return departure(timeline.context, table, lone, host, until, least, sign, OUTSIDE_STEADY)


def _smoothed(row: Floats, step_s: float) -> Floats:
    """Running mean over `SMOOTH_S`, NaN left out; NaN where too little of it is known."""
    width = _width(step_s)
    has_value = ~np.isnan(row)
    kernel = np.ones(width)
    counts = np.convolve(has_value.astype(np.float64), kernel, "valid")
    sums = np.convolve(np.where(has_value, row, 0.0), kernel, "valid")
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts >= _KNOWN * width, sums / counts, np.nan)


def _width(step_s: float) -> int:
    if not step_s:
        return 1
    return max(1, round(SMOOTH_S / step_s))


def _scatter(row: Floats) -> float:
    """Standard deviation from one sample to the next, whatever the level does over time."""
    values = known_values.known(row)
    if values.size < 3:
        return 0.0
    return TO_SIGMA * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2.0)


def _lasting(gaps: Floats, width: int) -> Floats:
    """The least of so many averages in a row: what only one five minutes show has not stayed."""
    if gaps.size < 2 * width:
        return gaps
    least: Floats = np.lib.stride_tricks.sliding_window_view(gaps, width).min(axis=1)
    return least


def _wander(means: Floats) -> float:
    """Standard deviation of averages about their own level: power drifts, so they differ more
    than independent samples would let them."""
    return TO_SIGMA * float(np.median(np.abs(means - np.median(means))))
