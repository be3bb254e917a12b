"""What the catalog says of one id as a report, and as JSON; `raydiag/schemas/explain.json`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from raydiag.catalog.entries import CatalogEntry, ExampleLine
from raydiag.catalog.failure_classes import FailureClass
from raydiag.model import Coverage, Diagnosis
from raydiag.render import document
from raydiag.render.formats import count
from raydiag.render.report import (
    Bullets,
    Paragraph,
    Quote,
    Report,
    Section,
    Steps,
    bullets,
    severity_label,
)

_SHOWN = 5  # of the lines and classes, unless all are asked for


def explain_report(entry: CatalogEntry, verbose: bool) -> Report:
    """What it is, what causes it, what it causes, what to do, how it shows, who says so."""
    label = severity_label(entry.severity) if entry.severity else None
    words = Paragraph(entry.failure_class.explanation)
    most = None if verbose else _SHOWN
    return Report(
        [
            Section(title=entry.id, label=label, facts=[entry.title], blocks=[words]),
            Section("What causes it", [_classes(entry.caused_by, most)]),
            Section("What it can cause", [_classes(entry.can_cause, most)]),
            Section("Next steps", [Steps(list(entry.next_steps))]),
            _lines("Lines of a job's log", entry.log_lines, most),
            _lines("Lines of the kernel log", entry.kernel_lines, most),
            Section("Sources", [bullets(entry.sources[:most])]),
        ],
        footer="" if verbose else "-v shows all lines, classes and sources.",
    )


def explain_document(entry: CatalogEntry, generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag explain`; nothing was looked at, so nothing was found."""
    return {
        **document.head("explain", generated_at),
        "id": entry.id,
        "kind": entry.kind,
        "title": entry.title,
        "severity": entry.severity and entry.severity.value,
        "class": entry.failure_class.id,
        "evidence_of": list(entry.evidence_of),
        "explanation": entry.failure_class.explanation,
        "caused_by": list(map(attrgetter("id"), entry.caused_by)),
        "can_cause": list(entry.failure_class.can_cause),
        "next_steps": list(entry.next_steps),
        "log_lines": list(map(ExampleLine._asdict, entry.log_lines)),
        "kernel_lines": list(map(ExampleLine._asdict, entry.kernel_lines)),
        "sources": list(entry.sources),
        **document.findings_and_coverage(Diagnosis((), (), Coverage(0, 0))),
    }


def _classes(classes: Sequence[FailureClass], most: int | None) -> Bullets:
    """Each class with its title."""
    shown = [f"{entry.id}: {entry.title}" for entry in classes[:most]]
    return bullets([*shown, _rest(len(classes), most, "class", "classes")])


def _lines(title: str, lines: Sequence[ExampleLine], most: int | None) -> Section:
    """Lines in the form in which they are printed."""
    quote = Quote(list(map(attrgetter("text"), lines[:most])))
    return Section(title, [quote, bullets([_rest(len(lines), most, "form", "forms")])])


def _rest(number: int, most: int | None, noun: str, plural: str) -> str:
    """How many were left out; "" where none was."""
    left = number - most if most is not None else 0
    return f"and {count(left, noun, plural)} more" if left > 0 else ""
