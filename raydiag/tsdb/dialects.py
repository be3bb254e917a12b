"""A server whose nodes speak other exporters' dialects, as if all of them spoke ours.

Discovery, queries and playbooks know our metrics alone. Where other exporters measure the same on
hosts that have no series of ours, questions are rewritten, and answers get our names and the
hosts'. What our own exporter says of a host counts, then the first dialect of the table. Where only
our own exporter is there, nothing is asked besides and nothing is rewritten.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Optional

import numpy as np

from raydiag.catalog.series import Dialect, dialects
from raydiag.tsdb import promql, rewriting
from raydiag.tsdb.client import Client, Metadata
from raydiag.tsdb.discovery_types import ANY_HOST, SpokenDialect, is_address, short_name
from raydiag.tsdb.families import family_of, sampled
from raydiag.tsdb.foreign import Source, Speakers
from raydiag.tsdb.rewriting import Unit
from raydiag.tsdb.series import Query, QueryResult, Series

_NAMES, _SERIES = "label/__name__/values", "series"
_RAY, _UNAME = "ray_node_mem_used", "node_uname_info"
_OF_GPUS = "ray_node_gpus_utilization"  # names each GPU, as its exporter does
_NAMING = ("nodename", "host", "hostname", "Hostname")

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Translation:
    """What a server has, in its names and in ours."""

    names: tuple[str, ...]  # of the server's metrics
    speakers: tuple[Speakers, ...] = ()
    native: Mapping[str, frozenset[str]] = field(default_factory=dict)  # hosts by family of ours
    addresses: Labels = field(default_factory=dict)  # host names by IP address

    @cached_property
    def sources(self) -> Mapping[str, Sequence[Source]]:
        """What others have of our metrics, on hosts that have none of ours."""
        sources: dict[str, list[Source]] = {}
        for speakers in self.speakers:
            for foreign in speakers.dialect.series:
                earlier = sources.get(foreign.metric, [])
                silent = set(chain.from_iterable(part.speakers.hosts for part in earlier))
                if foreign.metric in self.names:
                    silent |= self.native.get(family_of(foreign.metric), frozenset())
                if foreign.times:
                    silent |= self._with_two_witnesses
                expressions = foreign.answerable(self.names)
                if expressions and not silent >= speakers.hosts:
                    source = Source(speakers, foreign, expressions, frozenset(silent))
                    sources.setdefault(foreign.metric, []).append(source)
        return sources

    @property
    def _with_two_witnesses(self) -> frozenset[str]:
        """Hosts of which both an exporter and Ray tell whether they live."""
        exported = (part.hosts for part in self.speakers if _UNAME in part.dialect.markers)
        return frozenset(chain.from_iterable(exported)) & self.native.get(
            family_of(_RAY), frozenset()
        )

    @cached_property
    def _theirs(self) -> frozenset[str]:
        return frozenset(chain.from_iterable(part.dialect.metrics for part in self.speakers))

    @property
    def offered(self) -> list[str]:
        """The metrics in our names as far as they have one."""
        return sorted({*self.names, *self.sources} - self._theirs)

    @cached_property
    def _hosts(self) -> Labels:
        """Names of hosts by what their series have as `host`."""
        hosts: dict[str, str] = {}
        for speakers in self.speakers:
            hosts.update(speakers.names)
        return hosts

    def spoken(self) -> tuple[SpokenDialect, ...]:
        """For people: who speaks what, and which quantities are had so."""
        return tuple(map(self._spoken, self.speakers))

    def _spoken(self, speakers: Speakers) -> SpokenDialect:
        used, lacking = {}, []
        for foreign in speakers.dialect.series:
            for source in self.sources.get(foreign.metric, ()):
                if source.speakers is speakers and not foreign.times:
                    used[foreign.metric] = " or ".join(source.expressions)
            if not foreign.answerable(self.names):
                lacking.append(foreign.metric)
        hosts = tuple(sorted(speakers.hosts))
        return SpokenDialect(speakers.dialect.name, hosts, used, tuple(lacking))

    def query(self, query: Query) -> Query:
        """As the server understands it."""
        return replace(query, promql=rewriting.rewritten(query.promql, self._replaced))

    def _replaced(self, unit: Unit, text: str) -> str:
        sources = self._sources(unit)
        if unit.raw and sources:
            return self._raw(unit, sources)
        parts = [text] if unit.of(self.names) else []
        parts += filter(None, (source.promql(unit, not unit.metric) for source in sources))
        return f"({' or '.join(parts)})" if sources and parts else ""

    def _sources(self, unit: Unit) -> list[Source]:
        return list(chain.from_iterable(map(self.sources.__getitem__, unit.of(self.sources))))

    def _raw(self, unit: Unit, sources: Sequence[Source]) -> str:
        """Of ours and of theirs in one, since samples as they are cannot be joined."""
        names = {*unit.of(self.names), *chain.from_iterable(source.metrics for source in sources)}
        match = [f"__name__=~{promql.quoted(promql.any_of(sorted(names)))}"]
        match += [part.text for part in unit.matchers if part.label != "__name__"]
        return unit.applied_to(f"{{{','.join(match)}}}")

    def answer(self, query: Query, answer: QueryResult) -> QueryResult:
        """What came back, in our names."""
        _, _, unit = next(rewriting.units(query.promql))
        wanted = self._sources(unit) if unit.raw else []
        joined: dict[tuple[tuple[str, str], ...], list[Series]] = {}
        for series in answer.series:
            for part in self._ours(series, wanted):
                joined.setdefault(tuple(sorted(part.labels.items())), []).append(part)
        return replace(answer, query=query, series=tuple(map(_joined, joined.values())))

    def _ours(self, series: Series, sources: Sequence[Source]) -> Iterator[Series]:
        if sources and series.metric in self._theirs:
            for source in sources:
                labels = source.translated(series.labels)
                if labels is not None:
                    yield replace(
                        series, labels=labels, values=series.values * (source.foreign.factor or 1)
                    )
            return
        labels = {name: value for name, value in series.labels.items() if name != rewriting.OF}
        if "host" in labels:
            labels["host"] = self._hosts.get(labels["host"], labels["host"])
        yield replace(series, labels=labels)

    def selectors(self, match: Iterable[str]) -> Iterator[str]:
        """Selectors of series as the server understands them."""
        for text in match:
            unit = rewriting.selector(text)
            sources = self._sources(unit)
            if not sources or unit.of(self.names):
                yield text
            for source in sources:
                yield from source.selectors(unit)

    def labels(self, match: Iterable[str], rows: Iterable[Labels]) -> list[Labels]:
        """Label sets of series in our names; `match` is what was asked for."""
        sources = list(
            chain.from_iterable(self._sources(rewriting.selector(text)) for text in match)
        )
        ours: list[Labels] = []
        for row in rows:
            if row.get("__name__") in self._theirs:
                ours += filter(None, (source.translated(row) for source in sources))
            else:
                ours.append(row)
        return ours


def _joined(parts: Sequence[Series]) -> Series:
    """One series of several that are one host's: of an exporter that has moved, of two exporters.

    Where both have a value the greater counts: of two that tell when they lived, the newer.
    """
    if len(parts) == 1:
        return parts[0]
    every = np.concatenate([part.times for part in parts])
    times, places = np.unique(every, return_inverse=True)
    values = np.full(times.size, np.nan)
    np.fmax.at(values, places, np.concatenate([part.values for part in parts]))
    return replace(parts[0], times=times, values=values)


class TranslatingClient(Client):
    """A server, asked and answering in our names."""

    _translation: Optional[Translation] = None

    def ask_all(
        self, queries: Iterable[Query], *limits: Any, **named_limits: Any
    ) -> dict[str, QueryResult]:
        """As `Client` does; `asked` has the queries as the server got them."""
        original = list(queries)
        translation = self._translation or self._learned()[1]
        if not translation.sources:
            return super().ask_all(original, *limits, **named_limits)
        in_their_words = map(translation.query, original)
        answers = super().ask_all(in_their_words, *limits, **named_limits)
        return {query.id: translation.answer(query, answers[query.id]) for query in original}

    def metadata(self, path: str, parameters: Mapping[str, Any] | None = None) -> Metadata:
        """As `Client` does; names of metrics and series are ours."""
        if path == _NAMES and not parameters:
            names, translation = self._learned()
            return replace(names, data=translation.offered) if translation.sources else names
        learned = self._translation
        if path != _SERIES or learned is None or not learned.sources or not parameters:
            return super().metadata(path, parameters)
        match = list(parameters["match[]"])
        selectors = list(dict.fromkeys(learned.selectors(match)))
        answer = super().metadata(path, {**parameters, "match[]": selectors})
        if not isinstance(answer.data, list):
            return answer
        return replace(answer, data=learned.labels(match, answer.data))

    def spoken(self) -> tuple[SpokenDialect, ...]:
        """The dialects of its hosts; none before anything was asked."""
        return self._translation.spoken() if self._translation is not None else ()

    def _learned(self) -> tuple[Metadata, Translation]:
        """The server's metrics; who speaks what is asked only where another dialect is there."""
        answer = super().metadata(_NAMES)
        names = tuple(map(str, answer.data)) if isinstance(answer.data, list) else ()
        translation, known = Translation(names), frozenset(names)
        markers = [(dialect, dialect.marker(known)) for dialect in dialects()]
        if any(marker for _, marker in markers):
            wanted = [marker for _, marker in markers if marker] + _representatives(names)
            wanted += [name for name in names if name == _OF_GPUS]
            rows = super().metadata(_SERIES, {"match[]": wanted})
            if isinstance(rows.data, list):
                translation = _translation(names, markers, rows.data)
        self._translation, self.addresses = translation, translation.addresses
        return answer, translation


