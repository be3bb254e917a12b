"""PromQL over metrics of ours, rewritten to read what other exporters call them as well.

`max by (host) (rate(ours{host="a"}[5m]))` becomes
`max by (host) ((rate(ours{host="a"}[5m]) or label_replace(rate(theirs{...}[5m]), "host", ...)))`:
functions of ranges and `timestamp` are applied to their raw samples, inside of `label_replace`,
which has neither ranges nor sample times.

Source: Prometheus documentation, "Querying basics" and "Functions".
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from raydiag.tsdb import promql

# What is not closed goes on to the end: so no text takes more than linear time.
_STRING = r'"(?:\\.|[^"\\])*(?:"|\\?$)'
_BRACES = rf"\{{(?:{_STRING}|[^\"}}])*(?:\}}|$)"
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_PIECE = re.compile(rf"{_STRING}|(?P<name>{_NAME})?(?P<braces>{_BRACES})|(?P<bare>{_NAME})")
_MATCHER = re.compile(rf"(?<![a-zA-Z0-9_:])({_NAME})\s*(=~|!~|!=|=)\s*({_STRING})\s*,?")
_RANGE = re.compile(r"\s*\[[^\]:]*\]")
_MODIFIERS = re.compile(r"(?:\s*@\s*[\w.]+|\s*offset\s+-?\w+)*")
_CALL = re.compile(rf"(?<![a-zA-Z0-9_:])({_NAME})\s*$")
_ESCAPED = re.compile(r"\\(.)")
OF = "raydiag_of"  # keeps several metrics of one host apart, which `or` would take for one
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True)
class Matcher:
    """One label matcher of a selector."""

    label: str
    operator: str  # = != =~ !~
    value: str

    @property
    def text(self) -> str:
        """As PromQL has it."""
        return f"{self.label}{self.operator}{promql.quoted(self.value)}"

    def fits(self, text: str) -> bool:
        """Whether a label with this value is selected."""
        equal = text == self.value
        if "~" in self.operator:
            equal = re.fullmatch(self.value, text) is not None
        return equal == (self.operator[0] == "=")


@dataclass(frozen=True)
class Unit:
    """A selector with the function that is applied to its raw samples."""

    metric: str  # "" where matchers of the name select several
    matchers: tuple[Matcher, ...]
    head: str = ""  # "rate("
    tail: str = ""  # "[5m])"
    raw: bool = False  # samples of a range as they are, without a function

    @property
    def function(self) -> str:
        """Its name; "" for a selector alone."""
        return self.head.partition("(")[0].strip()

    def applied_to(self, selector: str) -> str:
        """The same function of another selector."""
        return f"{self.head}{selector}{self.tail}"

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a series is among those that it selects."""
        named = self.metric in ("", labels.get("__name__"))
        return named and all(part.fits(labels.get(part.label, "")) for part in self.matchers)

    def of(self, names: Iterable[str]) -> list[str]:
        """Which of the metrics it selects."""
        by_name = [matcher for matcher in self.matchers if matcher.label == "__name__"]
        if self.metric:
            return [name for name in names if name == self.metric]
        return [name for name in names if by_name and all(part.fits(name) for part in by_name)]


def rewritten(text: str, replace: Callable[[Unit, str], str]) -> str:
    """With what `replace` makes of each selector and the function around it; "": as it was."""
    parts, end = [], 0
    for start, stop, unit in units(text):
        replaced = replace(unit, text[start:stop]) if start >= end else ""
        if replaced:
            parts += [text[end:start], replaced]
            end = stop
    return "".join((*parts, text[end:]))


def units(text: str) -> Iterator[tuple[int, int, Unit]]:
    """(start, end, unit) of each selector; names of functions and labels are among them."""
    plain = re.sub(_STRING, lambda match: "_" * len(match[0]), text)
    for piece in _PIECE.finditer(text):
        if piece["braces"] or piece["bare"]:
            metric, matchers = piece["name"] or piece["bare"] or "", _matchers(piece["braces"])
            yield _unit(text, plain, piece.start(), piece.end(), metric, matchers)


def selector(text: str) -> Unit:
    """A selector alone."""
    return next(units(text))[2]


def _unit(
    text: str, plain: str, start: int, end: int, metric: str, matchers: tuple[Matcher, ...]
) -> tuple[int, int, Unit]:
    ranged = _RANGE.match(text, end)
    after = _MODIFIERS.match(text, ranged.end() if ranged else end)
    stop = after.end() if after else end
    opened = _opening(plain, start)
    called = _CALL.search(text, 0, opened) if opened >= 0 else None
    if called and (ranged or called[1] == "timestamp"):
        close = _closing(plain, stop)
        head, tail = text[called.start() : start], text[end : close + 1]
        return called.start(), close + 1, Unit(metric, matchers, head, tail)
    return start, stop, Unit(metric, matchers, "", text[end:stop], raw=ranged is not None)


def _opening(plain: str, start: int) -> int:
    """Place of the parenthesis that is open there; -1 for none."""
    depth = 0
    for place in range(start - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(plain[place], 0)
        if depth < 0:
            return place
    return -1


def _closing(plain: str, stop: int) -> int:
    depth = 0
    for place in range(stop, len(plain)):
        depth += {"(": 1, ")": -1}.get(plain[place], 0)
        if depth < 0:
            return place
    return len(plain)


def _matchers(braces: str | None) -> tuple[Matcher, ...]:
    found = _MATCHER.findall((braces or "{}")[1:-1])
    return tuple(Matcher(label, operator, _unquoted(text)) for label, operator, text in found)


def _unquoted(text: str) -> str:
    return _ESCAPED.sub(lambda match: _CONTROLS.get(match[1], match[1]), text[1:-1])
