"""Prometheus's text format, taken at its word or not at all.

Prometheus drops a whole scrape for one line that it cannot read, so one careless plugin would cost
every other plugin's series. Hence the output is parsed strictly, before it comes near the page: a
wrong line refuses all of it. Stricter than the format: no series twice, no timestamp on `hw_`
metrics (it would pin the past), no name of raydiag's own. Laxer: samples of one metric need not
stand together, since the page groups them anyway.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (text-based format). Sample,
with the last line of the shell plugins' protocol:

    # TYPE hw_gpu_power_watts gauge
    hw_gpu_power_watts{gpu="0",host="node001"} 903.0
    tb_step{host="node001"} 316 1770948000123
    # STATE 4711
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

from raydiag.errors import ParseError

OWN_PREFIX = "raydiag_"  # nobody else may say how the exporter is
MOST_SAMPLES = 10_000
TYPES = ("counter", "gauge", "histogram", "summary", "untyped")

_STATE = "# STATE"
_MOST_STATE_BYTES = 16 << 10
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_SAMPLE = re.compile(
    r"^([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:\{(.*)\}[ \t]*)?(?<=[ \t}])"
    r"([^ \t{}]+)(?:[ \t]+(-?\d+))?[ \t]*",
    re.ASCII,
)
_LABEL = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]|\\["\\n])*)"[ \t]*(,|$)', re.ASCII
)
_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[Ii]nf(?:inity)?|NaN|nan)", re.ASCII
)
_BLANKS = re.compile(r"[ \t]+")
_ESCAPE = re.compile(r"\\(.)")
# Endings of the names that a metric of that type has.
_PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}

Labels = tuple[tuple[str, str], ...]
_Key = tuple[str, Labels, Optional[int]]  # a page may have several dated samples of a series


@dataclass(frozen=True)
class ExpositionLine:
    """One sample as it was page."""

    name: str
    labels: Labels  # in the order of their names
    value: float  # may be NaN or infinite
    time_ms: Optional[int] = None  # Unix milliseconds; None: the scrape's own time


@dataclass
class ExpositionPage:
    """All that an output holds."""

    lines: list[ExpositionLine] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)  # metric -> one of TYPES
    helps: dict[str, str] = field(default_factory=dict)  # metric -> text, unescaped
    state: Optional[str] = None  # after `# STATE` on the last line; None: no such line

    def metric_of(self, name: str) -> str:
        """The metric that a sample belongs to: that of `x_bucket` is `x`, if x is a histogram."""
        for kind, endings in _PARTS.items():
            for ending in endings:
                metric = name[: -len(ending)]
                if name.endswith(ending) and self.types.get(metric) == kind:
                    return metric
        return name


def parse(output: bytes, may_lack_end: bool = False, own: bool = False) -> ExpositionPage:
    """The output of a plugin. Raises ParseError, naming the line, for anything out of order.

    A last line without an end may be half a number: only the shell protocol may lack it.
    `own`: it is an exporter's page, which may have names of raydiag's own, and timestamps.
    """
    text = _decoded(output)
    page = ExpositionPage()
    series: set[_Key] = set()
    rows = [row.rstrip("\r") for row in text.split("\n")]
    while rows and not rows[-1].strip():
        rows.pop()
    for number, row in enumerate(rows, 1):
        try:
            if row.startswith("#"):
                _comment(row, page, is_last=number == len(rows))
            elif row.strip(" \t"):
                _add(_sample(row), page, series, own)
        except ValueError as error:
            raise ParseError(f"line {number}: {error}: {row[:80]!r}") from None
    if text and not text.endswith("\n") and not may_lack_end:
        raise ParseError("the last line has no end: the output was cut off")
    if not own:
        _agree(page)
    return page


def _decoded(output: bytes) -> str:
    try:
        return output.decode("utf-8")
    except UnicodeDecodeError as error:
        line = output.count(b"\n", 0, error.start) + 1
        raise ParseError(f"line {line}: not UTF-8 (byte 0x{output[error.start]:02x})") from None


def _comment(row: str, page: ExpositionPage, is_last: bool) -> None:
    if row.startswith(_STATE) and row[len(_STATE) :][:1] in ("", " ", "\t"):
        page.state = _state(row, is_last)
        return
    words = _BLANKS.split(row, maxsplit=3)
    if words[0] != "#" or len(words) < 2 or words[1] not in ("TYPE", "HELP"):
        return
    if len(words) < 3 or not _NAME.fullmatch(words[2]):
        raise ValueError(f"{words[1]} without a metric's name")
    name, text = words[2], "".join(words[3:]).strip(" \t")
    if words[1] == "HELP":
        page.helps[name] = _unescaped(text)
    else:
        _add_type(name, text, page)


def _state(row: str, is_last: bool) -> str:
    if not is_last:
        raise ValueError("STATE is not on the last line")
    if len(row) > _MOST_STATE_BYTES or "\0" in row:
        raise ValueError(f"STATE of more than {_MOST_STATE_BYTES} bytes, or with a NUL")
    return row[len(_STATE) :].strip(" \t")


def _add_type(name: str, kind: str, page: ExpositionPage) -> None:
    if kind not in TYPES:
        raise ValueError(f"no type of metric {kind!r}")
    if page.types.setdefault(name, kind) != kind:
        raise ValueError(f"{name} is a {page.types[name]} already")


def _sample(row: str) -> ExpositionLine:
    match = _SAMPLE.fullmatch(row)
    if match is None:
        raise ValueError("neither a sample nor a comment")
    name, labels, number, time = match.groups()
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"not a number: {number[:40]!r}")
    if time is not None and len(time) > 15:
        raise ValueError("not a time in milliseconds")
    time_ms = None if time is None else int(time)
    return ExpositionLine(name, tuple(sorted(_labels(labels or ""))), float(number), time_ms)


def _labels(text: str) -> Iterator[tuple[str, str]]:
    position, names = 0, set()
    while text[position:].strip(" \t"):
        match = _LABEL.match(text, position)
        if match is None:
            raise ValueError('labels are not name="value", with commas between them')
        name, value, _ = match.groups()
        if name in names or name.startswith("__"):
            raise ValueError(f"label {name} {'twice' if name in names else 'is reserved'}")
        names.add(name)
        yield name, _unescaped(value)
        position = match.end()


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


def escaped(text: str) -> str:
    """A label's value as it stands between quotes."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _add(line: ExpositionLine, page: ExpositionPage, keys: set[_Key], own: bool) -> None:
    key = (line.name, line.labels, line.time_ms if own else None)
    if key in keys:
        raise ValueError("this series stands there twice")
    if line.name.startswith(OWN_PREFIX) and not own:
        raise ValueError(f"names with {OWN_PREFIX} are raydiag's own")
    if line.time_ms is not None and line.name.startswith("hw_") and not own:
        raise ValueError("a timestamp on a hw_ metric, which says what is true now")
    if len(keys) >= MOST_SAMPLES:
        raise ValueError(f"more than {MOST_SAMPLES} samples")
    keys.add(key)
    page.lines.append(line)


def _agree(page: ExpositionPage) -> None:
    """One metric, one set of label names. Raises ParseError.

    A metric whose samples differ in their labels is two metrics: sums over it count both.
    """
    names: dict[str, tuple[str, ...]] = {}
    for line in page.lines:
        own = tuple(name for name, _ in line.labels)
        if names.setdefault(line.name, own) != own:
            raise ParseError(f"{line.name} has labels {list(names[line.name])} and {list(own)}")
