"""One quantity of ours as the hosts of another exporter's dialect have it: there and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from raydiag.catalog.series import Dialect, ForeignSeries
from raydiag.tsdb import promql
from raydiag.tsdb.discovery_types import short_name
from raydiag.tsdb.rewriting import OF, Unit, selector

_COUNTING = ("count_over_time", "changes", "resets", "present_over_time")  # whatever the unit
_GRID = ":15s]"  # of an expression, which has no samples of its own

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Speakers:
    """Who speaks a dialect."""

    dialect: Dialect
    names: Labels  # of hosts, by what the server has as `host` of their series
    instances: Labels  # of hosts, by the instance that is scraped

    @classmethod
    def of(cls, dialect: Dialect, rows: Iterable[Labels], addresses: Labels) -> Speakers:
        """From series of the dialect; `addresses`: host names by IP address."""
        names, instances = {}, {}
        for row in rows:
            instance = row.get("instance", "")
            labels = ("instance", *dialect.hosts)
            called = [row[label] for label in labels if row.get(label)][-1:] or [""]
            name = addresses.get(short_name(instance)) or short_name(called[0])
            names[called[0]] = names[instance] = instances[instance] = name
        return cls(dialect, names, instances)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Their short names."""
        return frozenset(self.instances.values())


@dataclass(frozen=True)
class Source:
    """A metric of ours from one dialect."""

    speakers: Speakers
    foreign: ForeignSeries
    expressions: tuple[str, ...]  # that the server can answer
    silent: frozenset[str]  # hosts for which something else counts

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Their metrics whose samples are the quantity's, one for each expression."""
        return tuple(selector(part).metric for part in self._firsts)

    @cached_property
    def _firsts(self) -> tuple[str, ...]:
        return tuple(self.foreign.measured(part, ())[1] for part in self.expressions)

    def promql(self, unit: Unit, several: bool) -> str:
        """The unit in their names, with our labels; "" where nothing of theirs is selected.

        `several`: other metrics are selected with it.
        """
        match, timed = self._match(unit), unit.function == "timestamp"
        # Ray does not live because an exporter does.
        if match is None or (timed and self.foreign.metric.startswith("ray_")):
            return ""
        if self.foreign.times and not timed:
            return ""
        text = " or ".join(self._applied(unit, part, match) for part in self.expressions)
        for label, theirs in self._renamed():
            text = f'label_replace({text}, "{label}", "$1", "{theirs}", "(.+)")'
        text = f"max by ({', '.join(('host', 'instance', *self.foreign.by))}) ({text})"
        constants = dict(self.foreign.labels)
        if not unit.function:
            constants["__name__"] = self.foreign.metric
        if several:
            constants[OF] = self.foreign.metric
        for label, value in constants.items():
            text = f'label_replace({text}, "{label}", "{value}", "", "")'
        return text

    def _renamed(self) -> Iterator[tuple[str, str]]:
        """(our label, theirs), the last that is set counts."""
        dialect = self.speakers.dialect
        for label in ("instance", *dialect.hosts):
            yield "host", label
        for label in self.foreign.by:
            if dialect.labels[label] != label:
                yield label, dialect.labels[label]

    def _match(self, unit: Unit) -> list[str] | None:
        """The unit's matchers as theirs; None where no series of theirs fits."""
        fixed, theirs = dict(self.foreign.labels), self.speakers.dialect.labels
        match = self._hosts(unit)
        for matcher in unit.matchers:
            if matcher.label in fixed and not matcher.fits(fixed[matcher.label]):
                return None
            if match is not None and matcher.label not in (*fixed, "host", "job", "__name__"):
                label = theirs.get(matcher.label, matcher.label)
                match.append(replace(matcher, label=label).text)
        return match

    def _hosts(self, unit: Unit) -> list[str] | None:
        by_host = [matcher for matcher in unit.matchers if matcher.label == "host"]
        instances = self.speakers.instances
        fitting = {name for name, host in instances.items() if all(m.fits(host) for m in by_host)}
        silent = {name for name, host in instances.items() if host in self.silent}
        if not fitting - silent:
            return None
        if by_host:
            return [f"instance=~{promql.quoted(promql.any_of(sorted(fitting - silent)))}"]
        return [f"instance!~{promql.quoted(promql.any_of(sorted(silent)))}"] if silent else []

    def _applied(self, unit: Unit, expression: str, match: Iterable[str]) -> str:
        """The unit's function of their raw samples, in our measure."""
        measured, first = self.foreign.measured(expression, match)
        if unit.function == "timestamp":
            return unit.applied_to(first)
        factor = f" * {self.foreign.factor}" if self.foreign.factor else ""
        if unit.function in _COUNTING:
            factor = ""
        if measured == first:
            return unit.applied_to(measured) + factor
        gridded = replace(unit, tail=unit.tail.replace("]", _GRID, 1))
        return gridded.applied_to(f"({measured})") + factor

    def selectors(self, unit: Unit) -> Iterator[str]:
        """Of their series that the unit means."""
        match = self._match(unit)
        if match is not None:
            for part in self.expressions:
                yield self.foreign.measured(part, match)[1]

    def translated(self, labels: Labels) -> dict[str, str] | None:
        """Labels of a series of theirs as ours has them; None where it is another metric's."""
        dialect, instance = self.speakers.dialect, labels.get("instance", "")
        host = self.speakers.instances.get(instance)
        if (
            host is None
            or host in self.silent
            or not any(selector(part).selects(labels) for part in self._firsts)
        ):
            return None
        ours = {label: labels.get(dialect.labels[label], "") for label in self.foreign.by}
        ours |= {**dict(self.foreign.labels), "__name__": self.foreign.metric}
        return {**ours, "host": host, "instance": instance}
