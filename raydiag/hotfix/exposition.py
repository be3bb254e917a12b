"""Prometheus's text format, as far as a hotfix needs it: which series, which values, is it valid.

hw_gpu_power_watts{gpu="0",host="node001"} 751.0 1770926290000
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[^"\\{}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)'
    r"([ \t]+-?\d+)?[ \t]*"
)


@dataclass(frozen=True)
class Page:
    """Values by series (`name{labels}` as written), and the first line that is not the format."""

    values: Mapping[str, str]
    broken: str = ""

    @property
    def metrics(self) -> dict[str, int]:
        """Metric name -> number of its series."""
        found: dict[str, int] = {}
        for series in self.values:
            name = series.partition("{")[0]
            found[name] = found.get(name, 0) + 1
        return found


def parse(text: str) -> Page:
    """Comments and blank lines are passed over; a series that stands twice breaks the page."""
    values: dict[str, str] = {}
    broken = ""
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line)
        if not match or not _is_number(match[3]):
            broken = broken or f"line {number} is no sample: {line[:80]!r}"
            continue
        series = match[1] + (match[2] or "")
        if series in values and not match[4]:
            broken = broken or f"line {number}: {series[:80]} stands there twice"
        values[series] = match[3]
    return Page(values, broken)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
