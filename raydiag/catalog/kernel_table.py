"""What lines of the kernel log mean, and the numbers of NVIDIA's errors in them.

The strict loaders of `kernel_events.yaml` and `nvidia_codes.yaml`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any

from raydiag.catalog.rows import FAMILIES, CatalogRow, loaded, require_class, rows
from raydiag.errors import CatalogError
from raydiag.model import Severity

_LONGEST = 1024  # characters of a message: LOG_LINE_MAX of the kernel
_FILE = "kernel_events.yaml"
ERROR_LEVEL = 3  # of the kernel: KERN_ERR; 0 is an emergency
_EXPIRES_S = 3600
_INFO_LEVEL = 6
_NUMBER = "#"  # stands for any in `begins` and `failures`
_ANCHOR_LENGTH = 4  # of a part that many words share; shorter ones are in every line
_CODES_FILE = "nvidia_codes.yaml"


@dataclass(frozen=True, kw_only=True)
class KernelEvent:
    """One row of the kernel-event table. The first row that matches a line names its event."""

    event: str  # class id of the kernel-log family, e.g. "amdgpu-ras-ue"
    pattern: re.Pattern[str]  # searched in the message; groups as in `rows.GROUPS`
    words: tuple[str, ...]  # lower case; a line without any cannot match; "a&b": both in the line
    severity: Severity
    finding: str  # failure class that the event is evidence of
    finding_by_block: Mapping[str, str]  # the same, for some values of the group `block`
    recovers: tuple[str, ...] = ()  # events that this line ends; empty unless it reports a recovery
    part_of: tuple[str, ...] = ()  # events whose report it belongs to if there is one nearby
    trace: bool = False  # a stack trace may follow that belongs to it
    lasting: bool = False  # the fault outlives the message, until a reset or a reboot
    clears: bool = False  # a recovery that leaves nothing behind
    boot_grace: bool = False  # normal while the node boots
    expires_s: int | None = None  # s after which it is history if it does not recur; None: never
    many: int | None = None  # from this number on a warning instead of a note
    also: tuple[str, ...] = ()  # further events of the line
    finer: bool = False  # its words may name a finer class: a kind of the driver's
    codes: str  # family of error numbers that the group `code` belongs to; empty: none
    examples: tuple[str, ...]
    near_misses: tuple[str, ...]
    source: str
    by_words: bool = False  # no row knows the form: a driver's line with words of failure
    unclassified: bool = False  # nor do its words say what failed
    meaning: str = ""  # what failed, where that says more than the class

    def finding_for(self, block: str | None) -> str:
        """Failure class for an event in that hardware block."""
        return self.finding_by_block.get((block or "").lower(), self.finding)


@dataclass(frozen=True)
class Driver:
    """A family of drivers: how its lines begin, and what its failures are if no row knows them."""

    begins: re.Pattern[str]  # in lower case
    words: tuple[str, ...]  # the same, as in the file
    general: KernelEvent
    kinds: tuple[tuple[re.Pattern[str], KernelEvent], ...]  # of what failed, by words of the line

    @property
    def events(self) -> Iterator[KernelEvent]:
        """All that its lines may be."""
        return chain([self.general], map(itemgetter(1), self.kinds))

    def kind(self, lower: str, beginning: re.Match[str]) -> KernelEvent:
        """What failed, by the words of the line in lower case behind the driver's own name."""
        message = lower[beginning.end() :]
        if not beginning[0].endswith(": "):
            message = message.partition(": ")[2] or message
        for words, event in self.kinds:
            if words.search(message):
                return event
        return self.general


