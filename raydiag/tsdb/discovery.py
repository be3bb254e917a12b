"""What a Prometheus holds about a job: asked first, before anything is believed.

Five queries whatever the size of the job, seven where hosts came late or stopped. `status/tsdb`
knows the head alone, and a block's `maxTime` is the end of its two hours: the real range comes from
`timestamp()`. Last samples are exact for what has samples at the end; what stopped before, and
first samples, come from a grid, so that they are right within its step (15 s for most).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse
from operator import attrgetter
from typing import Optional

import numpy as np

from raydiag.errors import CannotRun
from raydiag.model import Unread, Window
from raydiag.tsdb import promql, time_bounds
from raydiag.tsdb.client import Client
from raydiag.tsdb.connection import Connection
from raydiag.tsdb.discovery_types import Discovery, Family, Target, short_name
from raydiag.tsdb.families import OTHER, PREFIXES, family_of, sampled
from raydiag.tsdb.hostnames import HostRow, joined
from raydiag.tsdb.series import Query, QueryResult, Series

# Families with several series a host, and the label that tells these apart.
_MANY = {"hw_gpu_": "gpu", "hw_rdma_": "device"}
_MAIN = ("hw_", "ray_node_", "tb_")  # looked at most closely
_EVALUATIONS = 300_000  # of one query: a second of the server's time
_LOOKBACK_S = 240.0  # below any server's lookback, so that a grid misses no sample
_FINEST_S, _COARSE_S = 15.0, 60.0
_MOST_NAMED = 200  # in one selector
_FINE_WINDOW_S = 3600.0  # looked at closely, for resolution and refresh
_APART_S = 6 * 3600.0  # sources that end within it are looked at together

_LABELS = ("host", "instance", "ip", "IsHeadNode")  # that name a host
_BY = ", ".join(_LABELS)

_Key = tuple[str, ...]  # family, and the values of _LABELS


def discover(
    connection: Connection,
    now: float,
    expected: Sequence[str] = (),
    nnodes: int | None = None,
    addresses: Mapping[str, str] | None = None,
    window: Window | None = None,
) -> Discovery:
    """Look at everything once.

    `expected`: the job's node list; `addresses`: IP address -> host name, as far as it is known;
    `window`: where to look, when the server holds more than the job. Raises CannotRun when the
    server does not tell its metrics.
    """
    client = connection.client
    names = client.metadata("label/__name__/values")
    if not names.ok or not isinstance(names.data, list):
        raise CannotRun(
            f"{connection.origin}: cannot list its metrics: {names.reason or 'no list'}"
        )
    metrics = tuple(sorted(map(str, names.data)))
    unread = list(connection.unread)
    bounds = window or time_bounds.bounds(connection, now, unread)
    wanted = tuple(map(short_name, expected))
    discovery = Discovery(
        connection.origin,
        metrics,
        expected=wanted,
        nnodes=nnodes,
        missing=wanted,
        unread=tuple(unread),
        dialects=client.spoken(),
    )
    if bounds is None or not metrics:
        return discovery
    # Of a live server the start is known to a step of the search alone.
    slack = time_bounds.SEARCH_STEP_S if connection.live and window is None else 0.0
    search = _Search(client, metrics, bounds, slack)
    rows = search.rows()
    hosts = joined(rows, {**client.addresses, **(addresses or {})}, search.gpus)
    host_names = list(dict.fromkeys(map(attrgetter("name"), hosts)))
    discovery = replace(
        discovery,
        hosts=hosts,
        window=_extent(rows),
        missing=tuple(filterfalse(host_names.__contains__, wanted)),
        foreign=tuple(filterfalse(wanted.__contains__, host_names)) if wanted else (),
    )
    return replace(
        discovery,
        families=tuple(search.families(rows, discovery)),
        targets=tuple(search.targets(discovery)),
        unread=(*unread, *search.unread),
    )


def _extent(rows: Sequence[HostRow]) -> Window | None:
    if not rows:
        return None
    return Window(min(map(attrgetter("first"), rows)), max(map(attrgetter("last"), rows)))


class _Search:
    """The queries over one server's whole range."""

    def __init__(
        self, client: Client, metrics: Sequence[str], bounds: Window, slack_s: float
    ) -> None:
        """The first sample is within `slack_s` of the start of `bounds`."""
        self._client = client
        self._bounds = bounds
        self._opening_s = slack_s + _LOOKBACK_S
        self.gpus: dict[str, int] = {}  # by the label `host`
        self._commonest: dict[str, str] = {}  # the commonest GPU or port by family
        self.unread: list[Unread] = []
        self.grouped: dict[str, list[str]] = defaultdict(list)
        for metric in metrics:
            self.grouped[family_of(metric)].append(metric)
        self.sampled = {prefix: sampled(names) for prefix, names in self.grouped.items()}

    def rows(self) -> list[HostRow]:
        """One row for each family and set of labels that name a host."""
        stored = self._stored()
        last = self._last()
        last |= self._whole_range("discovery-gone", "max", stored.keys() - last.keys())
        first = self._first()
        late = (stored.keys() & last.keys()) - first.keys()
        first |= self._whole_range("discovery-late", "min", late)
        rows = []
        for key, labels in stored.items():
            if key in last:
                oldest = min(first.get(key, last[key]), last[key])
                rows.append(HostRow(key[0], labels, oldest, last[key]))
        return rows

    def _stored(self) -> dict[_Key, Mapping[str, str]]:
        """Who has series in which family, from the index alone."""
        parameters = {
            "match[]": list(map(promql.selector, self.sampled.values())),
            "start": f"{self._bounds.start:.3f}",
            "end": f"{self._bounds.end:.3f}",
        }
        answer = self._client.metadata("series", parameters)
        if not answer.ok or not isinstance(answer.data, list):
            self.unread.append(Unread("series", answer.status, answer.reason or "no list"))
            return {}
        rows: dict[_Key, Mapping[str, str]] = {}
        gpus: dict[str, set[str]] = defaultdict(set)
        parts: dict[str, Counter[str]] = defaultdict(Counter)
        for labels in answer.data:
            family = family_of(labels.get("__name__", ""))
            rows.setdefault(_key(family, labels), labels)
            if family in _MANY:
                parts[family][labels.get(_MANY[family], "")] += 1
            if family == "hw_gpu_" and "gpu" in labels:
                gpus[labels.get("host", "")].add(labels["gpu"])
        self.gpus = {host: len(numbers) for host, numbers in gpus.items()}
        self._commonest = {family: max(counts, key=counts.get) for family, counts in parts.items()}  # type: ignore[arg-type]
        return rows

    def _last(self) -> dict[_Key, float]:
        """Exactly, of what has samples at the end; what stopped before is not in it."""
        terms = {
            prefix: f"max by ({_BY}) (timestamp({promql.selector(metric)}))"
            for prefix, metric in self.sampled.items()
        }
        return self._edges("discovery-last", terms, self._bounds.end)

    def _first(self) -> dict[_Key, float]:
        """Of what has samples in the first minutes; what came later is not in it.

        One GPU and one port of a host stand for all of them; hosts that lack just that one are
        asked for by themselves, as those that came late are.
        """
        terms = {}
        for prefix, metric in self.sampled.items():
            step = _FINEST_S if prefix in _MAIN else _COARSE_S
            part = self._commonest.get(prefix)
            match = {_MANY[prefix]: promql.any_of([part])} if part else {}
            terms[prefix] = _edge(
                "min", promql.selector(metric, match=match), self._opening_s, step
            )
        return self._edges("discovery-first", terms, self._bounds.start + self._opening_s)

    def _whole_range(self, query_id: str, kind: str, keys: Iterable[_Key]) -> dict[_Key, float]:
        """The same for the few that the cheap way has not found, over the whole range."""
        by_family: dict[str, list[_Key]] = defaultdict(list)
        for key in keys:
            by_family[key[0]].append(key)
        if not by_family:
            return {}
        terms = {}
        length = self._bounds.end - self._bounds.start
        for prefix, keys_of_family in by_family.items():
            share = _EVALUATIONS / len(by_family)
            step = max(_FINEST_S, math.ceil(length * len(keys_of_family) / share))
            step = min(step * (8 if prefix in _MANY else 1), _LOOKBACK_S)
            selector = self._only(prefix, keys_of_family)
            # A grid point after the end sees the last sample as well.
            terms[prefix] = _edge(kind, selector, length + _LOOKBACK_S + 2 * step, step)
        return self._edges(query_id, terms, self._bounds.end + _LOOKBACK_S)

    def _only(self, prefix: str, keys: Sequence[_Key]) -> str:
        """A selector for these hosts' series; for all hosts where they are too many to name."""
        label, values = "instance", {key[2] for key in keys}
        if "" in values:
            label, values = "host", {key[1] for key in keys} - {""}
        named = 0 < len(values) <= _MOST_NAMED
        match = {label: promql.any_of(sorted(values))} if named else {}
        return promql.selector(self.sampled[prefix], match=match)

    def _edges(self, query_id: str, terms: Mapping[str, str], end: float) -> dict[_Key, float]:
        """One query for all families; the label `family` keeps them apart."""
        answer = self._ask(Query.at(query_id, _labelled("family", terms), end))
        edges = {}
        for series in answer.series:
            if series.last is not None:
                edges[_key(series.labels.get("family", ""), series.labels)] = series.last
        return edges

    def families(self, rows: Sequence[HostRow], discovery: Discovery) -> Iterable[Family]:
        """The families that the server has, in the order of their prefixes."""
        end = discovery.window.end if discovery.window is not None else self._bounds.end
        freshness = self._freshness(rows)
        for prefix in sorted(self.grouped, key=(*PREFIXES, OTHER).index):
            family_rows = [row for row in rows if row.family == prefix]
            hosts = {discovery.host_of(row.labels) or "" for row in family_rows} - {""}
            samples = _extent(family_rows)
            resolution_s, refresh_s = freshness.get(self.sampled[prefix], (None, None))
            yield Family(
                prefix=prefix,
                metrics=tuple(self.grouped[prefix]),
                sampled=self.sampled[prefix],
                hosts=tuple(sorted(hosts)),
                first=samples.start if samples else None,
                last=samples.end if samples else None,
                resolution_s=resolution_s,
                refresh_s=refresh_s,
                lag_s=end - samples.end if samples else None,
            )

    def _freshness(self, rows: Sequence[HostRow]) -> dict[str, _Freshness]:
        """By metric, from one host of each source, at its end."""
        metrics = sorted({self.sampled[row.family] for row in rows})
        queries = []
        for number, ends in enumerate(_ends_of_sources(rows)):
            queries.append(_query_before_end(number, ends, metrics))
        series_of: dict[str, list[Series]] = defaultdict(list)
        for answer in self._client.ask_all(queries).values():
            self._note(answer)
            for series in answer.series:
                series_of[series.metric].append(series)
        return {
            metric: (_resolution(parts), _refresh(parts)) for metric, parts in series_of.items()
        }

    def targets(self, discovery: Discovery) -> Iterable[Target]:
        """Scrape targets; a server that does not store `up` has none."""
        if "up" not in self.grouped:
            return
        end = self._bounds.end
        span = f"up[{promql.duration(end - self._bounds.start + 1)}]"
        terms = {"last": f"last_over_time({span})", "avg": f"avg_over_time({span})"}
        answer = self._ask(Query.at("discovery-up", _labelled("how", terms), end))
        shares = {}
        for series in answer.series:
            if series.labels.get("how") == "avg":
                shares[_target(series.labels)] = series.last
        for series in answer.series:
            if series.labels.get("how") != "last":
                continue
            name = discovery.host_of(series.labels) or ""
            host = discovery.host(name)
            scraped = host.sample_ranges.get("up") if host else None
            yield Target(
                job=series.labels.get("job", ""),
                instance=series.labels.get("instance", ""),
                host=name,
                up=series.last == 1,
                last=scraped.last if scraped is not None else end,
                share_up=float(shares.get(_target(series.labels)) or 0.0),
            )

    def _ask(self, query: Query) -> QueryResult:
        answer = self._client.ask(query)
        self._note(answer)
        return answer

    def _note(self, answer: QueryResult) -> None:
        if not answer.ok:
            self.unread.append(Unread(answer.query.id, answer.status, answer.reason))


