"""Series cut out for drawing: a few hosts, each by itself, among the range of all others.

What can be drawn stands in `courses.yaml`.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from raydiag.catalog.rows import CatalogRow, loaded, rows
from raydiag.model import Window
from raydiag.timeline.answers import ResultTable
from raydiag.tsdb.series import Floats

SAVE, STALL = "save", "no step"
MOST_CURVES = 3  # hosts by themselves in one picture
_MANY = 10  # hosts, from which on a few odd ones do not widen the range of all others
_MOST_POINTS = 1500
_FILE = "courses.yaml"


@dataclass(frozen=True)
class Stretch:
    """A time, or range of steps, that is shaded."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Curve:
    """One line; NaN where there is no sample."""

    name: str
    values: Floats  # beside the course's `at`
    lasting: bool = False  # each value is that of the time from the one before to its own


@dataclass(frozen=True, eq=False)
class Range:
    """Between which values all others lie, and their median."""

    name: str
    low: Floats  # beside the course's `at`
    median: Floats
    high: Floats
    most: bool = False  # of them 9 of 10: a few odd ones are left out


@dataclass(frozen=True, eq=False)
class Course:
    """What one quantity did."""

    title: str
    unit: str
    at: Floats  # Unix seconds, or numbers of steps; ascending
    curves: tuple[Curve, ...] = ()
    others: Range | None = None
    stretches: tuple[Stretch, ...] = ()
    onset: float | None = None  # of what it is drawn for
    over_steps: bool = False
    extent: tuple[float, float] | None = None  # of `at`, that all pictures of a report share

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to draw."""
        return not self._drawn.size

    @property
    def is_flat(self) -> bool:
        """Whether there is nothing to see: no value, or the same one at all times and hosts."""
        return self.is_blank or bool(np.ptp(self._drawn) == 0)

    @property
    def _drawn(self) -> Floats:
        """All values that are known."""
        rows_drawn = [curve.values for curve in self.curves]
        if self.others is not None:
            rows_drawn += [self.others.low, self.others.median, self.others.high]
        values: Floats = np.concatenate([np.empty(0), *rows_drawn])
        return values[np.isfinite(values)]


@dataclass(frozen=True)
class CourseRow:
    """A row of the table; see there."""

    id: str
    query: str
    title: str
    shows: tuple[str, ...]
    unit: str = ""
    metric: str = ""
    per: int = 1
    zero: bool = False


@cache
def course_rows() -> tuple[CourseRow, ...]:
    """Everything that can be drawn of hosts."""
    text = resources.files(__package__).joinpath(_FILE).read_text("utf-8")
    return tuple(map(_row, rows(loaded(text, _FILE), _FILE, "id")))


def _row(row: CatalogRow) -> CourseRow:
    return row.rest(CourseRow, id=row.name, shows=row.texts("shows"), per=row.number("per") or 1)


def of_hosts(
    row: CourseRow, table: ResultTable, hosts: Iterable[str], apart: Sequence[str], window: Window
) -> Course:
    """A quantity of all `hosts`, those `apart` each by itself; blank where nobody measured it."""
    table = table.pick(row.metric or None)
    times = _times(table, window)
    by_host = _by_host(table, times, row.per)
    if row.zero and table.asked_until:
        nothing = np.full(times.size, np.nan)
        by_host = {host: np.nan_to_num(by_host.get(host, nothing)) for host in hosts}
    measured_apart = [host for host in apart if host in by_host]
    curves = tuple(Curve(host, by_host[host]) for host in measured_apart[:MOST_CURVES])
    others = [values for host, values in by_host.items() if host not in apart]
    return Course(row.title, row.unit, times, curves, _range(others, bool(apart)))


def of_job(
    title: str, unit: str, at: Floats, values: Floats, window: Window, lasting: bool = False
) -> Course:
    """A quantity of the whole job."""
    inside = (at >= window.start) & (at <= window.end)
    at, values = at[inside], values[inside]
    every = max(1, at.size // _MOST_POINTS)
    curve = Curve("the job", values[::every], lasting)
    return Course(title, unit, at[::every], (curve,))


def _times(table: ResultTable, window: Window) -> Floats:
    """Evenly spaced, so that what is missing leaves a gap."""
    start, end = max(window.start, table.asked_from), min(window.end, table.asked_until)
    if end <= start or not table.step_s:
        return np.empty(0)
    step_s = table.step_s * max(1.0, np.ceil((end - start) / table.step_s / _MOST_POINTS))
    first = table.asked_from + np.ceil((start - table.asked_from) / table.step_s) * table.step_s
    return np.arange(first, end + step_s / 2, step_s)


def _by_host(table: ResultTable, times: Floats, per: int) -> dict[str, Floats]:
    """Highest value of each host at each time."""
    if not times.size or not table.times.size:
        return {}
    places = np.clip(np.searchsorted(table.times, times - 0.5), 0, table.times.size - 1)
    is_sampled = np.abs(table.times[places] - times) < 0.5
    by_host: dict[str, Floats] = {}
    for subject, row in table:
        values = np.where(is_sampled, row[places] / per, np.nan)
        by_host[subject.host] = np.fmax(by_host.get(subject.host, values), values)
    return by_host


def _range(rows_of_others: Collection[Floats], is_beside: bool) -> Range | None:
    """Of those hosts together; None without any."""
    if not rows_of_others:
        return None
    values = np.vstack(list(rows_of_others))
    low, median, high = np.full((3, values.shape[1]), np.nan)
    known = ~np.isnan(values).all(axis=0)
    bounds = (5.0, 50.0, 95.0) if len(values) > _MANY else (0.0, 50.0, 100.0)
    if known.any():
        low[known], median[known], high[known] = np.nanpercentile(values[:, known], bounds, axis=0)
    name = f"{len(values)} {'others' if is_beside else 'hosts'}"
    if len(values) == 1:
        name = "the other host" if is_beside else "the host"
    return Range(name, low, median, high, bounds[0] > 0)