@dataclass(frozen=True)
class KernelTable:
    """The whole of `kernel_events.yaml`."""

    events: tuple[KernelEvent, ...]
    words: tuple[str, ...]  # for the filter on the nodes
    driver_fault_symbols: tuple[str, ...]
    quiet: tuple[str, ...]
    harmless: tuple[str, ...]  # lower case; of errors that mean nothing
    drivers: tuple[Driver, ...]
    failure: re.Pattern[str]  # finds a word of failure, in lower case
    failures: tuple[str, ...]  # parts of those words, any of which is in each of them
    rows_of: Mapping[tuple[str, ...], Sequence[int]]  # parts of a word -> positions in `events`
    related: Mapping[str, frozenset[str]]  # event -> itself and those that share reports with it

    def match(self, message: str, level: int = -1) -> tuple[KernelEvent, re.Match[str]] | None:
        """The first row that matches, with its match; else the driver that tells a failure."""
        message = message[:_LONGEST]
        lower = message.lower()
        # There are far fewer words than rows, and most lines contain one or two of them.
        positions: set[int] = set()
        for parts, holders in self.rows_of.items():
            if all(part in lower for part in parts):
                positions.update(holders)
        for position in sorted(positions):
            match = self.events[position].pattern.search(message)
            if match:
                return self._finer(self.events[position], lower), match
        beginning, kind = self._of_driver(lower)
        if beginning and self._tells_failure(lower, level):
            return kind, beginning
        return None

    def _of_driver(self, lower: str) -> tuple[re.Match[str] | None, KernelEvent]:
        """How the line begins, and what failed, by the driver that wrote it."""
        for driver in self.drivers:
            beginning = driver.begins.match(lower)
            if beginning:
                return beginning, driver.kind(lower, beginning)
        return None, self.events[0]

    def _finer(self, row: KernelEvent, lower: str) -> KernelEvent:
        """The row with the class of the driver that wrote the line, and of what failed."""
        beginning, kind = self._of_driver(lower) if row.finer else (None, row)
        if not beginning or (kind.unclassified and kind.event == row.event):
            return row
        return replace(
            row,
            event=kind.event,
            finding=kind.finding,
            finding_by_block=kind.finding_by_block,
            part_of=kind.part_of,
            also=kind.also,
            meaning=kind.meaning,
        )

    def _tells_failure(self, lower: str, level: int) -> bool:
        """Whether a driver's line does, by its level if that is known, else by its words."""
        if level >= _INFO_LEVEL or any(phrase in lower for phrase in self.harmless):
            return False
        return 0 <= level <= ERROR_LEVEL or self.failure.search(lower) is not None

    @property
    def driver_names(self) -> tuple[str, ...]:
        """What drivers' lines begin with, lower case, up to a number."""
        begins = chain.from_iterable(driver.words for driver in self.drivers)
        return tuple(dict.fromkeys(begin.partition(_NUMBER)[0] for begin in begins))

    def filter_options(self) -> dict[str, Any]:
        """What a filter is told that cannot go by the level of a line."""
        return {"words": self.words, "drivers": self.driver_names, "failures": self.failures}


def parse_kernel_events(text: str, classes: Iterable[str], file: str = _FILE) -> KernelTable:
    """The table in a YAML object. Raises CatalogError, also for a finding not in `classes`."""
    top = CatalogRow(loaded(text, file), file, file)
    symbols = top.texts("driver_fault_symbols")
    trace_words = top.texts("trace_words")
    quiet, harmless = top.texts("quiet"), top.texts("harmless")
    driver_rows = rows(top.take("drivers"), file, "event")
    events = tuple(_kernel_event(row, classes) for row in rows(top.take("events"), file, "event"))
    drivers, failures = tuple(_driver(row, events) for row in driver_rows), top.texts("failures")
    top.end()
    of_drivers = tuple(chain.from_iterable(map(attrgetter("events"), drivers)))
    _check_references((*events, *of_drivers), file)
    _check_quiet_phrases(quiet, events, file)
    return KernelTable(
        events=events,
        words=_for_the_nodes(chain(trace_words, *map(attrgetter("words"), events))),
        driver_fault_symbols=symbols,
        quiet=quiet,
        harmless=harmless,
        drivers=drivers,
        failure=re.compile(_words_pattern(failures)),
        failures=tuple(word.strip("*").replace(_NUMBER, "") for word in failures),
        rows_of=_rows_by_word(events),
        related=_related((*events, *of_drivers)),
    )


def _driver(row: CatalogRow, events: Sequence[KernelEvent]) -> Driver:
    begins = row.texts("begins")
    known = {entry.event: entry for entry in reversed(events)}
    part_of = row.texts("part_of", 0)
    general = _by_words(row, known, row.name, part_of)
    kinds = rows(row.take("kinds"), row.file, "meaning") if "kinds" in row.data else ()
    driver = Driver(
        begins=re.compile("|".join(map(_spelt, begins))),
        words=begins,
        general=replace(general, unclassified=True, words=begins),
        kinds=tuple(_kind(kind, known, general) for kind in kinds),
    )
    row.end()
    return driver


