"""What lines of job logs look like, from `lines.yaml`: literals that select them, and patterns."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class LinePattern:
    """One kind of line."""

    anchor: str  # literal part of every such line
    pattern: re.Pattern[str]
    event: str  # what the line tells of
    phase: str = ""  # of start-up

    def search(self, text: str) -> re.Match[str] | None:
        """A match in a line of this kind; None for any other."""
        return self.pattern.search(text) if self.anchor in text else None


@cache
def tables(package: str, file: str) -> dict[str, Any]:
    """All tables of a file in a package, by name."""
    text = resources.files(package).joinpath(file).read_text("utf-8")
    by_name: dict[str, Any] = yaml.load(text, Loader=_LOADER)  # a SafeLoader  # nosec B506
    return by_name


def table(name: str) -> Any:
    """One table of lines as it stands in the file. Raises KeyError where there is none."""
    return tables(__package__, "lines.yaml")[name]


def line_patterns(name: str) -> tuple[LinePattern, ...]:
    """One table of line patterns, in its own order."""
    return tuple(
        LinePattern(**{**row, "pattern": re.compile(row["pattern"])}) for row in table(name)
    )


def anchors_of(rows: Iterable[LinePattern]) -> tuple[bytes, ...]:
    """The rows' literals as they stand in a log, each once."""
    return tuple(dict.fromkeys(row.anchor.encode() for row in rows))
