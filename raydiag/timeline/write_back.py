"""How long a save really goes on writing in the background, where a guess would hide the run.

Asynchronous saves that follow each other closely leave no time outside of "some minutes after a
save". Then what the storage itself shows after each save decides how long that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from raydiag.timeline.answers import Answers, ResultTable
from raydiag.timeline.context import SAVE, WRITE_BACK, Context, Mask
from raydiag.timeline.queries import IO_FULL
from raydiag.timeline.rhythm import rhythm_of
from raydiag.timeline.threshold_spans import above
from raydiag.tsdb.series import Floats

MAX_MASKED = 0.5  # of training: beyond that a guess is not good enough
MIN_JUDGED = 0.1  # of training: with less outside of saves nothing was judged
_MIN_SAVES = 3  # that tell what is usual
_LOADED_PERCENT = 5.0  # I/O pressure, "full", of a host that writes
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


def saves_by_storage(answers: Answers) -> list[Mask]:
    """Saves that nothing else tells of: storage is loaded about as long, again and again."""
    table = answers.table("storage").pick(IO_FULL)
    if table.is_blank:
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
