"""Playbook: are the GPUs well? Temperature, power, clock, memory, utilisation, error counters.

Power, clock and utilisation follow what the job does, so they are judged in steady training only,
against the other GPUs of the node or the job, and count as symptoms.
"""

from __future__ import annotations

import math
from typing import Optional

import numpy as np

from raydiag.model import Confidence, Evidence, Severity
from raydiag.playbooks import gpu_summary
from raydiag.playbooks.context import BEFORE_JOB, GHOST, WARM_UP
from raydiag.playbooks.observations import ObservationRecorder, Report
from raydiag.playbooks.queries import VRAM_TOTAL
from raydiag.playbooks.query_results import ResultTable
from raydiag.playbooks.spans import Span, above, below
from raydiag.playbooks.timeline import RunTimeline, capacities, departure, middle
from raydiag.tsdb.series import Floats

ID, TITLE, ANALYSIS = "gpu-health", "GPU health", "gpu-health"
QUESTIONS = (
    "gpu-temperature",
    "gpu-power",
    "gpu-clock",
    "gpu-vram",
    "capacity",
    "gpu-utilisation",
    "gpu-errors",
    "gpu-corrected",
    "gpu-temperature-fine",
    "gpu-power-fine",
    "gpu-clock-fine",
    "gpu-vram-fine",
)
WARM_C, HOT_C = gpu_summary.WARM_C, 100.0
SPREAD_WATTS = 50.0
VRAM_PERCENT = 95.0
USED_PERCENT = 80.0
SMOOTH_S = 300.0  # over which power is averaged before GPUs are compared
CLOCK_SHARE = 0.8  # of what the job's GPUs run at, at the same moment
_NAMED = 8
_WARMER_C = 4.0  # above its level: it began
_SOON_S = 120.0
_OUTSIDE = (GHOST, WARM_UP, BEFORE_JOB)  # a save heats nothing, and hides nothing of that kind
_CERTAIN = 5.0  # standard deviations of a mean
_MOVED_WATTS = 30.0  # from a GPU's own level: it changed
_TO_SIGMA = 1.4826  # median absolute value of a normal variable to its deviation
_KNOWN = 0.8  # of the samples that an average must have


def run(scene: RunTimeline, record: ObservationRecorder) -> Report:
    """Every threshold is exclusive: exactly 90 degrees is well."""
    slow = _clock(scene, record)
    _temperature(scene, record, slow)
    _power(scene, record)
    _vram(scene, record)
    _utilisation(scene, record)
    odd = sorted(
        {
            (one.finding.host or "", one.finding.gpu)
            for one in record.observations
            if one.finding.host
        },
        key=lambda pair: (pair[0], pair[1] if pair[1] is not None else -1),
    )
    names = [host if gpu is None else f"{host}:{gpu}" for host, gpu in odd]
    return Report(
        ID,
        TITLE,
        ANALYSIS,
        record.window,
        QUESTIONS,
        tuple(record.rows),
        f"Anomalous: {', '.join(names)}." if names else "No GPU stands out.",
        block=tuple(gpu_summary.lines(scene, names, spreads(scene.steady("gpu-power")))),
    )


def culprit(
    scene: RunTimeline, question: str, host: str, span: Span, highest: bool = True
) -> Optional[int]:
    """Which GPU of a host it is, where each of them was asked for."""
    table = scene.table(question).pick(hosts=[host]).between(span.start, span.end)
    best: Optional[int] = None
    extreme = -np.inf
    for where, row in table:
        known = row[~np.isnan(row)]
        if not known.size:
            continue
        value = float(np.max(known)) if highest else -float(np.median(known))
        if value > extreme:
            best, extreme = where.gpu, value
    return best


