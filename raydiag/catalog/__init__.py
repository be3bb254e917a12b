"""KNOW: what can go wrong and how it shows, as YAML tables, and the strict loader that checks them.

`failures.yaml` is the only vocabulary of failure classes; `kernel_events.yaml` maps lines of the
kernel log to them, with what NVIDIA's error numbers mean from `nvidia_codes.yaml`. A table with a
mistake is refused as a whole: CatalogError names file and row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from itertools import product
from types import MappingProxyType
from typing import Optional

from raydiag.catalog.failure_classes import (
    Cascade,
    FailureClass,
    FailureTable,
    parse_failures,
)
from raydiag.catalog.rows import FAMILIES, CatalogRow, loaded, rows
from raydiag.errors import CatalogError
from raydiag.model import Severity

_FAILURES, _KERNEL_EVENTS = "failures.yaml", "kernel_events.yaml"
_NVIDIA_CODES = "nvidia_codes.yaml"
_ANCHOR_LENGTH = 4  # of what many words share; shorter is in every line
_MESSAGES = 4096  # different messages whose row is remembered; logs repeat themselves


@dataclass(frozen=True)
class KernelEvent:
    """One row of the kernel-event table. The first row that matches a line names its event."""

    event: str  # class id of the kernel-log family, e.g. "amdgpu-ras-ue"
    pattern: re.Pattern[str]  # searched in the message; groups as in `GROUPS`
    words: tuple[str, ...]  # lower case; a line without any cannot match; "a&b": both in the line
    severity: Severity
    finding: str  # failure class that the event is evidence of
    finding_by_block: Mapping[str, str]  # the same, for some values of the group `block`
    recovers: tuple[str, ...]  # events that this line ends; empty unless it tells of a recovery
    part_of: tuple[str, ...]  # events that it belongs to where one is near
    trace: bool  # a stack trace may follow that belongs to it
    lasting: bool  # what it tells of outlives the message, until a reset or a reboot
    clears: bool  # a recovery that leaves nothing behind
    boot_grace: bool  # normal while the node comes up
    expires_s: Optional[int]  # s after which it is history if it does not come back; None: never
    many: Optional[int]  # so many make a remark a warning
    also: tuple[str, ...]  # other events that the line is as much about
    codes: str  # family of error numbers that the group `code` is of; empty: none
    examples: tuple[str, ...]
    near_misses: tuple[str, ...]
    source: str

    def finding_for(self, block: str | None) -> str:
        """Failure class for an event in that hardware block."""
        return self.finding_by_block.get((block or "").lower(), self.finding)


@dataclass(frozen=True)
class NvidiaCode:
    """What one of NVIDIA's error numbers means."""

    name: str  # e.g. "Xid 79"
    title: str
    severity: Optional[Severity]  # None: the line itself says how grave it is
    finding: str  # failure class; empty: that of the event
    also: tuple[str, ...]
    next_step: str


# Named groups that the judges understand; a pattern with another one is refused.
def failures() -> Mapping[str, FailureClass]:
    """Every failure class by id."""
    return _failures().classes


def failure(class_id: str) -> FailureClass:
    """One failure class. Raises KeyError for an id that does not exist."""
    return failures()[class_id]


def more_specific() -> tuple[tuple[str, str], ...]:
    """Pairs of classes: of one device at one time the first says more than the second."""
    return tuple(
        (entry.id, general) for entry in failures().values() for general in entry.more_specific_than
    )


def log_priority() -> tuple[str, ...]:
    """Classes of job logs: of several errors on one line the first one here counts."""
    return _failures().log_priority


def cascades() -> tuple[Cascade, ...]:
    """What fails first in a log, and what follows from it."""
    return _failures().cascades


def kernel_events() -> tuple[KernelEvent, ...]:
    """The kernel-event table in its own order."""
    return _kernel_table().events


def kernel_words() -> tuple[str, ...]:
    """Lower-case words; only a kernel line that holds one of them is worth carrying home."""
    return _kernel_table().words


def kernel_quiet() -> tuple[str, ...]:
    """Phrases of lines that hold a word and mean nothing; nodes keep them back."""
    return _kernel_table().quiet