_Freshness = tuple[Optional[float], Optional[float]]  # resolution, refresh


def _key(family: str, labels: Mapping[str, str]) -> _Key:
    return family, *(labels.get(label, "") for label in _LABELS)


def _labelled(label: str, terms: Mapping[str, str]) -> str:
    """All terms in one query, each with its key as the label's value."""
    parts = [f'label_replace({term}, "{label}", "{key}", "", "")' for key, term in terms.items()]
    return " or ".join(parts)


def _edge(kind: str, selector: str, length_s: float, step_s: float) -> str:
    grid = f"timestamp({selector})[{promql.duration(length_s)}:{promql.duration(step_s)}]"
    return f"{kind} by ({_BY}) ({kind}_over_time({grid}))"


def _ends_of_sources(rows: Sequence[HostRow]) -> list[list[HostRow]]:
    """The newest row of each source of series; those that end together in one list."""
    groups: list[list[HostRow]] = []
    for source in ("hw_", "ray_", "tb_", "up"):
        of_source = [row for row in rows if row.family.startswith(source)]
        newest = max(of_source, key=attrgetter("last"), default=None)
        if newest is None:
            continue
        for group in groups:
            if abs(group[0].last - newest.last) < _APART_S:
                group.append(newest)
                break
        else:
            groups.append([newest])
    return groups