def _temperature(scene: RunTimeline, record: ObservationRecorder, slow: dict[str, Span]) -> None:
    """A hot moment is a remark; hot for minutes a concern; hot and slow, or too hot, throttles."""
    if scene.undecided(record, "temperature", "gpu-temperature"):
        return
    table = scene.table("gpu-temperature").pick("max")
    hits = 0
    for where, row in table:
        warm = above(table, row, WARM_C)
        if not warm:
            continue
        hits += 1
        hottest = max(warm, key=lambda one: one.peak)
        gpu = culprit(scene, "gpu-temperature-fine", where.host, hottest)
        throttled = where.host in slow and slow[where.host].start >= warm[0].start - 60
        hot, lasting = hottest.peak > HOT_C, any(one.sustained for one in warm)
        text = f"{hottest.peak:.0f} degrees at most" + (", and its clock fell" if throttled else "")
        record.row(
            "temperature",
            True,
            text + (": throttling" if hot or throttled else ": of concern"),
            [where.host],
            hottest.peak,
            "C",
            "gpu-temperature",
            gpu,
        )
        record.observe(
            "temperature",
            "thermal-throttling",
            [
                Evidence(
                    scene.answers.promql("gpu-temperature"), text, hottest.peak, hottest.peak_time
                )
            ],
            where.host,
            _heating(scene, table, row, where.host, warm[0].start),
            Confidence.CONFIRMED
            if throttled
            else Confidence.LIKELY
            if hot
            else Confidence.POSSIBLE,
            None if hot or throttled or lasting else Severity.INFO,
            gpu=gpu,
            until=warm[-1].end,
            recovered=scene.over(warm[-1]),
            uncertainty_s=table.step_s,
        )
    if not hits:
        text = f"none above {WARM_C:.0f} degrees"
        record.row("temperature", False, text, question="gpu-temperature")
        record.rule_out("thermal-throttling", text)


def _heating(
    scene: RunTimeline, table: ResultTable, row: Floats, host: str, crossed: float
) -> float:
    """When it began to get hotter: the highest GPU's series left its level."""
    each = scene.table("gpu-temperature-fine").pick(hosts=[host])
    later = Span(crossed, crossed + _SOON_S, 0.0, crossed, 1, 0.0, False)
    gpu = culprit(scene, "gpu-temperature-fine", host, later)
    for where, values in each:
        if where.gpu == gpu:
            return departure(scene, each, values, host, crossed, _WARMER_C, 1, _OUTSIDE)
    return departure(scene, table, row, host, crossed, _WARMER_C, 1, _OUTSIDE)


def _power(scene: RunTimeline, record: ObservationRecorder) -> None:
    """GPUs of one node that draw differently for the same work."""
    if scene.undecided(record, "power-spread", "gpu-power"):
        return
    steady = scene.steady("gpu-power")
    fine = scene.steady("gpu-power-fine")
    hits = 0
    for host, spread in spreads(steady).items():
        if spread <= SPREAD_WATTS or scene.trained is None:
            continue
        each = fine.pick(hosts=[host])
        if len(each) < 2:
            text = "at most, by extremes of single moments; not looked at GPU by GPU"
            record.row("power-spread", None, text, [host], spread, "W", "gpu-power")
            continue
        spread, gpu, since = _outlier(scene, each, host)
        if spread <= SPREAD_WATTS:
            continue
        hits += 1
        text = f"{spread:.0f} W between GPUs of one node over {SMOOTH_S / 60:.0f} minutes"
        record.row("power-spread", True, text, [host], spread, "W", "gpu-power", gpu)
        record.observe(
            "power-spread",
            "gpu-power-outlier",
            [Evidence(scene.answers.promql("gpu-power"), text, spread, since)],
            host,
            since,
            Confidence.POSSIBLE,
            gpu=gpu,
            symptom=True,
            uncertainty_s=each.step_s,
        )
    if not hits:
        why = "" if scene.trained else ", but no training was seen"
        record.row(
            "power-spread",
            False if scene.trained else None,
            f"no node's GPUs differ by more than {SPREAD_WATTS:.0f} W{why}",
            question="gpu-power",
        )


def smoothed(row: Floats, step_s: float, over_s: float = SMOOTH_S) -> Floats:
    """Running mean over a time, NaN left out; NaN where too little of it is known."""
    width = _width(step_s, over_s)
    known = ~np.isnan(row)
    kernel = np.ones(width)
    counts = np.convolve(known.astype(np.float64), kernel, "valid")
    sums = np.convolve(np.where(known, row, 0.0), kernel, "valid")
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts >= _KNOWN * width, sums / counts, np.nan)


def _width(step_s: float, over_s: float = SMOOTH_S) -> int:
    return max(1, round(over_s / step_s)) if step_s else 1


