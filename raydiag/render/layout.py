"""The page that reports are set on: wrapping, colour, and how numbers and times are written."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from raydiag.model import Severity
from raydiag.nodeset import fold
from raydiag.render.document import rfc3339
from raydiag.render.escape import terminal

RED, GREEN, YELLOW = "31", "32", "33"
COLOURS = {Severity.CRITICAL: RED, Severity.WARNING: YELLOW, Severity.INFO: ""}

# What differs between findings of one kind: PCI addresses, hexadecimal and decimal numbers.
_VARYING = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]|0x[0-9a-f]+|\d+(?:\.\d+)*")


@dataclass(frozen=True)
class ReportPage:
    width: int  # columns
    colour: bool  # ANSI colours

    def wrap(self, text: str, first: str = "", rest: str = "") -> list[str]:
        """`text` in lines of the page's width, the first indented by `first`, others by `rest`."""
        return wrap(text, self.width, first, rest)

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colour and colour else text


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """`text` cut at double blanks, else blanks or commas, else anywhere; other blanks are kept."""
    lines: list[str] = []
    indent = first
    while True:
        room = max(width - len(indent), 8)
        if len(text) <= room:
            return [*lines, indent + text]
        # Double blanks part the fields of a heading, which are easier to read in one piece.
        cut = text.rfind("  ", room // 2, room + 2)
        if cut <= 0:
            cut = max(text.rfind(" ", 0, room + 1), text.rfind(",", 0, room) + 1)
        cut = cut if cut > 0 else room
        lines.append((indent + text[:cut]).rstrip())
        text, indent = text[cut:].lstrip(" "), rest


def shape(text: str, host: str | None = None) -> str:
    """`text` with everything that varies between like findings replaced by `*`."""
    return _VARYING.sub("*", text.replace(host, "*") if host else text)


def hosts(names: Iterable[str]) -> str:
    """Host names folded and made harmless."""
    return terminal(fold(names))


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def utc(time_s: float) -> str:
    """Unix seconds as `2026-11-20 03:12:07Z`; a node may claim a time that is none."""
    try:
        return rfc3339(time_s).replace("T", " ")
    except ValueError:
        return f"(no valid time: {time_s!r})"


def number(value: float) -> str:
    """Six digits, without exponent or trailing zeros where possible."""
    return f"{value:.6g}"


def extent(values: Iterable[float], unit: str) -> str:
    """`41-63C` for the smallest and largest value, `41C` when equal, `-` when there is none."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "-"
    low, high = (f"{value:.0f}" if abs(value) < 1e6 else number(value) for value in _ends(known))
    return f"{low}{unit}" if low == high else f"{low}-{high}{unit}"


def _ends(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)
