"""Times that say nothing about a fault: saves, start-up, after the end, and repeated old samples.

Pure functions over series. What falls into a mask is neither baseline nor anomaly. Asynchronous
saves that follow each other closely leave no time outside of "some minutes after a save"; then what
the storage itself shows after each save decides how long that is.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from raydiag.timeline.answers import Answers, ResultTable
from raydiag.timeline.context import (
    AFTER_HANG,
    BEFORE_JOB,
    GHOST,
    SAVE,
    WARM_UP,
    WRITE_BACK,
    Context,
    Mask,
    SaveWindow,
)
from raydiag.timeline.queries import IO_FULL, SCRAPE
from raydiag.timeline.rhythm import Rhythm, rhythm_of
from raydiag.timeline.steps import (
    ASYNC_STEPS,
    WARM_UP_STEPS,
    MetricSteps,
    inferred_rhythm,
    save_steps,
)
from raydiag.timeline.threshold_spans import above
from raydiag.tsdb.series import Floats, Series

WRITEBACK_S = 480.0  # what an asynchronous save goes on writing in the background
_SLOW_STEP = 1.5  # times the usual step: that step paid for the save before it
_SAVE_FACTOR = 3.0  # times the longest save seen: more is no save any more
_SAVE_UNSEEN_S = 1800.0  # the same where none was seen
FLAT_S = 300.0  # a gauge that varies and did not for so long, is not measured any more
_FLAT_SOONER_S, _FLAT_FACTOR = 60.0, 10.0  # or so many times as long as it ever did before
_FLAT_SAMPLES, _LEARNED_RUNS = 10, 10


def of_job(
    context: Context, answers: Answers, steps: MetricSteps, slack_s: float = 0.0
) -> tuple[Mask, ...]:
    """Everything that is known to say nothing, for a run of the playbooks.

    `slack_s`: how far the times of the steps may be off, by which saves are widened.
    """
    job = context.job
    of_saves = [
        replace(mask, start=mask.start - slack_s, end=mask.end + slack_s)
        for mask in saves(steps, job.save_rhythm, job.async_saves, job.saves)
    ] or saves_by_storage(answers, job.coordinator or next(iter(context.hosts), ""))
    if steps.last_at is not None:
        of_saves = bounded(of_saves, answers, float(steps.ended_at[0]), steps.last_at)
    outside = outside_training(steps, job.start, job.end)
    return (*of_saves, *outside, *ghosts_of_all_hosts(answers))


def saves(
    steps: MetricSteps,
    rhythm: Rhythm | None,
    is_async: bool | None,
    logged: Iterable[SaveWindow] = (),
) -> list[Mask]:
    """Windows in which a checkpoint is saved, from the end of the step before on.

    A save that blocks ends with its step. Where it does not, or where nobody says, the steps that
    pay for it belong to it too, and the writing in the background follows as a mask of its own,
    for what it loads. `logged` are those of the log.
    """
    masks, numbers = [], set(save_steps(steps, rhythm or inferred_rhythm(steps)))
    for window in logged:
        dated = _dated(window, steps)
        if dated is not None:
            masks.append(dated)
        elif window.step is not None and (steps.first or 0) <= window.step <= (steps.last or -1):
            numbers.add(window.step)
    if steps.step_time_s is not None:
        masks += _masks_of_steps(steps, sorted(numbers), steps.step_time_s, is_async)
    return masks


def _dated(window: SaveWindow, steps: MetricSteps) -> Mask | None:
    """A save that the log dates: what it leaves open, the steps around it tell."""
    start, end = window.start, window.end
    if end is not None and start is None:
        start = next(map(float, steps.ended_at[steps.ended_at < end][::-1]), None)
    if start is not None and end is None:
        end = next(map(float, steps.ended_at[steps.ended_at > start]), start + _SAVE_UNSEEN_S)
    return Mask(SAVE, start, end) if start is not None and end is not None else None


def _masks_of_steps(
    steps: MetricSteps, numbers: Iterable[int], usual_s: float, is_async: bool | None
) -> Iterator[Mask]:
    longest = 0.0
    for number in numbers:
        # A fresh run saves with its very first step, somewhere in the start-up.
        start = -math.inf if number == steps.first else _save_start(steps, number, usual_s)
        end = _save_end(steps, number, usual_s, is_async)
        if end is None:
            limit = _SAVE_FACTOR * longest or _SAVE_UNSEEN_S
            yield Mask(SAVE, start, start + max(limit, usual_s))
            continue
        if number != steps.first and end - start > _SLOW_STEP * usual_s:
            longest = max(longest, end - start)
        yield Mask(SAVE, start, end)
        written = max(start, float(steps.ended_at[0])) + WRITEBACK_S
        if is_async is not False and written > end:
            yield Mask(WRITE_BACK, end, written)


def _save_start(steps: MetricSteps, number: int, usual_s: float) -> float:
    """When the step before it ended, counted on from the last step that is known."""
    before = max(int(np.searchsorted(steps.numbers, number)) - 1, 0)
    missing = number - 1 - steps.numbers[before]
    return float(steps.ended_at[before] + max(0.0, missing) * usual_s)


def _save_end(
    steps: MetricSteps, number: int, usual_s: float, is_async: bool | None
) -> float | None:
    """When the last step that the save slowed down ended; None when no step followed."""
    after = int(np.searchsorted(steps.numbers, number))
    if after >= steps.numbers.size:
        return None
    end = float(steps.ended_at[after] - max(0.0, steps.numbers[after] - number) * usual_s)
    if is_async is not False:
        paying = steps.ended_at[after + 1 : after + 1 + ASYNC_STEPS]
        return float(paying.max(initial=end))
    if after + 1 < steps.numbers.size and steps.durations[after] > _SLOW_STEP * usual_s:
        return float(steps.ended_at[after + 1])
    return end


def outside_training(
    steps: MetricSteps, job_start: float | None, job_end: float | None
) -> Iterator[Mask]:
    """What is not steady training: before the job, warm-up, and all after the last step."""
    if job_start is not None:
        yield Mask(BEFORE_JOB, -math.inf, float(np.nextafter(job_start, -math.inf)))
    if steps.last_at is not None:
        warm_up_end = float(steps.ended_at[min(WARM_UP_STEPS, len(steps)) - 1])
        yield Mask(WARM_UP, job_start or -math.inf, warm_up_end)
        yield Mask(AFTER_HANG, steps.last_at + (steps.step_time_s or 0.0), math.inf)
    elif job_end is not None:
        yield Mask(AFTER_HANG, job_end, math.inf)


def flat_runs(series: Series) -> Iterator[tuple[float, float]]:
    """(first sample, last sample) of each time in which a gauge kept one value for too long.

    That is `FLAT_S`, or less where its earlier samples show how often it changes. `series` must be
    raw samples: a range query repeats the last one up to the server's lookback. A gap ends a run.
    Not for gauges that may stand still, such as a port's state.
    """
    if len(series) < _FLAT_SAMPLES:
        return
    gap_s = 2.5 * (series.spacing_s or 0.0)
    broken = (np.diff(series.values) != 0) | (np.diff(series.times) > gap_s)
    edges = np.flatnonzero(np.concatenate([[True], broken, [True]]))
    longest_s = 0.0
    for count, (low, high) in enumerate(zip(edges[:-1], edges[1:] - 1, strict=True)):
        start, end = float(series.times[low]), float(series.times[high])
        least_s = FLAT_S
        if count >= _LEARNED_RUNS:
            least_s = min(FLAT_S, max(_FLAT_SOONER_S, _FLAT_FACTOR * longest_s))
        if high - low + 1 >= _FLAT_SAMPLES and end - start >= least_s:
            yield start, end
        else:
            longest_s = max(longest_s, end - start)


def ghosts(host: str, scrape_duration: Series, confirming: Sequence[Series] = ()) -> list[Mask]:
    """When a host's exporter repeated an old answer, by the duration of its own cycles.

    `confirming` are gauges of the same host that cannot stand still under load (power): where one
    of them varied, it was none.
    """
    masks = []
    for start, end in flat_runs(scrape_duration):
        if any(_varied(series.between(start, end)) for series in confirming):
            continue
        later = scrape_duration.times[scrape_duration.times > end]
        until = float(np.nextafter(later[0], -math.inf)) if later.size else math.inf
        masks.append(Mask(GHOST, start, until, host, "hw_"))
    return masks


def _varied(series: Series) -> bool:
    return series.values.size > 1 and bool(np.ptp(series.values[1:]) > 0)


def ghosts_of_all_hosts(answers: Answers) -> Iterator[Mask]:
    """Of every host whose exporter's cycles are timed."""
    for host, duration in scrape_durations(answers).items():
        power = _mean_power(answers, host)
        yield from ghosts(host, duration, () if power is None else (power,))


