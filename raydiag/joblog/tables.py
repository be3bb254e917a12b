"""What lines of job logs look like, from `lines.yaml`: literals that select them, and patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Optional

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class LinePattern:
    """One kind of line."""

    anchor: str  # literal part of every such line
    pattern: re.Pattern[str]
    event: str  # what the line tells of
    phase: str = ""  # of start-up

    def search(self, text: str) -> Optional[re.Match[str]]:
        """A match in a line of this kind; None for any other."""
        return self.pattern.search(text) if self.anchor in text else None


@cache
def _tables() -> dict[str, Any]:
    text = resources.files("raydiag.joblog").joinpath("lines.yaml").read_text("utf-8")
    tables: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return tables


def table(name: str) -> Any:
    """One table as it stands in the file. Raises KeyError for a name that is not there."""
    return _tables()[name]


def line_patterns(name: str) -> tuple[LinePattern, ...]:
    """One table of line patterns, in its own order."""
    return tuple(
        LinePattern(**{**row, "pattern": re.compile(row["pattern"])}) for row in table(name)
    )


def anchors_of(rows: Iterable[LinePattern]) -> tuple[bytes, ...]:
    """The rows' literals as they stand in a log, each once."""
    return tuple(dict.fromkeys(row.anchor.encode() for row in rows))
