"""How numbers, times and sets of hosts are written, alike in all reports."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Optional

from raydiag.render.document import rfc3339

# What differs between findings of one kind: PCI addresses, hexadecimal and decimal numbers.
_VARYING = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]|0x[0-9a-f]+|\d+(?:\.\d+)*")
_PLAIN_BELOW = 1e6  # larger numbers are written with an exponent


def shape(text: str, host: Optional[str] = None) -> str:
    """`text` with everything that varies between like findings replaced by `*`."""
    return _VARYING.sub("*", text.replace(host, "*") if host else text)


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def joined(parts: Iterable[str]) -> str:
    """The parts that are not empty, two blanks apart, as in a heading."""
    return "  ".join(filter(None, parts))


def utc(time_s: float) -> str:
    """Unix seconds as `2026-11-20 03:12:07Z`; a node may claim a time that is none."""
    try:
        return rfc3339(time_s).replace("T", " ")
    except ValueError:
        return f"(no valid time: {time_s!r})"


def since(onset_s: Optional[float]) -> str:
    """`since 2026-11-20 03:12:07Z`; empty without a time."""
    return "" if onset_s is None else f"since {utc(onset_s)}"


def number(value: float) -> str:
    """Six digits, without exponent or trailing zeros where possible."""
    return f"{value:.6g}"


def extent(values: Iterable[float], unit: str) -> str:
    """`41-63C` for the smallest and largest value, `41C` when equal, `-` when there is none."""
    known = list(filter(math.isfinite, values))
    if not known:
        return "-"
    low, high = _rounded(min(known)), _rounded(max(known))
    return f"{low}{unit}" if low == high else f"{low}-{high}{unit}"


def span(seconds: Optional[float]) -> str:
    """`48 s`, `49 min 0 s`, `14 h 37 min`; "n/a" for what is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "n/a"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def _rounded(value: float) -> str:
    return f"{value:.0f}" if abs(value) < _PLAIN_BELOW else number(value)
