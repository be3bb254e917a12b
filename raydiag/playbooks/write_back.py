"""How long a save really goes on writing in the background, where a guess would hide the run.

Asynchronous saves that follow each other closely leave no time outside of "some minutes after a
save". Then what the storage itself shows after each save decides how long that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Optional

import numpy as np

from raydiag.playbooks.context import SAVE, WRITE_BACK, Context, Mask
from raydiag.playbooks.queries import IO_FULL
from raydiag.playbooks.query_results import Answers, ResultTable
from raydiag.tsdb.series import Floats

MOST_MASKED = 0.5  # of training: beyond that a guess is not good enough
LEAST_JUDGED = 0.1  # of training: with less outside of saves nothing was judged
_LEAST_SAVES = 3  # that tell what is usual
_LOADED_PERCENT = 5.0  # I/O pressure, "full", of a host that writes
_PAUSE_S = 60.0  # quiet for so long: it has written everything
_MARGIN = 1.25  # one save may write longer than the usual one


def bounded(found: Sequence[Mask], answers: Answers, start: float, end: float) -> list[Mask]:
    """The masks of saves, those of their write-back as short as the usual one was measured.

    Left alone where they cover no more than half of training, from `start` to `end`, or where
    nothing was measured.
    """
    if share(found, start, end) <= MOST_MASKED:
        return list(found)
    length = usual_s([one for one in found if one.kind == WRITE_BACK], found, answers)
    if length is None:
        return list(found)
    cut = [
        replace(one, end=min(one.end, one.start + length)) if one.kind == WRITE_BACK else one
        for one in found
    ]
    return [one for one in cut if one.end > one.start]


def share(masks: Sequence[Mask], start: float, end: float) -> float:
    """How much of a stretch saves and their write-back cover, 0 to 1."""
    if end <= start:
        return 0.0
    times = np.linspace(start, end, 2000)
    covered = np.zeros(times.size, dtype=np.bool_)
    for one in masks:
        if one.kind in (SAVE, WRITE_BACK) and one.host is None:
            covered |= (times >= one.start) & (times <= one.end)
    return float(covered.mean())


def unjudged(context: Context, trained: Optional[tuple[float, float]]) -> Optional[float]:
    """The share that is covered, where so little is left that storage could not be judged."""
    if trained is None:
        return None
    covered = share(context.masks, *trained)
    return covered if covered > 1.0 - LEAST_JUDGED else None


def usual_s(backs: Sequence[Mask], found: Sequence[Mask], answers: Answers) -> Optional[float]:
    """Seconds that the slowest host usually writes on after a save; None with too few of them.

    The median of each host's saves: storage that stalls during a few of them changes nothing.
    """
    table = answers.table("storage").pick(IO_FULL)
    if len(backs) < _LEAST_SAVES or not len(table) or table.times.size < 2:
        return None
    starts = sorted(one.start for one in found if one.kind == SAVE)
    windows = []
    for one in backs:
        later = [moment for moment in starts if moment >= one.start]
        windows.append((one.start, min([one.end, *later[:1]])))
    longest = 0.0
    for _, row in table:
        each = [_written_s(table, row, *window) for window in windows]
        known = [length for length in each if length is not None]
        if len(known) >= _LEAST_SAVES:
            longest = max(longest, float(np.median(known)))
    return _MARGIN * longest + 2.0 * table.step_s


def _written_s(table: ResultTable, row: Floats, start: float, end: float) -> Optional[float]:
    """From the start to the last sample under load before the first pause; None without any."""
    inside = (table.times >= start) & (table.times <= end) & ~np.isnan(row)
    times = table.times[inside]
    if not times.size:
        return None
    loaded = [float(one) for one in times[row[inside] > _LOADED_PERCENT]]
    last = start
    for before, moment in pairwise([start, *loaded]):
        if moment - before > max(_PAUSE_S, 2.0 * table.step_s):
            break
        last = moment
    return last - start