def _kind(
    row: CatalogRow, known: Mapping[str, KernelEvent], general: KernelEvent
) -> tuple[re.Pattern[str], KernelEvent]:
    words = re.compile(_words_pattern(row.texts("words")))
    event = row.text("event", general.event)
    beside = (*general.part_of, general.event)
    part_of = tuple(filter(event.__ne__, beside)) if event != general.event else general.part_of
    kind = _by_words(row, known, event, part_of)
    kind = replace(kind, meaning=row.name, also=row.texts("also", 0))
    row.end()
    return words, kind


def _by_words(
    row: CatalogRow, known: Mapping[str, KernelEvent], event: str, part_of: tuple[str, ...]
) -> KernelEvent:
    """The event of a driver's failures that no row knows."""
    if event not in known:
        raise row.error(f"no row has the event {event!r}")
    return KernelEvent(
        event=event,
        pattern=re.compile(""),
        words=(),
        severity=Severity.WARNING,
        finding=known[event].finding,
        finding_by_block=known[event].finding_by_block,
        codes="",
        examples=(),
        near_misses=(),
        source="",
        part_of=part_of,
        boot_grace=True,
        expires_s=_EXPIRES_S,
        by_words=True,
    )


def _spelt(text: str) -> str:
    """A pattern for the text, in which `#` is a number."""
    return re.escape(text).replace(re.escape(_NUMBER), r"\d+")


def _words_pattern(words: Iterable[str]) -> str:
    """A pattern for whole words, and for beginnings or ends of some.

    Those with like edges stand together: an edge is looked for once and not for each word.
    """
    by_edges: dict[tuple[str, str], list[str]] = {}
    for word in words:
        before = "" if word.startswith("*") or not word[0].isalpha() else "(?<![a-z])"
        after = "" if word.endswith(("*", _NUMBER)) else "(?![a-z])"
        by_edges.setdefault((before, after), []).append(_spelt(word.strip("*")))
    groups = map("(?:{})".format, map("|".join, by_edges.values()))
    return "|".join(map(str.join, groups, by_edges))


def _kernel_event(row: CatalogRow, classes: Iterable[str]) -> KernelEvent:
    finding = row.text("finding", row.name)
    by_block = row.mapping("finding_by_block")
    for target in (finding, *by_block.values()):
        require_class(target, classes, f"{row.file}: {row.name}")
    entry = row.rest(
        KernelEvent,
        event=row.name,
        pattern=row.pattern("pattern"),
        words=tuple(dict.fromkeys(_spelt_out(row.texts("words")))),
        severity=row.severity(),
        finding=finding,
        finding_by_block=by_block,
        codes=row.choice("codes", tuple(FAMILIES), ""),
    )
    if any(word != word.lower() for word in entry.words):
        raise row.error("words must be lower case")
    return entry


def _spelt_out(words: Iterable[str]) -> Iterator[str]:
    """`a|b&c|d` as a&c, a&d, b&c, b&d; other words as they are."""
    for word in words:
        alternatives = [part.split("|") for part in word.split("&")]
        yield from map("&".join, product(*alternatives))


def _check_references(events: Sequence[KernelEvent], file: str) -> None:
    first_rows: dict[str, KernelEvent] = {}
    for row in events:
        first = first_rows.setdefault(row.event, row)
        if (first.finding, first.finding_by_block) != (row.finding, row.finding_by_block):
            raise CatalogError(f"{file}: {row.event}: rows of one event must agree on the finding")
    for row in events:
        for event in (*row.recovers, *row.part_of, *row.also):
            if event not in first_rows:
                raise CatalogError(f"{file}: {row.event}: no row has the event {event!r}")


def _check_quiet_phrases(phrases: Sequence[str], events: Sequence[KernelEvent], file: str) -> None:
    for phrase in phrases:
        if phrase != phrase.lower() or any(character.isdigit() for character in phrase):
            raise CatalogError(f"{file}: quiet: {phrase!r} must be in lower case, without digits")
        for row in events:
            if any(phrase in example.lower() for example in row.examples):
                raise CatalogError(f"{file}: quiet: {phrase!r} would hide {row.event}")


