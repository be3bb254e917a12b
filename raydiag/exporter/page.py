"""The page of metrics: which series there are, and their text.

A plugin's samples replace those that it gave before for the same source, and are gone when they
have not been replaced for two intervals. A series belongs to who gave it first, and a metric keeps
its type: what breaks either is refused, with the reason, for the caller to count. What a foreign
plugin got because another's run was late goes back: to raydiag's own, which have the first claim
to theirs, or to the foreign one that gave it first.

prometheus_client's own rendering takes a fifth of what a whole cycle may cost, and it renames
counters whose names do not end in _total, as some shell plugins have them. Its parser reads every
page in the tests.

Source: Prometheus, text-based exposition format, version 0.0.4
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Optional

from raydiag.exporter.metrics import OWN_PREFIX, REGISTRY, Metric, Sample, metric_of
from raydiag.exposition import escaped

OWN = "raydiag"  # the plugin whose samples are of the exporter itself
Declared = Mapping[str, Metric]
_NONE: Declared = {}
# Less than two: the cycle in which the second interval ends does not come to the millisecond.
_LIFE_INTERVALS = 1.5
_MOST_REMEMBERED = 20_000  # beginnings of lines, and metrics; many more than a node has
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_BEYOND_FLOAT = 1 << 1023
_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}

_Source = tuple[str, str]  # plugin, source


class Text(NamedTuple):
    """A page in two parts: the lines about the exporter are true also when the others are old."""

    own: bytes
    plugin_lines: bytes


class _Refused(Exception):
    """Why a sample is not taken."""


class _Block(NamedTuple):
    given_s: float  # monotonic
    shape: Sequence[tuple[str, Mapping[str, str]]]  # name and labels of each sample as it came
    series: Mapping[str, str]  # line up to the value, and metric, of each that was taken
    values: Sequence[str]  # in the order of `series`
    is_foreign: bool


class MetricsPage:
    """The series of one host."""

    def __init__(self, host: str, interval_s: float) -> None:
        self.host = host
        self.interval_s = interval_s
        self._blocks: dict[_Source, _Block] = {}
        self._owners: dict[str, _Source] = {}  # by line up to the value
        self._first_owners: dict[str, _Source] = {}  # foreign ones, by line up to the value
        self._metrics: dict[str, Metric] = {}  # whose type is kept
        self._beginnings: dict[object, str] = {}  # line up to the value, by name and labels

    def put(
        self,
        plugin: str,
        source: str,
        items: Iterable[Sample],
        now_s: float,
        declared: Declared = _NONE,
    ) -> list[str]:
        """Replace the series of a plugin's source; returns why samples were refused, one by one.

        `now_s` is monotonic. `declared` has the metrics of a foreign plugin by name of the sample:
        that of a histogram's metric lacks its _bucket. What it lacks has to be a metric of ours.
        """
        me, samples, is_foreign = (plugin, source), list(items), bool(declared)
        shape = [(sample.name, sample.labels) for sample in samples]
        before = self._remove(me)
        refused: list[str] = []
        series: dict[str, str] = {}
        values: list[str] = []
        owners = self._owners
        if before and not is_foreign and before.shape == shape and len(shape) == len(before.values):
            # As in nearly every cycle, only the values are new.
            with suppress(_Refused):
                values = [_value(sample) for sample in samples]
                owners.update(dict.fromkeys(before.series, me))
                self._blocks[me] = before._replace(given_s=now_s, values=values)
                return refused
        for sample in samples:
            try:
                metric = declared.get(sample.name) or metric_of(sample.name)
                if metric is None:
                    raise _Refused(f"{str(sample.name)[:80]}: not a metric of ours")
                beginning = self._beginning(sample, metric, is_foreign)
                if beginning in series:
                    raise _Refused(f"{beginning.strip()}: comes twice")
                owner = owners.get(beginning)
                if owner and not self._may_take(beginning, owner, me, is_foreign):
                    raise _Refused(f"{beginning.strip()}: is a series of {owner[0]}")
                value = _value(sample)
                series[beginning] = self._kept(metric, is_foreign)
                if owner:
                    self._take_away(owner, line=beginning)
                values.append(value)
            except _Refused as refusal:
                refused.append(str(refusal))
        owners.update(dict.fromkeys(series, me))
        self._blocks[me] = _Block(now_s, shape, series, values, is_foreign)
        if is_foreign:
            for beginning in series:
                self._first_owners.setdefault(beginning, me)
            if len(self._first_owners) > _MOST_REMEMBERED:
                self._first_owners = dict.fromkeys(series, me)
        return refused

    def drop(self, plugin: str, is_gone: bool = True) -> None:
        """Remove the series of a plugin, of all its sources, and free what only it has.

        Unless it `is_gone` they are still its own, whichever foreign plugin has them meanwhile.
        """
        for one in [key for key in self._blocks if key[0] == plugin]:
            self._remove(one)
        if is_gone:
            owners = self._first_owners.items()
            self._first_owners = {line: owner for line, owner in owners if owner[0] != plugin}
        self._free()

    def series(self, plugin: str) -> int:
        """How many series of the plugin are on the page."""
        return sum(len(block.series) for one, block in self._blocks.items() if one[0] == plugin)

    def render(self, now_s: float) -> Text:
        """The text of all series; those that are too old at `now_s` are removed before."""
        life_s = _LIFE_INTERVALS * self.interval_s
        for one in [key for key, b in self._blocks.items() if now_s - b.given_s > life_s]:
            self._remove(one)
        texts: dict[str, list[str]] = {}
        for block in self._blocks.values():
            for (beginning, name), value in zip(block.series.items(), block.values):
                texts.setdefault(name, []).append(f"{beginning}{value}\n")
        own_lines: list[str] = []
        plugin_lines: list[str] = []
        for name in sorted(texts):
            part = own_lines if name.startswith(OWN_PREFIX) else plugin_lines
            part.append(header(self._metrics[name]))
            part += texts[name]
        return Text("".join(own_lines).encode(), "".join(plugin_lines).encode())

    def _remove(self, key: _Source) -> Optional[_Block]:
        block = self._blocks.pop(key, None)
        for beginning in block.series if block else ():
            del self._owners[beginning]
        return block

    def _may_take(self, line: str, owner: _Source, me: _Source, is_foreign: bool) -> bool:
        """Whether a series that another source has now is rather ours."""
        has_claim = not is_foreign or self._first_owners.get(line) == me
        return has_claim and self._blocks[owner].is_foreign

    def _take_away(self, key: _Source, line: str = "", metric: str = "") -> None:
        """Remove the series of a source that has this line up to its value, or all of a metric."""
        block = self._blocks[key]
        series, values = {}, []
        for (beginning, name), value in zip(block.series.items(), block.values):
            if line == beginning or metric == name:
                self._owners.pop(beginning, None)
            else:
                series[beginning] = name
                values.append(value)
        self._blocks[key] = block._replace(series=series, values=values)

    def _free(self) -> None:
        """Forget types of metrics that nobody has, and beginnings of lines."""
        held: set[str] = set()
        for block in self._blocks.values():
            held.update(block.series.values())
        self._metrics = {name: one for name, one in self._metrics.items() if name in held}
        self._beginnings.clear()

    def _kept(self, metric: Metric, is_foreign: bool) -> str:
        """The metric's name, if its type is that which it has had, or ours. Raises _Refused."""
        if len(self._metrics) > _MOST_REMEMBERED:
            self._free()
        first_metric = self._metrics.setdefault(metric.name, metric)
        if first_metric.type != metric.type:
            if is_foreign or REGISTRY.get(metric.name) is not metric:
                raise _Refused(f"{metric.name}: is a {first_metric.type}, and not a {metric.type}")
            for one in [key for key, block in self._blocks.items() if block.is_foreign]:
                self._take_away(one, metric=metric.name)
            self._metrics[metric.name] = metric
        return metric.name

    def _beginning(self, sample: Sample, metric: Metric, foreign: bool) -> str:
        """The sample's line up to its value, "host" added. Raises _Refused."""
        try:
            key = sample.name, *sample.labels.items()
            remembered = self._beginnings.get(key)
        except (AttributeError, TypeError):
            raise _Refused(f"{metric.name}: malformed labels") from None
        if remembered is not None:
            return remembered
        labels = {"host": self.host, **sample.labels}
        if foreign and metric.name.startswith(OWN_PREFIX):
            raise _Refused(f"{metric.name}: names that begin so are the exporter's")
        if not foreign and set(labels) != set(metric.labels):
            raise _Refused(f"{metric.name}: has the labels {', '.join(metric.labels)}")
        if len(self._beginnings) > _MOST_REMEMBERED:
            self._beginnings.clear()
        self._beginnings[key] = beginning = _begin(sample.name, labels)
        return beginning


