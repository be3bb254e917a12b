"""A kernel log's events as text, as Markdown and as a JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from raydiag import __version__
from raydiag.kmsg import ExaminedKernelLog, LoggedEvent
from raydiag.model import Severity
from raydiag.render import document
from raydiag.render.escape import fenced, markdown, terminal
from raydiag.render.layout import COLOURS, ReportPage, count, utc

SCHEMA = "raydiag.kmsg/1"


def json_report(examined: ExaminedKernelLog, generated_at: float) -> Iterator[str]:
    """The document as JSON text, one event a line."""
    return document.lines(kmsg_document(examined, generated_at))


def kmsg_document(examined: ExaminedKernelLog, generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag kmsg`; `raydiag/schemas/kmsg.json` states its shape."""
    return {
        "schema": SCHEMA,
        "raydiag_version": __version__,
        "generated_at": document.rfc3339(generated_at),
        "events": [_event(event) for event in examined.events],
        **document.findings_and_coverage(examined.diagnosis),
    }


def _event(event: LoggedEvent) -> dict[str, Any]:
    fields = dict(vars(event))
    fields["severity"] = event.severity.value
    return {"class": fields.pop("event_class"), **fields}


def text_report(
    examined: ExaminedKernelLog, colour: bool, width: int, verbose: bool
) -> Iterator[str]:
    """The report for people: the gravest events first, remarks folded unless `verbose`."""
    page = ReportPage(max(width, 40), colour)
    blocks = [page.wrap(terminal(_summary(examined)))]
    blocks += [_block(event, page, new) for event, new in _shown(examined, verbose)]
    if remarks := _remarks(examined, verbose):
        blocks.append(page.wrap(remarks))
    blocks += [_unread(examined, page)] if examined.unread else []
    for index, block in enumerate(blocks):
        yield ("\n" if index else "") + "\n".join(block) + "\n"


def markdown_report(examined: ExaminedKernelLog, verbose: bool) -> Iterator[str]:
    """The same to paste into a ticket; what the log says stands in code blocks, or is escaped."""
    yield f"**{markdown(_summary(examined))}**\n"
    for event, new in _shown(examined, verbose):
        facts = [markdown(fact) for fact in _facts(event) if fact]
        blocks = [
            f"## {event.severity.value.upper()} {markdown(event.event_class)}",
            " · ".join(facts),
            fenced([f"{event.file}:{event.line}: {event.text}"]),
            markdown(event.meaning),
            markdown(f"Next: {event.next_step}") if new else "",
        ]
        yield "".join(f"\n{block}\n" for block in blocks if block)
    if remarks := _remarks(examined, verbose):
        yield f"\n{markdown(remarks)}\n"
    if examined.unread:
        yield "\n## Not read\n\n"
        yield from (f"- {markdown(f'{item.source}: {item.reason}')}\n" for item in examined.unread)


def _shown(examined: ExaminedKernelLog, verbose: bool) -> Iterator[tuple[LoggedEvent, bool]]:
    """Events, the gravest first, without remarks; and whether the next step is a new one."""
    told: set[str] = set()
    for event in sorted(examined.events, key=lambda event: -event.severity.rank):
        if verbose or event.severity is not Severity.INFO:
            yield event, event.next_step not in told
            told.add(event.next_step)


def _summary(examined: ExaminedKernelLog) -> str:
    by_severity = Counter(event.severity for event in examined.events)
    where = f"in {count(examined.files, 'file')}" if examined.files else "in this machine's log"
    if not examined.events:
        return f"No event {where}."
    parts = [
        f"{by_severity[severity]} {word}"
        for severity, word in (
            (Severity.CRITICAL, "critical"),
            (Severity.WARNING, "warning"),
            (Severity.INFO, "to note"),
        )
        if by_severity[severity]
    ]
    return f"{count(len(examined.events), 'event')} {where}: {', '.join(parts)}."


def _block(event: LoggedEvent, page: ReportPage, with_next_step: bool) -> list[str]:
    word = event.severity.value.upper()
    heading = "  ".join(part for part in (f"{word} {event.event_class}", *_facts(event)) if part)
    lines = page.wrap(terminal(heading), "", "    ")
    lines[0] = page.paint(word, COLOURS[event.severity]) + lines[0][len(word) :]
    lines += page.wrap(terminal(f"{event.file}:{event.line}: {event.text}"), "    ", "      ")
    lines += page.wrap(terminal(event.meaning), "  ", "  ")
    if with_next_step:
        lines += page.wrap(terminal(f"Next: {event.next_step}"), "  ", "        ")
    return lines


def _facts(event: LoggedEvent) -> Iterator[str]:
    yield event.host or ""
    if event.time is not None:
        yield utc(event.time)
    elif event.since_boot_s is not None:
        yield f"{event.since_boot_s:.3f} s after boot"
    yield event.device or ""
    yield f"ring {event.ring}" if event.ring else ""
    if event.pid is not None:
        yield f"pid {event.pid}" + (f" ({event.process})" if event.process else "")
    yield f"{event.count} times" if event.count > 1 else ""
    yield "over" if event.recovery else ""
    yield "written by a program" if event.userspace else ""


def _remarks(examined: ExaminedKernelLog, verbose: bool) -> str:
    """The remarks that are not shown, by number."""
    infos = [one for one in examined.events if one.severity is Severity.INFO and not verbose]
    kinds = Counter(event.event_class for event in infos)
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    return f"To note (-v shows them): {told}" if told else ""


def _unread(examined: ExaminedKernelLog, page: ReportPage) -> list[str]:
    lines = ["NOT READ"]
    for item in examined.unread:
        lines += page.wrap(terminal(f"{item.source}: {item.reason}"), "  ", "    ")
    return lines
