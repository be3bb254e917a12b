"""What a Prometheus holds about a job: asked first, before anything is believed.

Five queries whatever the size of the job, seven where hosts came late or stopped. `status/tsdb`
knows the head alone, and a block's `maxTime` is the end of its two hours: the real range comes from
`timestamp()`. Last samples are exact for what has samples at the end; what stopped before, and
first samples, are told by a grid, so that they are right within its step (15 s for most).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Optional

import numpy as np

from raydiag.errors import CannotRun
from raydiag.model import Unread, Window
from raydiag.tsdb import promql, time_bounds
from raydiag.tsdb.client import Client
from raydiag.tsdb.connection import Connection
from raydiag.tsdb.discovery_types import Discovery, Family, HostSeries, Target, short_name
from raydiag.tsdb.hostnames import HostRow, joined
from raydiag.tsdb.series import Query, QueryResult, Series

# The longest prefix that fits is the family of a metric.
PREFIXES = (
    *("hw_gpu_", "hw_tcp_", "hw_rdma_", "hw_io_", "hw_mem_", "hw_oom_", "hw_net_", "hw_procs_"),
    *("hw_dmesg_", "hw_", "ray_node_", "ray_", "tb_", "up", "scrape_"),
)
OTHER = "other"
# What stands for its family: on every host, few series, and its value moves.
_SAMPLED = (
    *("hw_gpu_power_watts", "hw_scrape_duration_seconds", "ray_node_mem_used", "tb_step"),
    *("hw_rdma_port_state", "hw_procs_running", "hw_tcp_retransmits_total", "hw_mem_dirty_bytes"),
    *("hw_io_pressure_full_pct", "hw_oom_kills_total", "hw_net_rx_bytes_total"),
)
# Families with several series a host, and the label that tells these apart.
_MANY = {"hw_gpu_": "gpu", "hw_rdma_": "device"}
_MAIN = ("hw_", "ray_node_", "tb_")  # looked at most closely
_EVALUATIONS = 300_000  # of one query: a second of the server's time
_LOOKBACK_S = 240.0  # below any server's lookback, so that a grid misses no sample
_FINEST_S, _COARSE_S = 15.0, 60.0
_MOST_NAMED = 200  # in one selector
_FINE_WINDOW_S = 3600.0  # looked at closely, for resolution and refresh
_APART_S = 6 * 3600.0  # sources that end within it are looked at together
_BY = "host, instance, ip, IsHeadNode"

_Key = tuple[str, str, str, str, str]  # family, and the labels that name a host


def discover(
    connection: Connection,
    now: float,
    expected: Sequence[str] = (),
    nnodes: Optional[int] = None,
    addresses: Mapping[str, str] | None = None,
    window: Optional[Window] = None,
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
    metrics = tuple(sorted(str(one) for one in names.data))
    unread = list(connection.unread)
    within = window or time_bounds.bounds(connection, now, unread)
    job = _Job(connection.origin, tuple(short_name(one) for one in expected), nnodes)
    if within is None or not metrics:
        return job.found(metrics, (), None, unread)
    # Of a live server the start is known to a step of the search alone.
    slack = time_bounds.SEARCH_STEP_S if connection.live and window is None else 0.0
    look = _Look(client, metrics, within, slack)
    rows = look.sights()
    hosts = joined(rows, addresses or {}, look.gpus)
    seen = job.found(metrics, hosts, _extent(rows), [])
    families, targets = tuple(look.families(rows, seen)), tuple(look.targets(seen))
    return replace(seen, families=families, targets=targets, unread=(*unread, *look.unread))


@dataclass(frozen=True)
class _Job:
    origin: str
    expected: tuple[str, ...]
    nnodes: Optional[int]

    def found(
        self,
        metrics: tuple[str, ...],
        hosts: tuple[HostSeries, ...],
        window: Optional[Window],
        unread: Sequence[Unread],
    ) -> Discovery:
        names = [one.name for one in hosts]
        return Discovery(
            self.origin,
            metrics,
            (),
            hosts,
            (),
            window,
            self.expected,
            self.nnodes,
            tuple(one for one in self.expected if one not in names),
            tuple(one for one in names if one not in self.expected) if self.expected else (),
            tuple(unread),
        )


def family_of(metric: str) -> str:
    """Prefix of the family; "other" for a metric that belongs to none."""
    fitting = [one for one in PREFIXES if metric.startswith(one)]
    return max(fitting, key=len, default=OTHER)


def _extent(rows: Iterable[HostRow]) -> Optional[Window]:
    edges = [(row.first, row.last) for row in rows]
    if not edges:
        return None
    return Window(min(first for first, _ in edges), max(last for _, last in edges))


class _Look:
    """The queries over one server's whole range."""

    def __init__(
        self, client: Client, metrics: Sequence[str], within: Window, slack_s: float
    ) -> None:
        """The first sample is within `slack_s` of the start of `within`."""
        self._client = client
        self._bounds = within
        self._opening_s = slack_s + _LOOKBACK_S
        self.gpus: dict[str, int] = {}  # by the label `host`
        self._one: dict[str, str] = {}  # the commonest GPU or port by family
        self.unread: list[Unread] = []
        self.grouped: dict[str, list[str]] = {}
        for metric in metrics:
            self.grouped.setdefault(family_of(metric), []).append(metric)
        self.sampled = {
            prefix: next((one for one in _SAMPLED if one in names), names[0])
            for prefix, names in self.grouped.items()
        }

    def sights(self) -> list[HostRow]:
        """One row for each family and set of labels that name a host."""
        there = self._there()
        last = self._last()
        last |= self._drill("discovery-gone", "max", there.keys() - last.keys())
        first = self._first()
        first |= self._drill("discovery-late", "min", (there.keys() & last.keys()) - first.keys())
        return [
            HostRow(key[0], labels, min(first.get(key, last[key]), last[key]), last[key])
            for key, labels in there.items()
            if key in last
        ]

    def _there(self) -> dict[_Key, Mapping[str, str]]:
        """Who has series in which family, from the index alone."""
        window = self._bounds
        asked = {
            "match[]": [promql.selector(metric) for metric in self.sampled.values()],
            "start": f"{window.start:.3f}",
            "end": f"{window.end:.3f}",
        }
        found = self._client.metadata("series", asked)
        if not found.ok or not isinstance(found.data, list):
            self.unread.append(Unread("series", found.status, found.reason or "no list"))
            return {}
        rows: dict[_Key, Mapping[str, str]] = {}
        gpus: dict[str, set[str]] = {}
        ones: dict[str, Counter[str]] = {prefix: Counter() for prefix in _MANY}
        for labels in found.data:
            family = family_of(labels.get("__name__", ""))
            rows.setdefault(_key(family, labels), labels)
            if family in ones:
                ones[family][labels.get(_MANY[family], "")] += 1
            if family == "hw_gpu_" and "gpu" in labels:
                gpus.setdefault(labels.get("host", ""), set()).add(labels["gpu"])
        self.gpus = {host: len(one) for host, one in gpus.items()}
        self._one = {
            family: most[0][0] for family, one in ones.items() if (most := one.most_common(1))
        }
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
            one = self._one.get(prefix)
            match = {_MANY[prefix]: promql.any_of([one])} if one else {}
            terms[prefix] = _edge(
                "min", promql.selector(metric, match=match), self._opening_s, step
            )
        return self._edges("discovery-first", terms, self._bounds.start + self._opening_s)

    def _drill(self, query_id: str, kind: str, keys: Iterable[_Key]) -> dict[_Key, float]:
        """The same for the few that the cheap way has not found, over the whole range."""
        by_family: dict[str, list[_Key]] = {}
        for key in keys:
            by_family.setdefault(key[0], []).append(key)
        if not by_family:
            return {}
        terms = {}
        length = self._bounds.end - self._bounds.start
        for prefix, own in by_family.items():
            share = _EVALUATIONS / len(by_family)
            step = max(_FINEST_S, math.ceil(length * len(own) / share))
            step = min(step * (8 if prefix in _MANY else 1), _LOOKBACK_S)
            terms[prefix] = _edge(kind, self._only(prefix, own), length + 2 * step, step)
        # A grid point after the end sees the last sample as well.
        return self._edges(query_id, terms, self._bounds.end + _LOOKBACK_S)

    def _only(self, prefix: str, keys: Sequence[_Key]) -> str:
        label = "instance" if all(key[2] for key in keys) else "host"
        values = {key[2] if label == "instance" else key[1] for key in keys} - {""}
        match = {label: promql.any_of(sorted(values))} if 0 < len(values) <= _MOST_NAMED else {}
        return promql.selector(self.sampled[prefix], match=match)

    def _edges(self, query_id: str, terms: Mapping[str, str], end: float) -> dict[_Key, float]:
        """One query for all families; the label `family` keeps them apart."""
        named = [f'label_replace({one}, "family", "{f}", "", "")' for f, one in terms.items()]
        answer = self._ask(Query.at(query_id, " or ".join(named), end))
        return {
            _key(one.labels.get("family", ""), one.labels): one.last
            for one in answer.series
            if one.last is not None
        }

    def _length(self) -> str:
        return promql.duration(self._bounds.end - self._bounds.start + 1)

    def families(self, rows: Sequence[HostRow], seen: Discovery) -> Iterable[Family]:
        end = seen.window.end if seen.window is not None else self._bounds.end
        fine = self._fine(rows)
        for prefix in sorted(self.grouped, key=(*PREFIXES, OTHER).index):
            own = [row for row in rows if row.family == prefix]
            names = sorted({seen.host_of(row.labels) or "" for row in own} - {""})
            last = max((row.last for row in own), default=None)
            resolution, refresh = fine.get(self.sampled[prefix], (None, None))
            yield Family(
                prefix,
                tuple(self.grouped[prefix]),
                self.sampled[prefix],
                tuple(names),
                min((row.first for row in own), default=None),
                last,
                resolution,
                refresh,
                end - last if last is not None else None,
            )

    def _fine(self, rows: Sequence[HostRow]) -> dict[str, tuple[Optional[float], Optional[float]]]:
        """Resolution and refresh by metric, from one host of each source, at its end."""
        ends: list[list[HostRow]] = []  # newest of each source; those that end together in one
        for source in ("hw_", "ray_", "tb_", "up"):
            own = [row for row in rows if row.family.startswith(source)]
            if not own:
                continue
            newest = max(own, key=lambda row: row.last)
            near = [one for one in ends if abs(one[0].last - newest.last) < _APART_S]
            if near:
                near[0].append(newest)
            else:
                ends.append([newest])
        metrics = sorted({self.sampled[row.family] for row in rows})
        queries = [_closely(number, own, metrics) for number, own in enumerate(ends)]
        found: dict[str, list[Series]] = {}
        for answer in self._client.ask_all(queries).values():
            self._note(answer)
            for one in answer.series:
                found.setdefault(one.metric, []).append(one)
        return {metric: (_resolution(all_), _refresh(all_)) for metric, all_ in found.items()}

    def targets(self, seen: Discovery) -> Iterable[Target]:
        """Scrape targets; a server that does not store `up` has none."""
        if "up" not in self.grouped:
            return
        span, end = f"up[{self._length()}]", self._bounds.end
        both = " or ".join(
            f'label_replace({how}_over_time({span}), "how", "{how}", "", "")'
            for how in ("last", "avg")
        )
        answer = self._ask(Query.at("discovery-up", both, end))
        shares = {_target(one.labels): one.last for one in answer.series if _is(one, "avg")}
        sights = {one.name: one.sights.get("up") for one in seen.hosts}
        for one in answer.series:
            if not _is(one, "last"):
                continue
            host = seen.host_of(one.labels) or ""
            sight = sights.get(host)
            yield Target(
                one.labels.get("job", ""),
                one.labels.get("instance", ""),
                host,
                one.last == 1,
                sight.last if sight is not None else end,
                float(shares.get(_target(one.labels)) or 0.0),
            )

    def _ask(self, query: Query) -> QueryResult:
        answer = self._client.ask(query)
        self._note(answer)
        return answer

    def _note(self, answer: QueryResult) -> None:
        if not answer.ok:
            self.unread.append(Unread(answer.query.id, answer.status, answer.reason))


