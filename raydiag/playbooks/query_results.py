"""Answers by question, host, GPU and device: what the playbooks read.

A metric that is absent, or a question that failed, gives an empty table; never zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Optional

import numpy as np

from raydiag.model import Status
from raydiag.playbooks.queries import parted
from raydiag.tsdb.discovery_types import Discovery
from raydiag.tsdb.series import Floats, Frame, QueryResult, Series

ALIVE = "alive"  # the question whose values are the times of the newest samples


@dataclass(frozen=True)
class Where:
    """What one row is about."""

    host: str
    gpu: Optional[int] = None
    device: Optional[str] = None  # network device, with "/port" unless that is 1
    metric: str = ""  # the label `metric` or `stat` that the question sets, else the metric's name

    @classmethod
    def of(cls, labels: Mapping[str, str], host: str) -> Where:
        number = labels.get("gpu", labels.get("GpuIndex", ""))
        device, port = labels.get("device"), labels.get("port", "")
        if device and port not in ("", "1"):
            device = f"{device}/{port}"
        metric = labels.get("metric") or labels.get("stat") or labels.get("__name__") or ""
        return cls(host, int(number) if number.isdecimal() else None, device, metric)


@dataclass(frozen=True, eq=False)
class ResultTable:
    """Rows over one grid of times; NaN where there is no sample."""

    where: tuple[Where, ...]
    times: Floats  # [columns], ascending
    values: Floats  # [rows, columns]
    step_s: float = 0.0  # of the grid; 0: samples at their own times
    span_s: float = 0.0  # how far a value looks back, as a rate does
    first: float = 0.0  # first and last time that was asked for, answered or not
    last: float = 0.0

    def __len__(self) -> int:
        return len(self.where)

    def __iter__(self) -> Iterator[tuple[Where, Floats]]:
        return iter(zip(self.where, self.values, strict=True))

    def pick(
        self, metric: Optional[str] = None, hosts: Optional[Iterable[str]] = None
    ) -> ResultTable:
        """The rows of one metric, of some hosts."""
        wanted = None if hosts is None else frozenset(hosts)
        rows = [
            index
            for index, one in enumerate(self.where)
            if metric in (None, one.metric) and (wanted is None or one.host in wanted)
        ]
        where = tuple(self.where[index] for index in rows)
        return replace(self, where=where, values=self.values[rows])

    def between(self, start: float, end: float) -> ResultTable:
        """The columns from `start` to `end`, both included."""
        keep = (self.times >= start) & (self.times <= end)
        return replace(self, times=self.times[keep], values=self.values[:, keep])

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.host for one in self.where))

    @cached_property
    def _rows(self) -> Mapping[tuple[str, str], int]:
        return {(one.host, one.metric): index for index, one in enumerate(self.where)}

    def row(self, host: str, metric: str = "") -> Optional[Floats]:
        """Values of one host; None when it has none. For tables by host only."""
        index = self._rows.get((host, metric))
        return None if index is None else self.values[index]


_NOTHING = ResultTable((), np.empty(0), np.empty((0, 0)))


class Answers:
    """The answers of one run by the id of their question."""

    def __init__(self, answers: Iterable[QueryResult], discovery: Discovery) -> None:
        self._answers: dict[str, QueryResult] = {
            part.query.id: part for one in answers for part in parted(one)
        }
        self._discovery = discovery
        self._tables: dict[str, ResultTable] = {}

    def also(self, more: Iterable[QueryResult]) -> Answers:
        """With later answers besides; what was worked out of these ones is kept."""
        joined = Answers((*self._answers.values(), *more), self._discovery)
        joined._tables = {
            question: table
            for question, table in self._tables.items()
            if joined._answers.get(question) is self._answers.get(question)
        }
        return joined

    def __contains__(self, question: str) -> bool:
        return question in self._answers

    def __iter__(self) -> Iterator[QueryResult]:
        return iter(self._answers.values())

    def answer(self, question: str) -> Optional[QueryResult]:
        return self._answers.get(question)

    def promql(self, question: str) -> str:
        """Evidence's source; the id itself for what was not asked."""
        answer = self._answers.get(question)
        return answer.query.promql if answer else question

    def missing(self, question: str) -> str:
        """Why there is nothing to judge: "metric absent", the server's words; "" when there is."""
        answer = self._answers.get(question)
        if answer is None:
            return "metric absent"
        if answer.status is not Status.OK:
            return answer.reason or answer.status.value
        return "" if answer.series else "metric absent"

    def table(self, question: str) -> ResultTable:
        """By host; empty where nothing was asked or answered."""
        if question not in self._tables:
            answer = self._answers.get(question)
            self._tables[question] = _NOTHING if answer is None else self._table(answer)
        return self._tables[question]

    def series(self, question: str) -> tuple[Series, ...]:
        """As they came, for questions that ask for raw samples."""
        answer = self._answers.get(question)
        return answer.series if answer is not None and answer.ok else ()

    def _table(self, answer: QueryResult) -> ResultTable:
        if not answer.ok:
            return _NOTHING
        frame = Frame.of(answer.series)
        hosts = [self._discovery.host_of(labels) or "" for labels in frame.labels]
        where = tuple(
            Where.of(labels, host) for labels, host in zip(frame.labels, hosts, strict=True)
        )
        values = frame.values
        last = float(frame.times[-1]) if frame.times.size else -np.inf
        if answer.query.id != ALIVE:
            for index, labels in enumerate(frame.labels):
                silent = self._silences.get((hosts[index], "host" in labels), ())
                for start, end in silent:
                    if start >= last:
                        continue
                    values[index, (frame.times > start) & (frame.times < end)] = np.nan
        window = answer.query.window
        return ResultTable(
            where, frame.times, values, window.step, first=window.start, last=window.end
        )

    @cached_property
    def _silences(self) -> Mapping[tuple[str, bool], list[tuple[float, float]]]:
        """When a host's exporter (True) or Ray (False) gave no samples, by host.

        Prometheus goes on answering with the last sample for minutes, which would be a lie.
        """
        answer = self._answers.get(ALIVE)
        if answer is None or not answer.ok:
            return {}
        found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        for series in answer.series:
            host = self._discovery.host_of(series.labels) or ""
            seen = np.unique(series.values)
            patience = _patience_s(seen, answer.query.window.step)
            gaps = [
                (float(low), float(high))
                for low, high in pairwise(seen)
                if high - low > answer.query.window.step + patience
            ]
            if seen.size:
                gaps.append((float(seen[-1]) + patience, float("inf")))
            found[host, "host" in series.labels] = gaps
        return found

    def last_seen(self, host: str) -> Mapping[str, float]:
        """Newest sample of a host's exporter ("hw") and of its Ray ("ray")."""
        return self._last_seen.get(host, {})

    @cached_property
    def _last_seen(self) -> Mapping[str, Mapping[str, float]]:
        found: dict[str, dict[str, float]] = {}
        answer = self._answers.get(ALIVE)
        for series in answer.series if answer is not None and answer.ok else ():
            host = self._discovery.host_of(series.labels)
            if host is not None and len(series):
                source = "hw" if "host" in series.labels else "ray"
                seen = found.setdefault(host, {})
                seen[source] = max(seen.get(source, 0.0), float(series.values.max()))
        return found


def _patience_s(seen: Floats, step: float) -> float:
    """How long a silence is no silence yet: two scrapes may be missed."""
    spacing = float(np.median(np.diff(seen))) if seen.size > 1 else step
    return 2.5 * min(spacing, step) if step else 2.5 * spacing