def scrape_durations(answers: Answers) -> dict[str, Series]:
    """Duration of the exporter's cycles by host, at the times of the samples themselves.

    The grid of a range query repeats a sample until it is five minutes old; the times of the real
    samples tell which values were there.
    """
    table = answers.table("driver").pick(SCRAPE)
    sample_times = answers.sample_times()
    durations = {}
    for subject, row in table:
        times, values = table.times, row
        if subject.host in sample_times:
            grid, stamps = sample_times[subject.host]
            _, in_table, in_grid = np.intersect1d(times, grid, return_indices=True)
            times, values = stamps[in_grid], row[in_table]
        finite = np.isfinite(values) & np.isfinite(times)
        times, first = np.unique(times[finite], return_index=True)
        durations[subject.host] = Series({"host": subject.host}, times, values[finite][first])
    return durations


def _mean_power(answers: Answers, host: str) -> Series | None:
    table = answers.table("gpu-power")
    values = table.row(host, "avg")
    if values is None:
        return None
    finite = np.isfinite(values)
    return Series({"host": host}, table.times[finite], values[finite])


# ---- how long a save goes on writing in the background

MAX_MASKED = 0.5  # of training: beyond that a guess is not good enough
MIN_JUDGED = 0.1  # of training: with less outside of saves nothing was judged
_MIN_SAVES = 3  # that tell what is usual
_LOADED_PERCENT = 5.0  # I/O pressure, "full", of a host that writes
_OF_ONE_HOST = 0.8  # of the load
_PAUSE_S = 60.0  # quiet for so long: it has written everything
_LONGER = 1.6  # times the usual one: it is none of them
_MARGIN = 1.25  # one save may write longer than the usual one


