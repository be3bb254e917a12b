"""When a node's exporter repeated old samples instead of measuring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Optional

import numpy as np

from raydiag.timeline.answers import Answers
from raydiag.timeline.context import GHOST, Mask
from raydiag.timeline.queries import SCRAPE
from raydiag.tsdb.series import Series

FLAT_S = 300.0  # a gauge that varies and did not for so long, is not measured any more
_FLAT_SAMPLES = 10


def flat_runs(series: Series) -> Iterator[tuple[float, float]]:
    """(first sample, last sample) of each time in which a gauge kept exactly one value.

    `series` must be raw samples: a range query repeats the last one up to the server's lookback.
    A gap ends a run. Not for gauges that may stand still, such as a port's state.
    """
    if len(series) < _FLAT_SAMPLES:
        return
    gap_s = 2.5 * (series.spacing_s or 0.0)
    broken = (np.diff(series.values) != 0) | (np.diff(series.times) > gap_s)
    edges = np.flatnonzero(np.concatenate([[True], broken, [True]]))
    for low, high in zip(edges[:-1], edges[1:] - 1, strict=True):
        start, end = float(series.times[low]), float(series.times[high])
        if high - low + 1 >= _FLAT_SAMPLES and end - start >= FLAT_S:
            yield start, end


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


def _mean_power(answers: Answers, host: str) -> Optional[Series]:
    table = answers.table("gpu-power")
    values = table.row(host, "avg")
    if values is None:
        return None
    finite = np.isfinite(values)
    return Series({"host": host}, table.times[finite], values[finite])