def header(metric: Metric) -> str:
    """The lines above a metric's samples."""
    text = f"# TYPE {metric.name} {metric.type}\n"
    if metric.help:
        return f"# HELP {metric.name} {metric.help.translate(_HELP_ESCAPES)}\n{text}"
    return text


def _begin(name: str, labels: Mapping[str, str]) -> str:
    if not _NAME.fullmatch(name):
        raise _Refused(f"{name[:80]!r}: not a name of a metric")
    parts = []
    for label, value in sorted(labels.items()):
        if not _LABEL.fullmatch(label) or not isinstance(value, str) or not _is_text(value):
            raise _Refused(f"{name}: malformed label {label[:80]!r}")
        parts.append(f'{label}="{escaped(value)}"')
    return f"{name}{{{','.join(parts)}}} "


def _is_text(value: str) -> bool:
    """Whether it can be encoded: a lone half of a character cannot."""
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def _value(sample: Sample) -> str:
    """The value, and the time if there is one. Raises _Refused."""
    value, timestamp_ms = sample.value, sample.timestamp_ms
    if type(value) is int and -_BEYOND_FLOAT < value < _BEYOND_FLOAT:
        text = str(value)
    elif type(value) is float:
        text = _SPECIAL.get(repr(value)) or repr(value)
    else:
        raise _Refused(f"{sample.name}: not a number: {str(value)[:80]!r}")
    if timestamp_ms is None:
        return text
    if type(timestamp_ms) is not int or not 0 <= timestamp_ms < 1 << 62:
        raise _Refused(f"{sample.name}: not a time in milliseconds: {str(timestamp_ms)[:80]!r}")
    return f"{text} {timestamp_ms}"