def _key(family: str, labels: Mapping[str, str]) -> _Key:
    return (
        family,
        labels.get("host", ""),
        labels.get("instance", ""),
        labels.get("ip", ""),
        labels.get("IsHeadNode", ""),
    )


def _edge(kind: str, selector: str, length_s: float, step_s: float) -> str:
    grid = f"timestamp({selector})[{promql.duration(length_s)}:{promql.duration(step_s)}]"
    return f"{kind} by ({_BY}) ({kind}_over_time({grid}))"


def _closely(number: int, rows: Sequence[HostRow], metrics: Sequence[str]) -> Query:
    """Raw samples of the metrics of these rows' hosts, before the last of each."""
    named = {
        # A series that has no such label matches the empty word.
        label: promql.any_of(sorted({row.labels.get(label, "") for row in rows} | {""}))
        for label in ("host", "instance")
    }
    selector = promql.selector("", match={"__name__": promql.any_of(metrics), **named})
    lasts = [row.last for row in rows]
    span = promql.duration(_FINE_WINDOW_S + max(lasts) - min(lasts))
    return Query.at(f"discovery-fine{number or ''}", f"{selector}[{span}]", max(lasts))


def _is(series: Series, how: str) -> bool:
    return series.labels.get("how") == how


def _target(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("job", ""), labels.get("instance", "")


def _resolution(found: Iterable[Series]) -> Optional[float]:
    known = [one.spacing_s for one in found if one.spacing_s is not None]
    return float(np.median(known)) if known else None


def _refresh(found: Iterable[Series]) -> Optional[float]:
    """Usual distance of two changes; None where values stand still."""
    distances = []
    for one in found:
        changed = one.times[1:][np.diff(one.values) != 0]
        if changed.size > 1:
            distances.append(float(np.median(np.diff(changed))))
    return float(np.median(distances)) if distances else None
