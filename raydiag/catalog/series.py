"""KNOW: what other exporters call the quantities that playbooks judge, from `series.yaml`."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import resources

from raydiag.catalog.rows import CatalogRow, loaded, rows

_FILE = "series.yaml"
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})?")


@dataclass(frozen=True)
class ForeignSeries:
    """One metric of ours in another exporter's names."""

    metric: str  # ours
    prefixes: tuple[str, ...]  # of their metrics
    by: tuple[str, ...]  # our labels that tell series of one host apart
    labels: Mapping[str, str]  # of ours that are always the same
    read: tuple[str, ...]  # expressions; the first that can be had of each series counts
    factor: int | None = None  # from their unit to ours
    times: bool = False  # only when there are samples is meant

    def names(self, expression: str) -> list[str]:
        """The metrics that an expression reads."""
        return [match[1] for match in self._selectors(expression)]

    def _selectors(self, expression: str) -> Iterator[re.Match[str]]:
        return (
            match for match in _SELECTOR.finditer(expression) if match[1].startswith(self.prefixes)
        )

    def answerable(self, names: Collection[str]) -> tuple[str, ...]:
        """The expressions that a server with these metrics can answer."""
        return tuple(part for part in self.read if set(self.names(part)).issubset(names))

    def measured(self, expression: str, match: Iterable[str]) -> tuple[str, str]:
        """The expression with label matchers, and the first selector in it."""
        parts, selectors, end = [], [], 0
        for found in self._selectors(expression):
            braces = ",".join(filter(None, ((found[2] or "")[1:-1], *match)))
            selectors.append(f"{found[1]}{{{braces}}}" if braces else found[1])
            parts += [expression[end : found.start()], selectors[-1]]
            end = found.end()
        return "".join((*parts, expression[end:])), selectors[0]


@dataclass(frozen=True)
class Dialect:
    """How one exporter names hosts and metrics."""

    name: str
    labels: Mapping[str, str]  # ours -> theirs
    series: tuple[ForeignSeries, ...]
    source: str  # where the names were looked up
    markers: tuple[str, ...]  # the first that is there tells who speaks it
    hosts: tuple[str, ...]  # labels that name the host; the last that is set counts

    @cached_property
    def metrics(self) -> frozenset[str]:
        """Their metrics that mean something to us."""
        names = set(self.markers)
        for foreign in self.series:
            for expression in foreign.read:
                names.update(foreign.names(expression))
        return frozenset(names)

    def marker(self, names: Collection[str]) -> str:
        """The metric that tells who speaks it; "" where nobody does."""
        return next(filter(names.__contains__, self.markers), "")


@cache
def dialects() -> tuple[Dialect, ...]:
    """All of the table; what is said by two of them is taken from the first."""
    return parse_dialects(resources.files(__package__).joinpath(_FILE).read_text("utf-8"))


def parse_dialects(text: str, file: str = _FILE) -> tuple[Dialect, ...]:
    """The dialects of a YAML list, each with and without its affix. Raises CatalogError."""
    table = []
    for row in rows(loaded(text, file), file, "dialect"):
        by, prefixes = row.texts("by", least=0), row.texts("prefixes")
        labels, metrics = row.mapping("labels"), row.table("metrics")
        for affix in dict.fromkeys(("", row.text("affix", ""))):
            again = CatalogRow(row.data, file, row.name)
            affixed = partial(re.sub, rf"\b({'|'.join(prefixes)})", rf"{affix}\1")
            again.data["markers"] = list(map(affixed, row.data["markers"]))
            series = []
            for metric, data in metrics.items():
                foreign = CatalogRow(data, file, f"{row.name}: {metric}")
                series.append(
                    foreign.rest(
                        ForeignSeries,
                        metric=metric,
                        prefixes=tuple(affix + prefix for prefix in prefixes),
                        by=foreign.texts("by") if "by" in foreign.data else by,
                        labels=foreign.mapping("labels"),
                        read=tuple(map(affixed, foreign.texts("read"))),
                    )
                )
            table.append(again.rest(Dialect, name=row.name, labels=labels, series=tuple(series)))
    return tuple(table)
