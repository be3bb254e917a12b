"""The answers of one run, as tables by host, GPU and device.

A metric that is absent, or a query that failed, gives an empty table; never zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from raydiag.model import Status, Window
from raydiag.timeline import known_values
from raydiag.timeline.queries import split_result
from raydiag.tsdb.discovery_types import Discovery
from raydiag.tsdb.series import Floats, Frame, QueryResult, Series

ALIVE = "alive"  # the query whose values are the times of the newest samples
EXPORTER, RAY = "hw", "ray"  # what a host's samples come from


@dataclass(frozen=True)
class Subject:
    """What one row is about."""

    host: str
    gpu: int | None = None
    device: str | None = None  # network device, with "/port" unless that is 1
    metric: str = ""  # the label `metric` or `stat` that the query sets, else the metric's name

    @classmethod
    def of(cls, labels: Mapping[str, str], host: str) -> Subject:
        """From a series' labels; `host` is the name that discovery gives their host."""
        number = labels.get("gpu", labels.get("GpuIndex", ""))
        device, port = labels.get("device"), labels.get("port", "")
        if device and port not in ("", "1"):
            device = f"{device}/{port}"
        metric = labels.get("metric") or labels.get("stat") or labels.get("__name__") or ""
        return cls(host, int(number) if number.isdecimal() else None, device, metric)


