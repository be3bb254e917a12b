"""Everything that the tables say of one id: a failure class, a kernel event, an Xid or SXid."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from raydiag import catalog
from raydiag.catalog import signatures
from raydiag.catalog.failure_classes import FailureClass
from raydiag.catalog.kernel_table import KernelEvent, NvidiaCode
from raydiag.errors import UsageError
from raydiag.model import Severity

CLASS, KERNEL_EVENT, XID, SXID = "class", "kernel-event", "xid", "sxid"
_CODE = re.compile(r"(?:(?P<family>s?xid)[\s:#-]*)?(?P<number>\d{1,9})", re.IGNORECASE)
_FORMS = {
    XID: "NVRM: Xid (PCI:0000:1b:00): {}, ...",
    SXID: "nvidia-nvswitch0: SXid (PCI:0000:1b:00.0): {}, ...",
}


class ExampleLine(NamedTuple):
    """A line that shows it, and where lines of that form come from."""

    text: str
    source: str


@dataclass(frozen=True)
class CatalogEntry:
    """One id, what it stands for, and where that is known from."""

    id: str  # as the tables have it: "gpu-memory-error", "Xid 79"
    kind: str  # CLASS, KERNEL_EVENT, XID or SXID
    title: str
    severity: Severity | None  # None: the line itself states it
    failure_class: FailureClass  # of findings about it; itself, where it is a class
    evidence_of: Sequence[str]  # classes that a line of it may be evidence of; itself, for a class
    next_steps: Sequence[str]
    log_lines: Sequence[ExampleLine]  # of a job's log
    kernel_lines: Sequence[ExampleLine]
    sources: Sequence[str]

    @property
    def caused_by(self) -> list[FailureClass]:
        """Classes that it may follow from."""
        known = catalog.failures().values()
        return [entry for entry in known if self.failure_class.id in entry.can_cause]

    @property
    def can_cause(self) -> list[FailureClass]:
        """Classes that may follow from it."""
        return list(map(catalog.failure, self.failure_class.can_cause))


def entry_of(asked: str) -> CatalogEntry:
    """The entry of an id: `rccl-hang`, `xid79`, `SXid 12028`, or a number alone, which is an Xid's.

    Raises UsageError with the nearest id where there is none.
    """
    code = _CODE.fullmatch(asked.strip())
    if code:
        return _code(code["family"], int(code["number"]))
    name = asked.strip().lower().replace("_", "-").replace(" ", "-")
    if name in catalog.failures():
        return _failure_class(catalog.failure(name))
    if name in _events():
        return _kernel_event(name)
    near = difflib.get_close_matches(name, [*catalog.failures(), *_events()], n=1, cutoff=0.0)
    raise UsageError(f"no class {asked!r}; the nearest is {near[0]!r}")


def _events() -> set[str]:
    return set(map(attrgetter("event"), catalog.kernel_table().events))


def _failure_class(entry: FailureClass) -> CatalogEntry:
    log_lines = list(_log_lines(entry.id))
    kernel_lines = list(_kernel_lines({entry.id, *entry.also_reported_as}))
    return CatalogEntry(
        id=entry.id,
        kind=CLASS,
        title=entry.title,
        severity=entry.severity,
        failure_class=entry,
        evidence_of=[entry.id],
        next_steps=entry.next_steps,
        log_lines=log_lines,
        kernel_lines=kernel_lines,
        sources=_sources(entry.source, log_lines, kernel_lines),
    )


def _kernel_event(name: str) -> CatalogEntry:
    """An event that findings have another, more telling class for."""
    rows = list(_rows(event=name))
    lines = list(chain.from_iterable(map(_examples, rows)))
    evidence_of = list(_findings_of(rows))
    entry = catalog.failure(evidence_of[0])
    return CatalogEntry(
        id=name,
        kind=KERNEL_EVENT,
        title=f"Kernel event, evidence of {', '.join(evidence_of)}",
        severity=max(rows, key=lambda row: row.severity.rank).severity,
        failure_class=entry,
        evidence_of=evidence_of,
        next_steps=entry.next_steps,
        log_lines=[],
        kernel_lines=lines,
        sources=_sources("", lines),
    )


def _code(family: str | None, number: int) -> CatalogEntry:
    families = [family.lower()] if family else [XID, SXID]
    for name in families:
        code = catalog.nvidia_code(name, number)
        if code:
            return _nvidia_code(name, number, code)
    known = sorted(catalog.nvidia_numbers(families[0]), key=lambda other: abs(other - number))
    title = "Xid" if families[0] == XID else "SXid"
    raise UsageError(f"no {title} {number} is known; the nearest is {title} {known[0]}")


def _nvidia_code(family: str, number: int, code: NvidiaCode) -> CatalogEntry:
    entry = catalog.failure(code.finding or f"nvidia-{family}")
    rows = list(_rows(codes=family))
    examples = chain.from_iterable(map(_examples, rows))
    shown = [line for line in examples if _number_in(rows, line.text) == number]
    form = ExampleLine(_FORMS[family].format(number), rows[0].source)
    return CatalogEntry(
        id=code.name,
        kind=family,
        title=f"{code.title[0].upper()}{code.title[1:]}",
        severity=code.severity,
        failure_class=entry,
        evidence_of=[entry.id],
        next_steps=list(dict.fromkeys([code.next_step, *entry.next_steps])),
        log_lines=[],
        kernel_lines=shown or [form],
        sources=_sources(entry.source, rows),
    )


def _number_in(rows: Sequence[KernelEvent], text: str) -> int:
    """Xid or SXid of the line; -1 without one."""
    matches = filter(None, (row.pattern.search(text) for row in rows))
    codes = (match.groupdict().get("code") for match in matches)
    return int(next(filter(None, codes), -1))


def _rows(event: str = "", codes: str = "") -> Iterator[KernelEvent]:
    """Rows of an event, or those that carry numbers of a family."""
    for row in catalog.kernel_table().events:
        if row.event == event or (codes and row.codes == codes):
            yield row


def _examples(row: KernelEvent) -> Iterator[ExampleLine]:
    for text in row.examples:
        yield ExampleLine(text, row.source)


def _findings_of(rows: Sequence[KernelEvent]) -> dict[str, None]:
    """Classes that lines of these rows are evidence of, the general ones first."""
    findings = dict.fromkeys(map(attrgetter("finding"), rows))
    for row in rows:
        findings.update(dict.fromkeys(row.finding_by_block.values()))
    return findings


def _log_lines(failure_class: str) -> Iterator[ExampleLine]:
    """Lines of a job's log that are evidence of the class."""
    for row in signatures.table().rows:
        if row.failure_class == failure_class:
            for text in row.examples:
                yield ExampleLine(text, row.source)


def _kernel_lines(failure_classes: set[str]) -> Iterator[ExampleLine]:
    """Kernel lines that are of one of the classes, or evidence of it."""
    for row in catalog.kernel_table().events:
        for line in _examples(row):
            match = row.pattern.search(line.text)
            block = match.groupdict().get("block") if match else None
            if failure_classes & {row.event, row.finding_for(block)}:
                yield line


def _sources(first: str, *lines: Iterable[ExampleLine | KernelEvent]) -> list[str]:
    """Each source once."""
    others = map(attrgetter("source"), chain.from_iterable(lines))
    return list(filter(None, dict.fromkeys([first, *others])))
