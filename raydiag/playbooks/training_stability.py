"""Playbook: does training itself go well? Loss, gradients, learning rate, balance, throughput.

Only real samples count. A NaN is a sample: it is counted, never dropped. Slow steps at saves are
normal; throughput that falls otherwise is a symptom, and the contention checklist looks for why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from raydiag.model import Confidence, Evidence
from raydiag.playbooks import contention
from raydiag.playbooks.context import SAVE
from raydiag.playbooks.observations import ObservationRecorder, Report
from raydiag.playbooks.timeline import RunTimeline
from raydiag.playbooks.training import BALANCE, GRAD, LOSS, RATE, RAW_GRAD, SECONDS, TGS
from raydiag.tsdb.series import Floats, Series

ID, TITLE, ANALYSIS = "training-stability", "Training stability", "training-stability"
QUESTIONS = ("training", *contention.QUESTIONS)
_BEFORE = 30  # steps that tell what is usual
_LEAST = 8
_HOLD = 3  # steps in a row
_LOSS_SHARE, _GRAD_FACTOR, _BALANCE_FACTOR = 0.2, 8.0, 1.5
_SIGMAS = 8.0
_BEGUN = 3.0  # deviations above its level: the rise has begun
_SMOOTH = 5  # steps
_NEAR = 2.0  # deviations above the lowest: no rise yet
_CLIMBING = 0.6  # of the time since the lowest, the loss went up
_JUMP = 1.6  # of the learning rate from one step to the next
_CLIP_FACTOR = 10.0
REGRESSION = 0.10  # of throughput
_REGRESSION_STEPS = 5
_SPIKE = 2.0  # times the usual step time
_GRADUAL = 0.05  # of step time, over the run


def run(scene: RunTimeline, record: ObservationRecorder) -> Report:
    """Loss to throughput, then the whole checklist, whatever was found before."""
    if scene.answers.missing("training"):
        why = scene.answers.missing("training")
        record.row("training", None, f"no tb_ samples ({why}): read the event file")
        slow = None
    else:
        _loss(scene, record)
        _gradients(scene, record)
        _balance(scene, record)
        _learning_rate(scene, record)
        _steps(scene, record)
        slow = _throughput(scene, record)
    contention.check(scene, record, slow)
    found = dict.fromkeys(one.finding.failure_class for one in record.observations)
    verdict = "Seen: " + ", ".join(found) + "." if found else "Training is steady."
    if scene.answers.missing("training"):
        verdict = "Undecided: no tb_ samples. " + (verdict if found else "")
    return Report(
        ID, TITLE, ANALYSIS, record.window, QUESTIONS, tuple(record.rows), verdict.strip()
    )


def usual(values: Floats, before: int = _BEFORE) -> tuple[Floats, Floats]:
    """Median and robust deviation of the steps before each one; NaN for the first few."""
    middle = np.full(values.size, np.nan)
    spread = np.full(values.size, np.nan)
    for index in range(_LEAST, min(before, values.size)):
        middle[index], spread[index] = _robust(values[None, :index])[:, 0]
    if values.size > before:
        parts = np.lib.stride_tricks.sliding_window_view(values, before)[:-1]
        middle[before:], spread[before:] = _robust(parts)
    return middle, spread


def _robust(parts: Floats) -> Floats:
    """Median and robust deviation of each row."""
    middle = np.median(parts, axis=1)
    return np.array([middle, 1.4826 * np.median(np.abs(parts - middle[:, None]), axis=1)])


def departs(
    series: Series, factor: float, least_share: float, hold: int = _HOLD
) -> Optional[tuple[int, float, float]]:
    """Where a rise begins that stays: (position, highest value of its start, what was usual).

    What is usual is frozen at the departure, so that a new level does not become normal.
    """
    values = series.values
    level, spread = usual(values)
    rise = np.maximum(_SIGMAS * spread, least_share * np.abs(level))
    limit = np.maximum(level * factor, level + rise)
    for index in range(_LEAST, values.size - hold + 1):
        held = values[index : index + hold]
        if held[0] > limit[index] and bool((held > limit[index]).all()):
            noise = level[index] + _BEGUN * spread[index]
            return _begins(values, index, noise), float(held.max()), float(level[index])
    return None


def _begins(values: Floats, index: int, noise: float) -> int:
    """The first of the samples above the noise that lead up to a position."""
    while index > 0 and values[index - 1] > noise:
        index -= 1
    return index


def turns(series: Series) -> Optional[tuple[int, float, float]]:
    """Where a loss turns and climbs for good, however slowly: like `departs`, from its lowest."""
    values = series.values
    if values.size < 2 * _LEAST:
        return None
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(values, _SMOOTH), axis=1)
    steps = np.diff(values)
    noise = 1.05 * float(np.median(np.abs(steps - np.median(steps))))
    lowest = int(np.argmin(smooth))
    least = float(smooth[lowest])
    climb = smooth[lowest:] - least
    if climb[-1] < max(_SIGMAS * noise, _LOSS_SHARE * abs(least)) or climb.size < _BEFORE:
        return None
    # Medians that share samples are often equal, so a rise shows between those that share none.
    apart = max(_SMOOTH, climb.size // 8)
    if float(np.mean(climb[apart:] > climb[:-apart])) < _CLIMBING:
        return None
    end = lowest + int(np.argmax(climb > max(_SIGMAS * noise, 0.02 * abs(least)))) + _SMOOTH - 1
    return _begins(values, end, least + _BEGUN * noise), float(values[-_SMOOTH:].max()), least


def _turned(values: Floats, index: int) -> int:
    """Where a loss that used to fall began to rise: after the last step that was near its lowest.

    What is usual lags behind a loss that falls, so a rise passes it steps after it began.
    """
    start = max(0, index - _BEFORE)
    before = values[start:index]
    if before.size < _LEAST:
        return index
    steps = np.diff(before)
    noise = 1.05 * float(np.median(np.abs(steps - np.median(steps))))
    near = np.flatnonzero(before <= float(before.min()) + _NEAR * noise)
    return min(index, start + int(near[-1]) + 1)


def _loss(scene: RunTimeline, record: ObservationRecorder) -> None:
    series = scene.training.series(LOSS)
    if series is None:
        record.row("loss", None, f"{LOSS}: metric absent", question="training")
        return
    source = scene.answers.promql("training")
    broken = np.sort(np.concatenate([series.nan_times, series.times[np.isinf(series.values)]]))
    if broken.size:
        step = scene.training.step_at(float(broken[0]))
        text = f"loss is NaN or infinite in {broken.size} samples, first at step {step}"
        record.row("loss-nan", True, text, value=float(broken.size), question="training")
        _diverged(scene, record, "loss-nan", text, source, float(broken[0]), None)
        return
    record.row("loss-nan", False, "no NaN in the loss", question="training")
    found = departs(series, 1.0, _LOSS_SHARE) or turns(series)
    if found is None:
        record.row("loss-jump", False, "no jump that stays", question="training")
        record.rule_out("loss-divergence", "loss has no NaN and no jump that stays")
        return
    index, value, level = found
    time = float(series.times[_turned(series.values, index)])
    text = f"loss rises from {level:.3g} to {value:.3g} at step {scene.training.step_at(time)}"
    grads = "; gradients rose with it" if _near_gradients(scene, time) else ""
    record.row("loss-jump", True, text + grads, value=value, question="training")
    _diverged(scene, record, "loss-jump", text + grads, source, time, value)


def _diverged(
    scene: RunTimeline,
    record: ObservationRecorder,
    row: str,
    text: str,
    source: str,
    time: float,
    value: Optional[float],
) -> None:
    record.observe(
        row,
        "loss-divergence",
        [Evidence(source, text, value, time)],
        onset=time,
        confidence=Confidence.CONFIRMED,
        uncertainty_s=scene.training.step_time_s or 0.0,
    )


def _near_gradients(scene: RunTimeline, time: float) -> bool:
    found = _explosion(scene)
    each = scene.training.step_time_s or 0.0
    return found is not None and abs(found[1] - time) <= 10 * each


def _explosion(scene: RunTimeline) -> Optional[tuple[str, float, float, float]]:
    """(metric, time, value, usual) of gradients that grew many times over, or became NaN."""
    found = []
    for metric in (RAW_GRAD, GRAD):
        series = scene.training.series(metric)
        if series is None:
            continue
        if series.nan_times.size:
            found.append((metric, float(series.nan_times[0]), float("nan"), float("nan")))
        hit = departs(series, _GRAD_FACTOR, 0.0, hold=2)
        if hit is not None:
            found.append((metric, float(series.times[hit[0]]), hit[1], hit[2]))
    return min(found, key=lambda one: one[1], default=None)


def _gradients(scene: RunTimeline, record: ObservationRecorder) -> None:
    series = scene.training.series(GRAD) or scene.training.series(RAW_GRAD)
    if series is None:
        record.row("gradients", None, f"{GRAD}: metric absent", question="training")
        return
    found = _explosion(scene)
    if found is None:
        record.row("gradients", False, "no explosion", question="training")
    else:
        metric, time, value, level = found
        text = f"{metric} rises from {level:.3g} to {value:.3g}"
        record.row("gradients", True, text, value=value, question="training")
        record.observe(
            "gradients",
            "gradient-explosion",
            [Evidence(scene.answers.promql("training"), text, value, time)],
            onset=time,
            confidence=Confidence.LIKELY,
            uncertainty_s=scene.training.step_time_s or 0.0,
        )
    raw, clipped = scene.training.series(RAW_GRAD), scene.training.series(GRAD)
    if raw is not None and clipped is not None and len(raw) and len(clipped):
        ratio = float(np.median(raw.values)) / max(float(np.median(clipped.values)), 1e-12)
        if ratio > _CLIP_FACTOR:
            text = "raw gradients are far above clipped ones: clipping is at work, maybe too much"
            record.row("clipping", True, text, value=ratio, question="training")


def _balance(scene: RunTimeline, record: ObservationRecorder) -> None:
    series = scene.training.series(BALANCE)
    if series is None:
        record.row("moe-balance", None, f"{BALANCE}: metric absent", question="training")
        return
    found = departs(series, _BALANCE_FACTOR, 0.0)
    if found is None:
        record.row("moe-balance", False, "experts stay balanced", question="training")
        record.rule_out("moe-imbalance", "the balance loss of the experts is steady")
        return
    index, value, level = found
    time = float(series.times[index])
    text = f"balance loss of the experts rises from {level:.3g} to {value:.3g}: routing changed"
    record.row("moe-balance", True, text, value=value, question="training")
    record.observe(
        "moe-balance",
        "moe-imbalance",
        [Evidence(scene.answers.promql("training"), text, value, time)],
        onset=time,
        confidence=Confidence.LIKELY,
        uncertainty_s=scene.training.step_time_s or 0.0,
    )


# ---- learning rate


def _learning_rate(scene: RunTimeline, record: ObservationRecorder) -> None:
    series = scene.training.series(RATE)
    if series is None or len(series) < _LEAST:
        record.row("learning-rate", None, f"{RATE}: metric absent", question="training")
        return
    found = _off_schedule(scene, series) or _jump(series)
    if found is None:
        record.row("learning-rate", False, "follows a smooth schedule", question="training")
        return
    time, value, text = found
    record.row("learning-rate", True, text, value=value, question="training")
    record.observe(
        "learning-rate",
        "lr-anomaly",
        [Evidence(scene.answers.promql("training"), text, value, time)],
        onset=time,
        confidence=Confidence.LIKELY,
        uncertainty_s=scene.training.step_time_s or 0.0,
    )


def _jump(series: Series) -> Optional[tuple[float, float, str]]:
    """From one step to the next by more than any schedule does, but for the first steps."""
    values = series.values
    for index in range(_LEAST, values.size):
        before, now = float(values[index - 1]), float(values[index])
        usual_step = float(np.max(np.abs(np.diff(values[index - _LEAST : index]))))
        if abs(now - before) <= max(_SIGMAS * usual_step, 0.0) or before < 0 or now < 0:
            continue
        low, high = min(before, now), max(before, now)
        if high > 0 and (low == 0 or high / low > _JUMP):
            text = f"learning rate jumps from {before:.3g} to {now:.3g}"
            return float(series.times[index]), now, text
    return None


def _off_schedule(scene: RunTimeline, series: Series) -> Optional[tuple[float, float, str]]:
    """Away from the warm-up that the job was configured with; only where its numbers are known."""
    config = scene.job.config
    peak, total = _number(config.get("learning_rate")), scene.job.total_steps
    share = _number(config.get("warmup_steps_fraction"))
    total = int(_number(config.get("learning_rate_schedule_steps")) or total or 0)
    if not peak or not total or not share:
        return None
    warm = share * total
    steps = np.array([scene.training.step_at(float(t)) or 0 for t in series.times])
    inside = (steps > 2) & (steps < 0.95 * warm)
    wanted = peak * (steps + 1) / max(warm, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = inside & (np.abs(series.values - wanted) > 0.15 * wanted + peak * 2 / max(warm, 1.0))
    index = next(_runs(off, _REGRESSION_STEPS), None)
    if index is None:
        return None
    text = (
        f"learning rate {series.values[index]:.3g} at step {steps[index]}, where the configured "
        f"warm-up has {wanted[index]:.3g}"
    )
    return float(series.times[index]), float(series.values[index]), text


def _number(text: Optional[str]) -> Optional[float]:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _runs(flags: NDArray[np.bool_], hold: int) -> Iterator[int]:
    """Where a row of so many true flags begins."""
    count = 0
    for index, flag in enumerate(flags):
        count = count + 1 if flag else 0
        if count == hold:
            yield index - hold + 1


# ---- speed


def _steps(scene: RunTimeline, record: ObservationRecorder) -> None:
    """Slow steps: at saves they are normal, elsewhere they are told."""
    series = scene.training.series(SECONDS)
    if series is None or len(series) < _LEAST:
        record.row("step-time", None, f"{SECONDS}: metric absent", question="training")
        return
    normal = float(np.median(series.values))
    slow = series.values > _SPIKE * normal
    keep = scene.context.judged(series.times, "", SECONDS)
    in_saves = slow & ~scene.context.judged(series.times, "", SECONDS, SAVE)
    if in_saves.any():
        extra = float(np.median(series.values[in_saves]) - normal)
        text = f"{int(in_saves.sum())} slow steps, each at a save, {extra:.0f} s longer: normal"
        record.row("save-steps", True, text, value=extra, unit="s", question="training")
    others = slow & keep
    text = f"{int(others.sum())} slow steps away from saves"
    record.row("slow-steps", bool(others.any()), text, value=normal, unit="s", question="training")
    steady = series.values[keep & ~slow]
    if steady.size >= 4 * _LEAST:
        parts = np.array_split(steady, 4)
        rise = [float(np.median(part)) for part in parts]
        gradual = rise == sorted(rise) and rise[-1] > (1 + _GRADUAL) * rise[0]
        text = f"from {rise[0]:.2f} s to {rise[-1]:.2f} s over the run" if gradual else "steady"
        record.row("gradual", gradual, text, value=rise[-1], unit="s", question="training")


def _throughput(scene: RunTimeline, record: ObservationRecorder) -> Optional[contention.Slow]:
    """Throughput below its steady mean; a symptom, with the time at which it began."""
    series = scene.training.series(TGS)
    if series is None or len(series) < 2 * _LEAST:
        record.row("throughput", None, f"{TGS}: metric absent", question="training")
        return None
    keep = scene.context.judged(series.times, "", TGS)
    times, values = series.times[keep], series.values[keep]
    if values.size < 2 * _LEAST:
        record.row("throughput", None, "too few steps outside saves and warm-up")
        return None
    early = values[: max(_LEAST, min(_BEFORE, values.size // 3))]
    level = float(np.median(early))
    low = values < (1 - REGRESSION) * level
    first = next(_runs(low, _REGRESSION_STEPS), None)
    if first is None:
        text = f"within {100 * REGRESSION:.0f} % of {level:.0f} tokens/s/device"
        record.row("throughput", False, text, value=level, question="training")
        return None
    back = np.flatnonzero(~low[first:])
    last = first + int(back[0]) - 1 if back.size else values.size - 1
    # Several phases are one regression, from the first to the last.
    last = max(last, int(np.flatnonzero(low)[-1]))
    worst = float(np.median(values[low]))
    change = 100 * (worst / level - 1)
    slow = contention.Slow(float(times[first]), float(times[last]), change)
    ended = last < values.size - _HOLD
    text = f"{change:.0f} % of {level:.0f} tokens/s/device" + (", and back since" if ended else "")
    record.row("throughput", True, text, value=worst, unit="tokens/s/device", question="training")
    record.observe(
        "throughput",
        "tgs-degradation",
        [Evidence(scene.answers.promql("training"), text, worst, slow.start)],
        onset=slow.start,
        confidence=Confidence.CONFIRMED,
        symptom=True,
        until=slow.end,
        recovered=ended,
        uncertainty_s=scene.training.step_time_s or 0.0,
        facts={"change_percent": change},
    )
    return slow
