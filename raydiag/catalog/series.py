"""KNOW: what other exporters call the quantities that playbooks judge, from `series.yaml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources

from raydiag.catalog.rows import CatalogRow, loaded, rows

_FILE = "series.yaml"
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SELECTOR = re.compile(rf"({_NAME})(\{{[^}}]*\}})?")


@dataclass(frozen=True)
class ForeignSeries:
    """One metric of ours in another exporter's names."""

    metric: str  # ours
    expressions: tuple[str, ...]  # the first that can be had of each series
    prefixes: tuple[str, ...]  # of their metrics
    by: tuple[str, ...]  # our labels that tell series of one host apart
    factor: float = 1.0
    constants: tuple[tuple[str, str], ...] = ()  # labels of ours that are always the same
    times_only: bool = False  # the values mean something else

    def names(self, expression: str) -> list[str]:
        """The metrics that an expression reads."""
        return [match[1] for match in self._selectors(expression)]

    def _selectors(self, expression: str) -> Iterator[re.Match[str]]:
        for match in _SELECTOR.finditer(expression):
            if match[1].startswith(self.prefixes):
                yield match

    def answerable(self, names: Collection[str]) -> tuple[str, ...]:
        """The expressions that a server with these metrics can answer."""
        return tuple(
            part for part in self.expressions if all(map(names.__contains__, self.names(part)))
        )

    def with_affix(self, affix: str) -> ForeignSeries:
        """The same with all their names beginning so."""
        expressions = []
        for expression in self.expressions:
            for name in self.names(expression):
                expression = re.sub(rf"\b{name}\b", affix + name, expression)
            expressions.append(expression)
        prefixes = tuple(affix + prefix for prefix in self.prefixes)
        return replace(self, expressions=tuple(expressions), prefixes=prefixes)

    def measured(self, expression: str, match: Iterable[str]) -> tuple[str, str]:
        """The expression with label matchers, and the first selector in it."""
        parts, end = [], 0
        selectors = []
        for found in self._selectors(expression):
            fixed = (found[2] or "{}")[1:-1]
            braces = ",".join(filter(None, (fixed, *match)))
            selectors.append(f"{found[1]}{{{braces}}}" if braces else found[1])
            parts += [expression[end : found.start()], selectors[-1]]
            end = found.end()
        return "".join((*parts, expression[end:])), selectors[0]


@dataclass(frozen=True)
class Dialect:
    """How one exporter names hosts and metrics."""

    name: str
    source: str  # where the names were looked up
    markers: tuple[str, ...]  # the first that is there tells who speaks it
    host_labels: tuple[str, ...]  # the last that is set counts
    labels: Mapping[str, str]  # ours -> theirs
    series: tuple[ForeignSeries, ...]

    @cached_property
    def metrics(self) -> frozenset[str]:
        """Their metrics that mean something to us."""
        names = set(self.markers)
        for foreign in self.series:
            for expression in foreign.expressions:
                names.update(foreign.names(expression))
        return frozenset(names)

    def with_affix(self, affix: str) -> Dialect:
        """The same where an exporter is set up to begin all names of metrics so."""
        series = tuple(foreign.with_affix(affix) for foreign in self.series)
        return replace(
            self, markers=tuple(f"{affix}{name}" for name in self.markers), series=series
        )

    def marker(self, names: Collection[str]) -> str:
        """The metric that tells who speaks it; "" where nobody does."""
        return next(filter(names.__contains__, self.markers), "")


@cache
def dialects() -> tuple[Dialect, ...]:
    """All of the table; what is said by two of them is taken from the first."""
    return parse_dialects(resources.files(__package__).joinpath(_FILE).read_text("utf-8"))


def parse_dialects(text: str, file: str = _FILE) -> tuple[Dialect, ...]:
    """The dialects of a YAML list. Raises CatalogError."""
    table = []
    for row in rows(loaded(text, file), file, "dialect"):
        by, prefixes = row.texts("by", least=0), row.texts("prefixes")
        metrics = row.table("metrics").items()
        dialect = Dialect(
            row.name,
            row.text("source"),
            row.texts("marker"),
            row.texts("hosts"),
            row.mapping("labels"),
            tuple(_foreign(metric, data, prefixes, by, row) for metric, data in metrics),
        )
        affix = row.text("affix", "")
        row.end()
        for foreign in dialect.series:
            if not all(map(foreign.names, foreign.expressions)):
                raise row.error(f"{foreign.metric} reads no metric that begins with its prefixes")
            if not dialect.labels.keys() >= set(foreign.by):
                raise row.error(f"{foreign.metric}: no label of theirs for {', '.join(foreign.by)}")
        table += [dialect, dialect.with_affix(affix)] if affix else [dialect]
    return tuple(table)


def _foreign(
    metric: str,
    data: object,
    prefixes: tuple[str, ...],
    by: tuple[str, ...],
    dialect: CatalogRow,
) -> ForeignSeries:
    row = CatalogRow(data, dialect.file, f"{dialect.name}: {metric}")
    foreign = ForeignSeries(
        metric,
        row.texts("from"),
        prefixes,
        row.texts("by") if "by" in row.data else by,
        float(row.number("factor") or 1),
        tuple(row.mapping("labels").items()),
        row.flag("times"),
    )
    row.end()
    return foreign