def _scatter(row: Floats) -> float:
    """Standard deviation from one sample to the next, whatever the level does over time."""
    known = row[~np.isnan(row)]
    if known.size < 3:
        return 0.0
    return _TO_SIGMA * float(np.median(np.abs(np.diff(known)))) / math.sqrt(2.0)


def _lasting(gaps: Floats, width: int) -> Floats:
    """The least of so many averages in a row: what only one five minutes show has not stayed."""
    if gaps.size < 2 * width:
        return gaps
    least: Floats = np.lib.stride_tricks.sliding_window_view(gaps, width).min(axis=1)
    return least


def _wander(means: Floats) -> float:
    """Standard deviation of averages about their own level: power drifts, so they differ more
    than independent samples would let them."""
    return _TO_SIGMA * float(np.median(np.abs(means - np.median(means))))


def spreads(steady: ResultTable) -> dict[str, float]:
    """Widest gap between a host's highest and lowest GPU, each averaged over five minutes.

    Noise makes extremes of many GPUs wider than any GPU's own average: an upper bound.
    """
    found = {}
    lows, highs = steady.pick("min"), steady.pick("max")
    for where, row in highs:
        low = lows.row(where.host, "min")
        if low is None or row.size * max(steady.step_s, 1.0) < SMOOTH_S:
            continue
        gap = smoothed(row, steady.step_s) - smoothed(low, steady.step_s)
        known = gap[~np.isnan(gap)]
        if known.size:
            found[where.host] = float(np.max(known))
    return found


def _outlier(
    scene: RunTimeline, each: ResultTable, host: str
) -> tuple[float, Optional[int], Optional[float]]:
    """Widest gap of averages between GPUs, the GPU furthest from the middle, and since when.

    No gap where no GPU is further away than chance takes the mean of such samples.
    """
    usual = _column_medians(each.values)
    away = each.values - usual[None, :]
    means = np.array([smoothed(row, each.step_s) for row in away])
    known = ~np.isnan(means).any(axis=0)
    if not known.any():
        return 0.0, None, None
    gaps = means[:, known].max(axis=0) - means[:, known].min(axis=0)
    gaps = _lasting(gaps, _width(each.step_s))
    at = int(np.argmax(gaps))
    odd = int(np.argmax(np.abs(means[:, known][:, at])))
    furthest = float(means[odd, known][at])
    chance = max(
        float(np.median([_scatter(row) for row in away])) / math.sqrt(_width(each.step_s)),
        float(np.median([_wander(row) for row in means[:, known]])),
    )
    levels = np.median(means[:, known], axis=1)
    moved = abs(furthest - float(levels[odd])) > _MOVED_WATTS
    # No two GPUs are alike: a gap that is usually less, and widens as power drifts, is nothing.
    apart = float(np.ptp(levels)) > SPREAD_WATTS
    if abs(furthest) <= _CERTAIN * chance or not (moved or apart):
        return 0.0, None, None
    sign = 1 if furthest > 0 else -1
    time = float(each.times[min(int(np.flatnonzero(known)[at]), each.times.size - 1)])
    # Against its neighbours a GPU can be judged in a save as well: all of them pause.
    everything = scene.table("gpu-power-fine").pick(hosts=[host])
    lone = everything.values[odd] - _column_medians(everything.values)
    until = time + SMOOTH_S
    since = departure(scene, everything, lone, host, until, SPREAD_WATTS / 2, sign, _OUTSIDE)
    return float(gaps[at]), each.where[odd].gpu, min(since, time)


