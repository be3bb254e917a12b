"""What promtool would say of a metric's name and help, as far as one sample of it tells.

Advice and no law: a name that dashboards use is better kept than mended.

Source: promlint of client_golang (`promtool check metrics`);
https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from raydiag.exporter.metrics import COUNTER

# Unit in a name -> the base unit that belongs there.
_UNITS = {
    **dict.fromkeys(("milliseconds", "microseconds", "nanoseconds", "minutes", "hours"), "seconds"),
    **dict.fromkeys(("kilobytes", "megabytes", "gigabytes", "kibibytes", "mebibytes"), "bytes"),
    **dict.fromkeys(("kelvin", "fahrenheit"), "celsius"),
    **dict.fromkeys(("milliwatts", "kilowatts"), "watts"),
    **dict.fromkeys(("percent", "percents", "pct"), "ratio"),
}
_ABBREVIATIONS = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "m", "h", "d"}
_CAMEL_CASE = re.compile(r"[a-z][A-Z]")
_TYPES = {"counter", "gauge", "histogram", "summary", "untyped"}


def advice(name: str, kind: str, help_text: str) -> Iterator[str]:
    """One line for each thing that is usual and is not done."""
    words = name.split("_")
    if not help_text:
        yield "no HELP line"
    if kind == COUNTER and not name.endswith("_total"):
        yield "a counter's name ends in _total"
    if kind != COUNTER and name.endswith("_total"):
        yield "only a counter's name ends in _total"
    if ":" in name:
        yield "colons are for recording rules"
    if _CAMEL_CASE.search(name):
        yield "names are snake_case"
    for word in words:
        if word in _UNITS:
            yield f"{_UNITS[word]} rather than {word}"
        if word in _TYPES:
            yield f"the type {word} is no part of a name"
    unit = words[-2] if words[-1] == "total" and len(words) > 1 else words[-1]
    if unit in _ABBREVIATIONS:
        yield f"units are written out, and {unit} is an abbreviation"