def _rows_by_word(events: Sequence[KernelEvent]) -> Mapping[tuple[str, ...], Sequence[int]]:
    positions: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, row in enumerate(events):
        for word in row.words:
            positions[tuple(word.split("&"))].append(position)
    return dict(positions)


def _related(events: Sequence[KernelEvent]) -> Mapping[str, frozenset[str]]:
    related: dict[str, set[str]] = defaultdict(set)
    for row in events:
        for event in (row.event, *row.part_of):
            related[row.event].add(event)
            related[event].add(row.event)
    return {event: frozenset(events_beside) for event, events_beside in related.items()}


def _for_the_nodes(words: Iterable[str]) -> tuple[str, ...]:
    """The fewest words that find the same lines, in few bytes: `a&b|c` is `a&b` and `a&c`.

    Each begins with a part that many share: few searches find all of them.
    """
    needed = _without_implied({word: frozenset(word.split("&")) for word in words})
    beside: dict[str, list[str]] = defaultdict(list)
    for word in _anchored(needed):
        first, *others = word.split("&")
        if len(others) == 1:
            beside[first] += others
    whole = (word for word in _anchored(needed) if word.count("&") != 1)
    joined = (f"{first}&{'|'.join(others)}" for first, others in beside.items())
    return tuple(sorted(chain(whole, joined)))


def _without_implied(parts_of: Mapping[str, frozenset[str]]) -> list[str]:
    """Those words that find a line which no shorter word finds."""
    needed: dict[str, frozenset[str]] = {}
    for word, parts in sorted(parts_of.items(), key=lambda item: len(item[0])):
        line = "\n".join(parts)  # no part has a line break
        if not any(_holds(line, fewer) for fewer in needed.values()):
            needed[word] = parts
    return list(needed)


def _holds(line: str, parts: Iterable[str]) -> bool:
    return all(map(line.__contains__, parts))


def _anchored(words: Iterable[str]) -> tuple[str, ...]:
    """The same words, each as `a&b` with an `a` that many share."""
    parts_of = {word: word.split("&") for word in words}
    words_with: dict[str, list[str]] = {}
    for part in set().union(*parts_of.values()):
        words_with[part] = [word for word in parts_of if part in word]  # no part has a `&`
    anchored: dict[str, str] = {}
    for part in sorted(words_with, key=lambda part: (-len(words_with[part]), part)):
        if len(part) < _ANCHOR_LENGTH:
            continue
        for word in words_with[part]:
            others = filter(part.__ne__, parts_of[word])
            anchored.setdefault(word, "&".join((part, *others)))
    return tuple(sorted(anchored.get(word, word) for word in parts_of))


@dataclass(frozen=True)
class NvidiaCode:
    """What one of NVIDIA's error numbers means."""

    name: str  # e.g. "Xid 79"
    title: str
    next_step: str
    severity: Severity | None  # None: the line itself states it
    finding: str = ""  # failure class; empty: that of the event
    also: tuple[str, ...] = ()


def parse_nvidia_codes(
    text: str, classes: Iterable[str], events: Iterable[str], file: str = _CODES_FILE
) -> Mapping[tuple[str, int], NvidiaCode]:
    """Error numbers by family and number. Raises CatalogError."""
    data, known_events = loaded(text, file), frozenset(events)
    if not isinstance(data, list) or not data:
        raise CatalogError(f"{file}: not a list of rows")
    table: dict[tuple[str, int], NvidiaCode] = {}
    for number, fields in enumerate(data, 1):
        row = CatalogRow(fields, file, f"row {number}")
        numbers, entry = row.numbers("codes"), _entry(row, classes, known_events)
        for family, code in numbers:
            if (family, code) in table:
                raise row.error(f"{family} {code} is there twice")
            table[family, code] = replace(entry, name=f"{FAMILIES[family]} {code}")
    return MappingProxyType(table)


def _entry(row: CatalogRow, classes: Iterable[str], events: frozenset[str]) -> NvidiaCode:
    """What the row says of each of its numbers."""
    severity = row.severity() if "severity" in row.data else None
    entry = row.rest(NvidiaCode, name="", severity=severity)
    if entry.finding:
        require_class(entry.finding, classes, f"{row.file}: {row.name}")
    if not events.issuperset(entry.also):
        raise row.error(f"no row has the event {entry.also[0]!r}")
    return entry
