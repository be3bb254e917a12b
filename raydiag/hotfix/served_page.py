"""What an exporter serves or a plugin prints, as far as a hotfix needs it.

Prometheus drops a whole scrape for one line that it cannot read, comments about types among them:
a page is valid, or it has no values at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from raydiag import exposition
from raydiag.errors import ParseError
from raydiag.exposition import ExpositionLine


@dataclass(frozen=True)
class ParsedPage:
    """Values by series, `name{label="value",...}` with its labels in order; why it is invalid."""

    values: Mapping[str, float]
    broken: str = ""

    @property
    def metrics(self) -> dict[str, int]:
        """Metric name -> number of its series."""
        return dict(Counter(map(_metric, self.values)))

    def values_of(self, metric: str) -> list[float]:
        """Values of all series of that metric."""
        return [value for series, value in self.values.items() if _metric(series) == metric]


def _metric(series: str) -> str:
    return series.partition("{")[0]


def parse(text: bytes, is_exporters_page: bool = True) -> ParsedPage:
    """`own`: it is an exporter's page, and not what a plugin may print."""
    try:
        printed = exposition.parse(text, may_lack_end=True, own=is_exporters_page)
    except ParseError as error:
        return ParsedPage({}, str(error))
    return ParsedPage({_series(line): line.value for line in printed.lines})


def _series(line: ExpositionLine) -> str:
    labels = ",".join(f'{name}="{exposition.escaped(value)}"' for name, value in line.labels)
    return f"{line.name}{{{labels}}}" if labels else line.name