def driver_fault_symbols() -> tuple[str, ...]:
    """Kernel functions whose sight in a log, stack or wait channel means: leave RAS files alone."""
    return _kernel_table().driver_fault_symbols


def nvidia_code(family: str, code: int) -> NvidiaCode | None:
    """What is known of an error number; None for an unknown one."""
    return _nvidia_codes().get((family, code))


@lru_cache(maxsize=_MESSAGES)
def kernel_event(message: str) -> tuple[KernelEvent, re.Match[str]] | None:
    """The first row that matches a kernel message, with its match; None for a line of no event."""
    lower = message.lower()
    table = _kernel_table()
    # Words are few against rows times words, and mostly one or two of them are there.
    places = {place for word, held in table.rows_of.items() if word in lower for place in held}
    for parts, held in table.rows_of_all.items():
        if all(part in lower for part in parts):
            places.update(held)
    for place in sorted(places):
        match = table.events[place].pattern.search(message)
        if match:
            return table.events[place], match
    return None


def related_events(event: str) -> frozenset[str]:
    """The event itself and those whose report it may share."""
    return _kernel_table().related.get(event, frozenset((event,)))


@dataclass(frozen=True)
class KernelTable:
    """The whole of `kernel_events.yaml`."""

    events: tuple[KernelEvent, ...]
    words: tuple[str, ...]
    driver_fault_symbols: tuple[str, ...]
    quiet: tuple[str, ...]
    rows_of: Mapping[str, tuple[int, ...]]  # word -> positions in `events`
    rows_of_all: Mapping[tuple[str, ...], tuple[int, ...]]  # the same for words with "&"
    related: Mapping[str, frozenset[str]]  # event -> itself and what shares reports with it


def parse_kernel_events(
    text: str, classes: Mapping[str, FailureClass], file: str = _KERNEL_EVENTS
) -> KernelTable:
    """The table in a YAML object. Raises CatalogError, also for a finding not in `classes`."""
    top = CatalogRow(loaded(text, file), file, file)
    symbols = top.texts("driver_fault_symbols")
    trace_words = top.texts("trace_words")
    quiet = top.texts("quiet")
    events = tuple(
        _kernel_event(row, classes, file) for row in rows(top.take("events"), file, "event")
    )
    top.end()
    known: dict[str, KernelEvent] = {}
    for row in events:
        first = known.setdefault(row.event, row)
        if (first.finding, first.finding_by_block) != (row.finding, row.finding_by_block):
            raise CatalogError(f"{file}: {row.event}: rows of one event must agree on the finding")
    for row in events:
        for other in (*row.recovers, *row.part_of, *row.also):
            if other not in known:
                raise CatalogError(f"{file}: {row.event}: no row has the event {other!r}")
    rows_of: dict[str, tuple[int, ...]] = {}
    rows_of_all: dict[tuple[str, ...], tuple[int, ...]] = {}
    related: dict[str, frozenset[str]] = {}
    for place, row in enumerate(events):
        for word in row.words:
            if "&" in word:
                parts = tuple(word.split("&"))
                rows_of_all[parts] = (*rows_of_all.get(parts, ()), place)
            else:
                rows_of[word] = (*rows_of.get(word, ()), place)
        for one, other in ((row.event, part) for part in (row.event, *row.part_of)):
            related[one] = related.get(one, frozenset()) | {other}
            related[other] = related.get(other, frozenset()) | {one}
    words = _anchored({*trace_words, *(word for row in events for word in row.words)})
    for phrase in quiet:
        if phrase != phrase.lower() or any(character.isdigit() for character in phrase):
            raise CatalogError(f"{file}: quiet: {phrase!r} must be in lower case, without digits")
        for row in events:
            if any(phrase in example.lower() for example in row.examples):
                raise CatalogError(f"{file}: quiet: {phrase!r} would hide {row.event}")
    return KernelTable(events, words, symbols, quiet, rows_of, rows_of_all, related)


