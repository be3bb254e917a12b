"""Pieces of PromQL: selectors whose values are quoted, and counters read by rate or increase only.

Source: Prometheus documentation, "Querying basics"; label matchers are RE2 and anchored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def quoted(text: str) -> str:
    """As a string literal."""
    return '"' + text.translate(_ESCAPES) + '"'


def literal(text: str) -> str:
    """As a regular expression that matches nothing else."""
    return _SPECIAL.sub(r"\\\1", text)


def any_of(values: Iterable[str], suffix: str = "") -> str:
    """As a regular expression that matches each of the values, followed by `suffix` (a regex)."""
    alternatives = "|".join(map(literal, values))
    return f"({alternatives}){suffix}" if suffix else alternatives


def selector(
    metric: str, equal: Mapping[str, str] | None = None, match: Mapping[str, str] | None = None
) -> str:
    """`metric{a="b",c=~"d"}`; the values of `match` are regular expressions."""
    matchers = [f"{name}={quoted(value)}" for name, value in (equal or {}).items()]
    matchers += [f"{name}=~{quoted(value)}" for name, value in (match or {}).items()]
    if not _METRIC.fullmatch(metric):
        if metric:
            matchers.append(f"__name__={quoted(metric)}")
        metric = ""
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def rate(counter: str, window_s: float) -> str:
    """Increase per second of a counter's selector over the window, resets accounted for."""
    return f"rate({counter}[{duration(window_s)}])"


def increase(counter: str, window_s: float) -> str:
    """Increase of a counter's selector over the window, extrapolated to its ends."""
    return f"increase({counter}[{duration(window_s)}])"


def aggregated(operator: str, by: Iterable[str], expression: str) -> str:
    """`sum by (host) (...)`."""
    return f"{operator} by ({', '.join(by)}) ({expression})"


def duration(seconds: float) -> str:
    """Seconds as PromQL writes them; at least one millisecond."""
    milliseconds = max(1, round(seconds * 1000))
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"