def bounded(masks: Sequence[Mask], answers: Answers, start: float, end: float) -> list[Mask]:
    """The masks of saves, those of their write-back as short as the usual one was measured.

    Left alone where they cover no more than half of training, from `start` to `end`, or where
    nothing was measured.
    """
    if share(masks, start, end) <= MAX_MASKED:
        return list(masks)
    length = usual_s(masks, answers)
    if length is None:
        return list(masks)
    shortened = []
    for mask in masks:
        if mask.kind == WRITE_BACK:
            mask = replace(mask, end=min(mask.end, mask.start + length))
        if mask.end > mask.start:
            shortened.append(mask)
    return shortened


def saves_by_storage(answers: Answers, first_host: str) -> list[Mask]:
    """Saves that nothing else tells of: storage is loaded about as long, again and again.

    On several hosts, or on that of the first rank: what chokes one other host is no save.
    """
    table = answers.table("storage").pick(IO_FULL)
    if table.is_blank:
        return []
    loaded = np.count_nonzero(np.nan_to_num(table.values) > _LOADED_PERCENT, axis=1)
    busiest = int(np.argmax(loaded))
    is_of_one_host = len(table) > 1 and loaded[busiest] > _OF_ONE_HOST * loaded.sum()
    if is_of_one_host and table.subjects[busiest].host != first_host:
        return []
    pulses = above(table, np.nan_to_num(table.values, nan=-1.0).max(axis=0), _LOADED_PERCENT)
    usual = float(np.median([pulse.end - pulse.start for pulse in pulses] or [0.0]))
    longest = _LONGER * max(usual, table.step_s)
    alike = [pulse for pulse in pulses if usual / _LONGER <= pulse.end - pulse.start <= longest]
    starts = np.array([pulse.start for pulse in alike])
    rhythm = rhythm_of(starts, longest, max(_PAUSE_S, usual / 2))
    if rhythm is None:
        return []
    return [
        Mask(SAVE, pulse.start - table.step_s, min(pulse.end, pulse.start + longest) + table.step_s)
        for pulse in alike
        if rhythm.is_near(pulse.start, max(_PAUSE_S, usual / 2))
    ]


def share(masks: Sequence[Mask], start: float, end: float) -> float:
    """How much of a stretch saves and their write-back cover, 0 to 1."""
    if end <= start:
        return 0.0
    times = np.linspace(start, end, 2000)
    covered = np.zeros(times.size, dtype=np.bool_)
    for mask in masks:
        if mask.kind in (SAVE, WRITE_BACK) and mask.host is None:
            covered |= (times >= mask.start) & (times <= mask.end)
    return float(covered.mean())


def unjudged(context: Context, trained: tuple[float, float] | None) -> float | None:
    """The share that is covered, where so little remains that storage could not be judged."""
    if trained is None:
        return None
    covered = share(context.masks, *trained)
    return covered if covered > 1.0 - MIN_JUDGED else None


def usual_s(masks: Sequence[Mask], answers: Answers) -> float | None:
    """Seconds that the slowest host usually writes on after a save; None with too few of them.

    The median of each host's saves: storage that stalls during a few of them changes nothing.
    """
    table = answers.table("storage").pick(IO_FULL)
    windows = list(_write_back_windows(masks))
    if len(windows) < _MIN_SAVES or not len(table) or table.times.size < 2:
        return None
    longest = 0.0
    for _, row in table:
        lengths = [length for length in _written_s(table, row, windows) if length is not None]
        if len(lengths) >= _MIN_SAVES:
            longest = max(longest, float(np.median(lengths)))
    return _MARGIN * longest + 2.0 * table.step_s


def _write_back_windows(masks: Sequence[Mask]) -> Iterator[tuple[float, float]]:
    """From the end of each save to the next one, or to where its write-back is guessed to end."""
    starts = sorted(mask.start for mask in masks if mask.kind == SAVE)
    for mask in masks:
        if mask.kind == WRITE_BACK:
            next_save = min((start for start in starts if start >= mask.start), default=mask.end)
            yield mask.start, min(mask.end, next_save)


def _written_s(
    table: ResultTable, row: Floats, windows: Sequence[tuple[float, float]]
) -> Iterator[float | None]:
    """For each window, seconds from its start to the last sample under load before a pause."""
    for start, end in windows:
        inside = (table.times >= start) & (table.times <= end) & ~np.isnan(row)
        if not inside.any():
            yield None
            continue
        loaded = table.times[inside & (row > _LOADED_PERCENT)]
        last = start
        for before, time in pairwise([start, *loaded.tolist()]):
            if time - before > max(_PAUSE_S, 2.0 * table.step_s):
                break
            last = time
        yield last - start