def parse_nvidia_codes(
    text: str,
    classes: Mapping[str, FailureClass],
    events: Iterable[str],
    file: str = _NVIDIA_CODES,
) -> Mapping[tuple[str, int], NvidiaCode]:
    """Error numbers by family and number. Raises CatalogError."""
    data, known = loaded(text, file), set(events)
    if not isinstance(data, list) or not data:
        raise CatalogError(f"{file}: not a list of rows")
    table: dict[tuple[str, int], NvidiaCode] = {}
    for number, item in enumerate(data, 1):
        row = CatalogRow(item, file, f"row {number}")
        numbers = row.numbers("codes")
        title, next_step = row.text("title"), row.text("next_step")
        severity = row.severity() if "severity" in row.data else None
        finding = row.text("finding") if "finding" in row.data else ""
        also = row.texts("also", least=0)
        row.end()
        if finding:
            _require_class(finding, classes, f"{file}: row {number}")
        if not known.issuperset(also):
            raise row.error(f"no row has the event {also[0]!r}")
        for family, code in numbers:
            if (family, code) in table:
                raise row.error(f"{family} {code} is there twice")
            name = f"{FAMILIES[family]} {code}"
            table[family, code] = NvidiaCode(name, title, severity, finding, also, next_step)
    return MappingProxyType(table)


def _kernel_event(row: CatalogRow, classes: Mapping[str, FailureClass], file: str) -> KernelEvent:
    finding = row.text("finding") if "finding" in row.data else row.name
    by_block = row.mapping("finding_by_block")
    for target in (finding, *by_block.values()):
        _require_class(target, classes, f"{file}: {row.name}")
    entry = KernelEvent(
        event=row.name,
        pattern=row.pattern("pattern"),
        words=_expanded(row.texts("words")),
        severity=row.severity(),
        finding=finding,
        finding_by_block=by_block,
        recovers=row.texts("recovers", least=0),
        part_of=row.texts("part_of", least=0),
        trace=row.flag("trace"),
        lasting=row.flag("lasting"),
        clears=row.flag("clears"),
        boot_grace=row.flag("boot_grace"),
        expires_s=row.number("expires_s"),
        many=row.number("many"),
        also=row.texts("also", least=0),
        codes=row.family("codes"),
        examples=row.texts("examples"),
        near_misses=row.texts("near_misses"),
        source=row.text("source"),
    )
    row.end()
    if any(word != word.lower() for word in entry.words):
        raise row.error("words must be lower case")
    return entry


def _anchored(words: Iterable[str]) -> tuple[str, ...]:
    """The same words, each as `a&b` with an `a` that many share: few searches find all of them."""
    parts = {word: word.split("&") for word in words}
    held_by = {
        part: [word for word in parts if part in word]  # no part has a `&`
        for part in {part for own in parts.values() for part in own}
    }
    anchored: dict[str, str] = {}
    for part in sorted(held_by, key=lambda part: (-len(held_by[part]), part)):
        for word in held_by[part] if len(part) >= _ANCHOR_LENGTH else ():
            others = [other for other in parts[word] if other != part]
            anchored.setdefault(word, "&".join((part, *others)))
    return tuple(sorted(anchored.get(word, word) for word in parts))


def _expanded(words: Iterable[str]) -> tuple[str, ...]:
    """`a|b&c|d` as a&c, a&d, b&c, b&d; other words as they are."""
    choices = (product(*(part.split("|") for part in word.split("&"))) for word in words)
    return tuple(dict.fromkeys("&".join(chosen) for choice in choices for chosen in choice))


def _require_class(name: str, classes: Iterable[str], place: str) -> None:
    if name not in classes:
        raise CatalogError(f"{place}: no failure class {name!r}")


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")


@cache
def _failures() -> FailureTable:
    return parse_failures(_read(_FAILURES))


@cache
def _kernel_table() -> KernelTable:
    return parse_kernel_events(_read(_KERNEL_EVENTS), failures())


@cache
def _nvidia_codes() -> Mapping[tuple[str, int], NvidiaCode]:
    known = {row.event for row in kernel_events()}
    return parse_nvidia_codes(_read(_NVIDIA_CODES), failures(), known)
