"""Pieces of PromQL: selectors whose values are quoted.

Source: Prometheus documentation, "Querying basics"; label matchers are RE2 and anchored.
"""

import re
from collections.abc import Iterable, Mapping

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def quoted(text: str) -> str:
    """As a string literal."""
    return '"' + text.translate(_ESCAPES) + '"'


def literal(text: str) -> str:
    """As a regular expression that matches nothing else."""
    return _SPECIAL.sub(r"\\\1", text)


def any_of(values: Iterable[str]) -> str:
    """As a regular expression that matches each of the values."""
    return "|".join(map(literal, values))


def selector(metric: str, match: Mapping[str, str] | None = None) -> str:
    """`metric{a=~"b"}`; the values of `match` are regular expressions."""
    matchers = [f"{name}=~{quoted(value)}" for name, value in (match or {}).items()]
    if not _METRIC.fullmatch(metric):
        if metric:
            matchers.append(f"__name__={quoted(metric)}")
        metric = ""
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def duration_s(text: str) -> float | None:
    """Seconds of a duration such as `1m30s`; None for what is none."""
    if not re.fullmatch(r"(?:\d{1,9}(?:ms|[smhdwy]))+", text):
        return None
    total_s = 0.0
    for number, unit in re.findall(r"(\d{1,9})(ms|[smhdwy])", text):
        total_s += int(number) * _UNITS_S[unit]
    return total_s


def duration(seconds: float) -> str:
    """Seconds as PromQL writes them; at least one millisecond."""
    milliseconds = max(1, round(seconds * 1000))
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"
