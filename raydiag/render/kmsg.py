"""A kernel log's events as a report, and as JSON; `raydiag/schemas/kmsg.json` states its shape."""

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from raydiag.kmsg import ExaminedKernelLog, LoggedEvent
from raydiag.model import Severity
from raydiag.render import document
from raydiag.render.coverage import not_read
from raydiag.render.formats import count, counted, filled, utc
from raydiag.render.report import TONES, Paragraph, Quote, Report, Section, Steps, severity_label

_ADJECTIVES = {Severity.CRITICAL: "critical", Severity.WARNING: "warning", Severity.INFO: "to note"}


def kmsg_report(examined: ExaminedKernelLog, verbose: bool) -> Report:
    """The most severe events first; events to note are counted only, unless `verbose`."""
    severities = map(attrgetter("severity"), examined.events)
    worst = max(severities, key=attrgetter("rank"), default=Severity.INFO)
    lead = Paragraph(_summary(examined), strong=True)
    sections = [Section(blocks=[lead], tone=TONES[worst])]
    sections += _events(examined, verbose)
    if not verbose:
        sections.append(Section(blocks=[Paragraph(_notes(examined))]))
    sections.append(not_read(examined.unread))
    return Report(sections)


def kmsg_document(examined: ExaminedKernelLog, generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag kmsg`."""
    return {
        **document.head("kmsg", generated_at),
        "events": list(map(_event_object, examined.events)),
        **document.findings_and_coverage(examined.diagnosis),
    }


def _summary(examined: ExaminedKernelLog) -> str:
    logs = f"in {count(examined.files, 'file')}" if examined.files else "in this machine's log"
    if not examined.events:
        return f"No event {logs}."
    times = Counter(map(attrgetter("severity"), examined.events))
    rated = counted({name: times[severity] for severity, name in _ADJECTIVES.items()})
    return f"{count(len(examined.events), 'event')} {logs}: {rated}."


def _events(examined: ExaminedKernelLog, verbose: bool) -> Iterator[Section]:
    """A section for each event; the same next step is given once."""
    given_steps: set[str] = set()
    for event in sorted(examined.events, key=lambda event: -event.severity.rank):
        if verbose or event.severity is not Severity.INFO:
            steps = [] if event.next_step in given_steps else [event.next_step]
            given_steps.update(steps)
            yield _event(event, steps)


def _event(event: LoggedEvent, steps: list[str]) -> Section:
    return Section(
        title=event.event_class,
        label=severity_label(event.severity),
        facts=list(filter(None, _facts(event))),
        blocks=[
            Quote([f"{event.file}:{event.line}: {event.text}"]),
            Paragraph(event.meaning),
            Steps(steps, label="Next"),
        ],
    )


def _facts(event: LoggedEvent) -> Iterator[str]:
    yield event.host or ""
    yield _time(event)
    yield event.device or ""
    yield filled("ring {}", event.ring)
    yield _process(event)
    if event.count > 1:
        yield f"{event.count} times"
    if event.recovery:
        yield "over"
    if event.userspace:
        yield "written by a program"


def _time(event: LoggedEvent) -> str:
    if event.time is not None:
        return utc(event.time)
    return filled("{:.3f} s after boot", event.since_boot_s)


def _process(event: LoggedEvent) -> str:
    if event.pid is None:
        return ""
    return f"pid {event.pid}" + filled(" ({})", event.process)


def _notes(examined: ExaminedKernelLog) -> str:
    """The events to note, by number."""
    kinds = Counter(e.event_class for e in examined.events if e.severity is Severity.INFO)
    return filled("To note (-v shows them): {}", counted(dict(sorted(kinds.items()))))


def _event_object(event: LoggedEvent) -> dict[str, Any]:
    fields = {**vars(event), "severity": event.severity.value}
    return {"class": fields.pop("event_class"), **fields}