def _clock(scene: RunTimeline, record: ObservationRecorder) -> dict[str, Span]:
    """Hosts whose slowest GPU falls well below what the job's GPUs run at, and stays there."""
    if scene.undecided(record, "clock", "gpu-clock"):
        return {}
    table = scene.steady("gpu-clock")
    lows, means = table.pick("min"), table.pick("avg")
    if not len(lows) or not lows.times.size or scene.trained is None:
        record.row("clock", None, "no clock while training went on", question="gpu-clock")
        return {}
    with np.errstate(invalid="ignore"):
        usual = _column_medians(means.values)
    overall = middle(usual) or 0.0
    found: dict[str, Span] = {}
    for where, row in lows:
        own = middle(row[: max(3, row.size // 3)]) or overall
        floor = CLOCK_SHARE * np.minimum(np.maximum(usual, 0.5 * overall), max(own, 1.0))
        held = [one for one in below(lows, row - floor, 0.0) if one.sustained]
        if held:
            found[where.host] = held[0]
    for host, span in list(found.items())[:_NAMED]:
        during = lows.pick(hosts=[host]).between(span.start, span.end).values
        value = float(np.nanmin(during))
        gpu = culprit(scene, "gpu-clock-fine", host, span, highest=False)
        text = f"{value:.0f} MHz, where the job's GPUs run at {overall:.0f} MHz"
        record.row("clock", True, text, [host], value, "MHz", "gpu-clock", gpu)
        record.observe(
            "clock",
            "gpu-clock-drop",
            [Evidence(scene.answers.promql("gpu-clock"), text, value, span.start)],
            host,
            span.start,
            Confidence.LIKELY,
            gpu=gpu,
            symptom=True,
            until=span.end,
            recovered=not span.open,
            uncertainty_s=lows.step_s,
        )
    if not found:
        record.row("clock", False, "no GPU runs slower than the others", question="gpu-clock")
    return found


def _column_medians(values: Floats) -> Floats:
    """Median over hosts at each time; NaN where none has a value."""
    result = np.full(values.shape[1], np.nan)
    known = ~np.isnan(values).all(axis=0)
    result[known] = np.nanmedian(values[:, known], axis=0)
    return result


def _vram(scene: RunTimeline, record: ObservationRecorder) -> None:
    """Frameworks reserve memory in advance, so a full GPU is a remark."""
    if scene.undecided(record, "vram", "gpu-vram"):
        return
    table, totals = scene.table("gpu-vram"), capacities(scene, VRAM_TOTAL)
    hits = 0
    for where, row in table:
        total = totals.get(where.host)
        if not total:
            continue
        full = above(table, 100.0 * row / total, VRAM_PERCENT)
        if not full:
            continue
        hits += 1
        worst = max(full, key=lambda one: one.peak)
        gpu = culprit(scene, "gpu-vram-fine", where.host, worst)
        text = f"{worst.peak:.1f} % of GPU memory in use, or reserved"
        record.row("vram", True, text, [where.host], worst.peak, "%", "gpu-vram", gpu)
        if hits <= _NAMED:
            record.observe(
                "vram",
                "vram-pressure",
                [Evidence(scene.answers.promql("gpu-vram"), text, worst.peak, worst.peak_time)],
                where.host,
                worst.start,
                Confidence.POSSIBLE,
                Severity.INFO,
                gpu=gpu,
                until=worst.end,
                uncertainty_s=table.step_s,
            )
    if not hits:
        known = bool(totals)
        text = f"none above {VRAM_PERCENT:.0f} %" if known else f"{VRAM_TOTAL}: metric absent"
        record.row("vram", False if known else None, text, question="gpu-vram")


def _utilisation(scene: RunTimeline, record: ObservationRecorder) -> None:
    """GPUs that are not busy though steps go on."""
    if scene.undecided(record, "utilisation", "gpu-utilisation"):
        return
    table = scene.steady("gpu-utilisation").pick("avg")
    if scene.trained is None or not table.times.size:
        record.row("utilisation", None, "no training to judge it by", question="gpu-utilisation")
        return
    hits = []
    for where, row in table:
        mean = middle(row)
        if mean is not None and mean < USED_PERCENT:
            hits.append((where.host, mean))
            text = f"{mean:.0f} % in the middle of training"
            record.row("utilisation", True, text, [where.host], mean, "%", "gpu-utilisation")
    for host, mean in hits[:_NAMED]:
        record.observe(
            "utilisation",
            "gpu-underutilised",
            [Evidence(scene.answers.promql("gpu-utilisation"), "in steady training", mean)],
            host,
            float(table.times[0]),
            Confidence.POSSIBLE,
            symptom=True,
            uncertainty_s=table.step_s,
        )
    if not hits:
        text = f"not below {USED_PERCENT:.0f} % while training"
        record.row("utilisation", False, text, question="gpu-utilisation")