@dataclass(frozen=True, eq=False)
class ResultTable:
    """Rows over one grid of times; NaN where there is no sample. Iterates (subject, values)."""

    subjects: tuple[Subject, ...]  # one a row
    times: Floats  # [columns], ascending
    values: Floats  # [rows, columns]
    query_id: str = ""
    step_s: float = 0.0  # of the grid; 0: samples at their own times
    lookback_s: float = 0.0  # how far a value looks back, as a rate does
    asked_from: float = 0.0  # first and last time that was asked for, answered or not
    asked_until: float = 0.0

    def __len__(self) -> int:
        return len(self.subjects)

    def __iter__(self) -> Iterator[tuple[Subject, Floats]]:
        return iter(zip(self.subjects, self.values, strict=True))

    @property
    def is_blank(self) -> bool:
        """Whether no row has any sample."""
        return bool(np.isnan(self.values).all())

    @property
    def hosts(self) -> tuple[str, ...]:
        """Each host once, in the order of the rows."""
        return tuple(dict.fromkeys(subject.host for subject in self.subjects))

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics that the rows are about."""
        return frozenset(subject.metric for subject in self.subjects)

    @property
    def overlap(self) -> float:
        """How often one event is counted: increases may look back further than the step."""
        if not self.step_s:
            return 1.0
        return max(1.0, self.lookback_s / self.step_s)

    def pick(self, metric: str | None = None, hosts: Iterable[str] | None = None) -> ResultTable:
        """The rows of one metric, of some hosts."""
        wanted_hosts = frozenset(self.hosts if hosts is None else hosts)
        rows = [
            index
            for index, subject in enumerate(self.subjects)
            if metric in (None, subject.metric) and subject.host in wanted_hosts
        ]
        subjects = tuple(map(self.subjects.__getitem__, rows))
        return replace(self, subjects=subjects, values=self.values[rows])

    def between(self, start: float, end: float) -> ResultTable:
        """The columns from `start` to `end`, both included."""
        inside = (self.times >= start) & (self.times <= end)
        return replace(self, times=self.times[inside], values=self.values[:, inside])

    @cached_property
    def _row_numbers(self) -> Mapping[tuple[str, str], int]:
        return {(subject.host, subject.metric): row for row, subject in enumerate(self.subjects)}

    def row(self, host: str, metric: str = "") -> Floats | None:
        """Values of one host; None when it has none. For tables by host only."""
        number = self._row_numbers.get((host, metric))
        return None if number is None else self.values[number]

    @property
    def by_subject(self) -> Mapping[Subject, Floats]:
        """Rows by what they are about."""
        return dict(zip(self.subjects, self.values, strict=True))

    def medians(self, window: Window) -> dict[str, float]:
        """Median of each host within a window; hosts without a sample are not in it."""
        medians = {}
        for subject, values in self.between(window.start, window.end):
            median = known_values.median(values)
            if median is not None:
                medians[subject.host] = median
        return medians


_NO_ROWS = ResultTable((), np.empty(0), np.empty((0, 0)))


class Answers:
    """The answers of one run by the id of their query."""

    def __init__(self, results: Iterable[QueryResult], discovery: Discovery) -> None:
        self._discovery = discovery
        # Where all hosts of the job have series, the others in its Prometheus are strangers.
        self._strangers = () if discovery.missing else frozenset(discovery.foreign)
        self._results: dict[str, QueryResult] = {}
        for result in map(self._of_job, results):
            self._results.update((part.query.id, part) for part in split_result(result))
        self._tables: dict[str, ResultTable] = {}

    def also(self, later: Iterable[QueryResult]) -> Answers:
        """With later answers besides; tables that are already built are kept."""
        joined = Answers((*self._results.values(), *later), self._discovery)
        for query_id, table in self._tables.items():
            if joined._results.get(query_id) is self._results.get(query_id):
                joined._tables[query_id] = table
        return joined

    def _of_job(self, result: QueryResult) -> QueryResult:
        if not self._strangers or result.query.id == "training":  # its bridge may run anywhere
            return result
        own = [one for one in result.series if self._host_of(one.labels) not in self._strangers]
        return replace(result, series=tuple(own))

    def __contains__(self, query_id: str) -> bool:
        return query_id in self._results

    def __iter__(self) -> Iterator[QueryResult]:
        return iter(self._results.values())

    def answer(self, query_id: str) -> QueryResult | None:
        """None for what was not asked."""
        return self._results.get(query_id)

    def promql(self, query_id: str) -> str:
        """Evidence's source; the id itself for what was not asked."""
        result = self._results.get(query_id)
        return result.query.promql if result else query_id

    def missing(self, query_id: str) -> str:
        """Why there is nothing to judge: "metric absent", the server's words; "" when there is."""
        result = self._results.get(query_id)
        if result is None:
            return "metric absent"
        if result.status is not Status.OK:
            return result.reason or result.status.value
        return "" if result.series else "metric absent"

    def step_s(self, query_id: str) -> float:
        """Distance of two evaluations; 0 for what was not asked, or asked once."""
        result = self._results.get(query_id)
        return 0.0 if result is None else result.query.window.step

    def table(self, query_id: str) -> ResultTable:
        """By host; empty where nothing was asked or answered."""
        if query_id not in self._tables:
            self._tables[query_id] = self._table(self._results.get(query_id))
        return self._tables[query_id]

    def series(self, query_id: str) -> tuple[Series, ...]:
        """As they came; none where the query failed or was not asked."""
        result = self._results.get(query_id)
        if result is None or not result.ok:
            return ()
        return result.series

    def _table(self, result: QueryResult | None) -> ResultTable:
        if result is None or not result.ok:
            return _NO_ROWS
        frame, query = Frame.of(result.series), result.query
        subjects = tuple(Subject.of(labels, self._host_of(labels)) for labels in frame.labels)
        if query.id != ALIVE:
            self._remove_repeats(frame)
        return ResultTable(
            subjects,
            frame.times,
            frame.values,
            query.id,
            query.window.step,
            asked_from=query.window.start,
            asked_until=query.window.end,
        )

    def _host_of(self, labels: Mapping[str, str]) -> str:
        return self._discovery.host_of(labels) or ""

    def _remove_repeats(self, frame: Frame) -> None:
        """Write NaN where the server repeated a row's last sample while its source was silent."""
        last = frame.times.max(initial=-np.inf)
        for row, labels in enumerate(frame.labels):
            host, sources = self._host_of(labels), (_source(labels), EXPORTER)
            of_host = (self._silences.get((host, source)) for source in sources)
            for start, end in next(filter(None, of_host), ()):
                if start < last:
                    frame.values[row, (frame.times > start) & (frame.times < end)] = np.nan

    @cached_property
    def _silences(self) -> Mapping[tuple[str, str], list[tuple[float, float]]]:
        """When a host's exporter or its Ray gave no samples.

        Prometheus goes on answering with the last sample for minutes, which would be a lie.
        """
        step_s = self.step_s(ALIVE)
        return {
            (self._host_of(series.labels), _source(series.labels)): _silences(series, step_s)
            for series in self.series(ALIVE)
        }

    def last_seen(self, host: str) -> Mapping[str, float]:
        """Newest sample of a host's exporter ("hw") and of its Ray ("ray")."""
        return self._last_seen.get(host, {})

    @cached_property
    def _last_seen(self) -> Mapping[str, Mapping[str, float]]:
        last_seen: dict[str, dict[str, float]] = {}
        for series in self.series(ALIVE):
            host = self._discovery.host_of(series.labels)
            if host is not None and len(series):
                by_source = last_seen.setdefault(host, {})
                source = _source(series.labels)
                by_source[source] = max(by_source.get(source, 0.0), float(series.values.max()))
        return last_seen

    @property
    def sampled(self) -> tuple[float, float]:
        """First and last sample of any host; nothing lies between them where there is none."""
        stamps = [series.values for series in self.series(ALIVE) if len(series)]
        if not stamps:
            return float("inf"), float("-inf")
        return float(min(map(np.min, stamps))), float(max(map(np.max, stamps)))

    def sample_times(self, source: str = EXPORTER) -> dict[str, tuple[Floats, Floats]]:
        """(times of the grid, time of the newest sample at each of them) by host."""
        return {
            self._host_of(series.labels): (series.times, series.values)
            for series in self.series(ALIVE)
            if len(series) and _source(series.labels) == source
        }


def _source(labels: Mapping[str, str]) -> str:
    """Of the samples of a series: exporters name their host, Ray does not."""
    return EXPORTER if "host" in labels else RAY


def _silences(series: Series, step_s: float) -> list[tuple[float, float]]:
    """(last sample before, first sample after) each silence; the last one goes on for ever."""
    sampled_at = np.unique(series.values)
    patience = _patience_s(sampled_at, step_s)
    silences = []
    for before, after in pairwise(sampled_at.tolist()):
        if after - before > step_s + patience:
            silences.append((before, after))
    if sampled_at.size:
        silences.append((float(sampled_at[-1]) + patience, float("inf")))
    return silences


def _patience_s(sampled_at: Floats, step_s: float) -> float:
    """How long a silence is no silence yet: two scrapes may be missed."""
    spacing = step_s
    if sampled_at.size > 1:
        spacing = float(np.median(np.diff(sampled_at)))
    return 2.5 * min(filter(None, (spacing, step_s)), default=0.0)