def _representatives(names: Sequence[str]) -> list[str]:
    """One metric for each family of ours that others may have as well."""
    families: dict[str, list[str]] = {}
    for name in names:
        if name.startswith(("hw_", "ray_node_")):
            families.setdefault(family_of(name), []).append(name)
    return [sampled(of_family) for of_family in families.values()]


def _translation(
    names: tuple[str, ...], markers: Sequence[tuple[Dialect, str]], rows: Sequence[Labels]
) -> Translation:
    addresses = _names_by_address(rows)
    speakers = []
    for dialect, marker in markers:
        of_dialect = [row for row in rows if marker and row.get("__name__") == marker]
        if of_dialect:
            speakers.append(Speakers.of(dialect, of_dialect, addresses))
    native: dict[str, set[str]] = {}
    for row in rows:
        host = row.get("ip") or short_name(row.get("host") or row.get("instance", ""))
        family = native.setdefault(family_of(row.get("__name__", "")), set())
        family.add(addresses.get(host, host))
    hosts = {family: frozenset(of_family) for family, of_family in native.items()}
    return Translation(names, tuple(speakers), hosts, addresses)


def _names_by_address(rows: Iterable[Labels]) -> Labels:
    """Host names by IP address and by GPU, as far as series tell both; the last word counts."""
    names: dict[str, str] = {}
    for row in sorted(rows, key=_trust):
        told = (*map(row.get, _NAMING), names.get(row.get("GpuUuid", "")), row.get("instance"))
        name = next((short_name(text) for text in told if text), "")
        if name and not is_address(name):
            address = row.get("ip") or short_name(row.get("instance", ""))
            telling = {address, row.get("UUID", "")} - ANY_HOST
            names |= dict.fromkeys(telling, name)
    return names


def _trust(row: Labels) -> int:
    """The kernel itself knows best; of a GPU its exporter may know no more than its own pod."""
    return (row.get("__name__") == _UNAME) - bool(row.get("hostname") or row.get("Hostname"))