def _query_before_end(number: int, rows: Sequence[HostRow], metrics: Sequence[str]) -> Query:
    """Raw samples of the metrics of these rows' hosts, before the last of each."""
    match = {"__name__": promql.any_of(metrics)}
    for label in ("host", "instance"):
        # A series that has no such label matches the empty word.
        values = {"", *(row.labels.get(label, "") for row in rows)}
        match[label] = promql.any_of(sorted(values))
    lasts = sorted(map(attrgetter("last"), rows))
    span = promql.duration(_FINE_WINDOW_S + lasts[-1] - lasts[0])
    selector = promql.selector("", match=match)
    return Query.at(f"discovery-fine{number or ''}", f"{selector}[{span}]", lasts[-1])


def _target(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("job", ""), labels.get("instance", "")


def _resolution(parts: Iterable[Series]) -> float | None:
    spacings = [series.spacing_s for series in parts if series.spacing_s is not None]
    return float(np.median(spacings)) if spacings else None


def _refresh(parts: Iterable[Series]) -> float | None:
    """Usual distance of two changes; None where values stand still."""
    distances = []
    for series in parts:
        changed = series.times[1:][np.diff(series.values) != 0]
        if changed.size > 1:
            distances.append(float(np.median(np.diff(changed))))
    return float(np.median(distances)) if distances else None
