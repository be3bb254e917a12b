"""How numbers, times and sets of hosts are written, alike in all reports."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from raydiag.nodeset import fold
from raydiag.render.document import rfc3339

# What differs between findings of one kind: PCI addresses, hexadecimal and decimal numbers.
_VARYING = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]|0x[0-9a-f]+|\d+(?:\.\d+)*")
_Piece = TypeVar("_Piece")
_Key = TypeVar("_Key")
_BYTES = ("bytes", "kB", "MB", "GB", "TB")
_PLAIN_BELOW = 1e6  # larger numbers are written with an exponent


def shape(text: str, host: str | None = None) -> str:
    """`text` with everything that varies between like findings replaced by `*`."""
    return _VARYING.sub("*", text.replace(host, "*") if host else text)


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def joined(parts: Iterable[str]) -> str:
    """The parts that are not empty, two blanks apart, as in a heading."""
    return "  ".join(filter(None, parts))


def filled(template: str, value: object) -> str:
    """The template with the value in its braces; empty without a value."""
    return template.format(value) if value or value == 0 else ""


def counted(times: Mapping[Any, int]) -> str:
    """`2 nfs-ok, 1 oom-kill`: what was seen how often; what was not is left out."""
    return ", ".join(f"{number} {name}" for name, number in times.items() if number)


def or_dash(value: object, template: str = "{}") -> str:
    """The template with the value in its braces, or `-` for what is not known."""
    return "-" if value is None else template.format(value)


def quantity(value: float | None, unit: str, digits: int = 6) -> str:
    """`4.25 GB`, with the unit where there is one; `-` for what is not known."""
    if value is not None and unit == "bytes":
        value, unit = _scaled(value)
    return or_dash(value, f"{{:.{digits}g}} {unit}".rstrip())


def _scaled(value_bytes: float) -> tuple[float, str]:
    """Bytes in the unit, a power of 1000, that leaves few digits."""
    power = sum(abs(value_bytes) >= 1000.0**exponent for exponent in range(1, len(_BYTES)))
    return value_bytes / 1000.0**power, _BYTES[power]


def grouped(members: Iterable[_Piece], key: Callable[[_Piece], _Key]) -> dict[_Key, list[_Piece]]:
    """Members of the same key together, in the order in which they appear."""
    groups: dict[_Key, list[_Piece]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return groups


def hosts_of(records: Iterable[object]) -> str:
    """The hosts of findings or gaps as one node set; those without a host are left out."""
    return fold(filter(None, map(attrgetter("host"), records)))


def beginning(pieces: Sequence[_Piece], most: int, show_all: bool) -> Sequence[_Piece]:
    """The first pieces, or all of them."""
    return pieces if show_all else pieces[:most]


def utc(time_s: float) -> str:
    """Unix seconds as `2026-11-20 03:12:07Z`; a node may claim a time that is none."""
    try:
        return rfc3339(time_s).replace("T", " ")
    except ValueError:
        return f"(no valid time: {time_s!r})"


def since(onset_s: float | None) -> str:
    """`since 2026-11-20 03:12:07Z`; empty without a time."""
    return "" if onset_s is None else f"since {utc(onset_s)}"


def timed(line: str, time_s: float | None) -> str:
    """`line  (2026-11-20 03:12:07Z)`; the line alone without a time."""
    return line if time_s is None else f"{line}  ({utc(time_s)})"


def number(value: float) -> str:
    """Six digits, without exponent or trailing zeros where possible."""
    return f"{value:.6g}"


def extent(values: Iterable[float], unit: str) -> str:
    """`41-63C` for the smallest and largest value, `41C` when equal, `-` when there is none."""
    numbers = list(filter(math.isfinite, values))
    if not numbers:
        return "-"
    low, high = _rounded(min(numbers)), _rounded(max(numbers))
    return f"{low}{unit}" if low == high else f"{low}-{high}{unit}"


def span(seconds: float | None) -> str:
    """`48 s`, `49 min 0 s`, `14 h 37 min`; "n/a" for what is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "n/a"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rounded_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rounded_s} s"


def _rounded(value: float) -> str:
    return f"{value:.0f}" if abs(value) < _PLAIN_BELOW else number(value)
