"""Series of samples, queries to Prometheus, and their results.

Times are Unix seconds UTC. A sample that is NaN is kept apart from one that is not there: a loss
that became NaN is a fact, a scrape that failed is another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raydiag.errors import UsageError
from raydiag.model import Status, Window

Floats = NDArray[np.float64]

_STEPS_S = {7200: 30.0, 86400: 60.0}  # by the longest window that they are for
MAX_POINTS = 11_000  # per series: what Prometheus answers at most to a range query


@dataclass(frozen=True, eq=False)
class Series:
    """One series: its labels (with `__name__` where it has one) and its samples in time order."""

    labels: Mapping[str, str]
    times: Floats  # of the samples that are numbers, ascending
    values: Floats  # beside `times`; may be infinite, never NaN
    nan_times: Floats = field(default_factory=lambda: np.empty(0))  # of the samples that are NaN

    @classmethod
    def of(cls, labels: Mapping[str, str], times: ArrayLike, values: ArrayLike) -> Series:
        """From samples as Prometheus gives them, in any order, NaN among them."""
        times, values = np.asarray(times, np.float64), np.asarray(values, np.float64)
        if times.size > 1 and (np.diff(times) < 0).any():
            order = np.argsort(times, kind="stable")
            times, values = times[order], values[order]
        is_nan = np.isnan(values)
        if not is_nan.any():
            return cls(labels, times, values)
        return cls(labels, times[~is_nan], values[~is_nan], times[is_nan])

    @property
    def metric(self) -> str:
        """Name of the metric; "" for the result of an expression."""
        return self.labels.get("__name__", "")

    def __len__(self) -> int:
        return int(self.times.size)

    @property
    def last(self) -> float | None:
        """Value of the newest sample that is a number."""
        return float(self.values[-1]) if self.values.size else None

    def between(self, start: float, end: float) -> Series:
        """The samples from `start` to `end`, both included."""
        keep = (self.times >= start) & (self.times <= end)
        nans = (self.nan_times >= start) & (self.nan_times <= end)
        return Series(self.labels, self.times[keep], self.values[keep], self.nan_times[nans])

    @property
    def spacing_s(self) -> float | None:
        """Usual distance of two samples, NaN among them; None for fewer than two."""
        times = self.sampled_at
        return float(np.median(np.diff(times))) if times.size > 1 else None

    @property
    def sampled_at(self) -> Floats:
        """Times of all samples, NaN among them."""
        if not self.nan_times.size:
            return self.times
        return np.sort(np.concatenate([self.times, self.nan_times]))


@dataclass(frozen=True, eq=False)
class Frame:
    """Series over one grid of times: what is compared between hosts at the same moment."""

    labels: tuple[Mapping[str, str], ...]  # one a row
    times: Floats  # [columns], ascending
    values: Floats  # [rows, columns]; NaN: no sample, or one that was NaN

    @classmethod
    def of(cls, series: Iterable[Series]) -> Frame:
        """On the union of the times; the answers to one range query share their grid."""
        rows = list(series)
        stamps = [row.sampled_at for row in rows]
        times = np.unique(np.concatenate(stamps)) if stamps else np.empty(0)
        values = np.full((len(rows), times.size), np.nan)
        for index, row in enumerate(rows):
            if np.array_equal(row.times, times):  # the whole grid, as most rows have it
                values[index] = row.values
            else:
                values[index, np.searchsorted(times, row.times)] = row.values
        return cls(tuple(row.labels for row in rows), times, values)


@dataclass(frozen=True)
class Query:
    """One PromQL query. Without a step it is evaluated once, at the end of its window."""

    id: str  # unique within a run, e.g. "gpu-power"
    promql: str
    window: Window  # `step` 0: an instant query at `end`; `start` then says what it looks back on

    def __post_init__(self) -> None:
        window = self.window
        if not np.isfinite([window.start, window.end, window.step]).all():
            raise UsageError(f"{self.id}: a window needs a start and an end in Unix seconds")
        if window.end < window.start or window.step < 0:
            raise UsageError(f"{self.id}: the window ends before it starts")
        if self.is_range and (window.end - window.start) / window.step > MAX_POINTS:
            raise UsageError(f"{self.id}: more than {MAX_POINTS} points: take a longer step")

    @classmethod
    def at(cls, query_id: str, promql: str, time: float) -> Query:
        """Asked once, at `time`."""
        return cls(query_id, promql, Window(time, time))

    @classmethod
    def over(cls, query_id: str, promql: str, window: Window, step_s: float = 0.0) -> Query:
        """Asked at each step of the window; without one, at a step that fits its length."""
        step = max(step_s, window.step) or fitting_step_s(window)
        return cls(query_id, promql, Window(window.start, window.end, step))

    @property
    def is_range(self) -> bool:
        """Whether it is evaluated at several times."""
        return self.window.step > 0


def fitting_step_s(window: Window) -> float:
    """30 s up to two hours, 60 s up to a day, 300 s beyond; longer where that is too many."""
    length = window.end - window.start
    step = next((step for limit, step in _STEPS_S.items() if length <= limit), 300.0)
    return max(step, float(np.ceil(length / (MAX_POINTS - 1))))


@dataclass(frozen=True, eq=False)
class QueryResult:
    """What came back: an empty result with status ok means that there are no such samples."""

    query: Query
    status: Status
    reason: str = ""  # set unless status is ok; the server's own text where it has one
    series: tuple[Series, ...] = ()
    warnings: tuple[str, ...] = ()  # of the server
    duration_s: float = 0.0
    bad_query: bool = False  # the server calls the PromQL itself wrong

    @property
    def ok(self) -> bool:
        """Whether the server answered."""
        return self.status is Status.OK

    @property
    def samples(self) -> int:
        """Samples of all series, NaN among them."""
        return sum(series.sampled_at.size for series in self.series)


@dataclass(frozen=True)
class AskedQuery:
    """The record of one query, so that a person can repeat it by hand."""

    id: str
    promql: str
    start: float
    end: float
    step_s: float  # 0: asked once, at `end`
    status: Status
    reason: str
    rows: int  # series
    samples: int
    duration_s: float

    @classmethod
    def of(cls, answer: QueryResult) -> AskedQuery:
        """The record of a query and its result."""
        query, window = answer.query, answer.query.window
        how = (query.id, query.promql, window.start, window.end, window.step)
        rows = len(answer.series)
        return cls(*how, answer.status, answer.reason, rows, answer.samples, answer.duration_s)
