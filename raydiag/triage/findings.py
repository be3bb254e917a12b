"""Symptoms and projections as findings: one per class, with its lines as evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Optional

from raydiag import catalog
from raydiag.joblog.facts import JobFacts
from raydiag.model import Confidence, Evidence, Finding, Severity
from raydiag.triage import hang, heartbeat
from raydiag.triage.decision import TriageCase, TriageOutcome
from raydiag.triage.symptoms import Symptom, failed_exits, first_of
from raydiag.triage.throughput import POINTS_AT
from raydiag.triage.verdict import JobStatus

_EVIDENCE = 6  # lines quoted for one class
_CONTEXT = 2  # lines before and after


def findings(case: TriageCase, outcome: TriageOutcome, story: Sequence[str]) -> list[Finding]:
    """The primary's first, then what follows from it, then what else was seen."""
    primary = outcome.primary
    found: list[Finding] = []
    if primary is not None:
        found.append(_primary(case, outcome, " ".join(story)))
    alive = outcome.status in (JobStatus.RUNNING, JobStatus.COMPLETED)
    for one, same in _by_class(case):
        if one == primary:
            continue
        history = all(symptom.survived or catalog.failure(one).survivable for symptom in same)
        first = first_of(same, one)
        made = _of_symptom(case.facts, first, same, Confidence.LIKELY)
        # What the job got over is no problem any more.
        calm = outcome.status is JobStatus.COMPLETED or primary == "cancelled"
        severity = Severity.INFO if history or calm else None
        severity = Severity.WARNING if alive and severity is None else severity
        found.append(replace(made, severity=severity))
    found += [one for one in _of_series(case) if one.failure_class != primary]
    order = {name: place for place, name in enumerate(outcome.cascade)}
    found[1 if primary else 0 :] = sorted(
        found[1 if primary else 0 :],
        key=lambda one: order.get(one.failure_class, len(order)),
    )
    return [_completed(one) for one in found]


def _by_class(case: TriageCase) -> Iterator[tuple[str, list[Symptom]]]:
    """The live ones of a class, else those that were survived."""
    for name in dict.fromkeys(one.failure_class for one in case.found):
        same = [one for one in case.found if one.failure_class == name]
        fresh = [one for one in same if not one.survived]
        yield name, fresh or same


def _primary(case: TriageCase, outcome: TriageOutcome, explanation: str) -> Finding:
    name = outcome.primary or ""
    same = [one for one in case.live if one.failure_class == name]
    if outcome.origin is not None:
        made = _of_symptom(case.facts, _told_whole(outcome.origin, same), same, outcome.confidence)
    elif same and name != "hang":
        made = _of_symptom(case.facts, first_of(same, name), same, outcome.confidence)
    else:
        made = _without_line(case, outcome)
    if name == "heartbeat-timeout":
        made = _accusing(case, made)
    elif made.task is None and made.host is None and name != "hang":
        made = _noticed(case, made)
    return replace(made, explanation=explanation)


def _of_symptom(
    facts: JobFacts, first: Symptom, same: Sequence[Symptom], confidence: Confidence
) -> Finding:
    return Finding(
        failure_class=first.failure_class,
        host=first.host,
        pid=first.pid,
        task=first.task,
        onset=first.time,
        confidence=confidence,
        evidence=tuple(_evidence(facts, first, same)),
    )


def _told_whole(first: Symptom, same: Sequence[Symptom]) -> Symptom:
    """With whom the lines next to it name, where its own line names nobody."""
    if first.host is not None or first.task is not None:
        return first
    for other in same:
        here = (other.file, other.where) == (first.file, first.where)
        if here and abs(other.line - first.line) <= _CONTEXT and other.host is not None:
            return replace(first, host=other.host, task=other.task, pid=first.pid or other.pid)
    return first


def _evidence(facts: JobFacts, first: Symptom, same: Sequence[Symptom]) -> Iterator[Evidence]:
    """The line where it began, its exception, then the first line of other tasks."""
    quoted = {first.text}
    lines = {(first.file, first.line)}
    yield first.evidence()
    for place, text in _context(first):
        quoted.add(text)
        lines.add((first.file, place))
        yield Evidence(f"{first.file}:{place}", text)
    number = 1
    for one in facts.tracebacks:
        same_place = one.file == first.file and one.line == first.line
        if same_place and one.exception and one.exception not in quoted:
            quoted.add(one.exception)
            number += 1
            yield Evidence(f"{one.file}:{one.end_line}", one.exception, None, one.time)
            break
    for other in same:
        here = (other.file, other.line)
        if number < _EVIDENCE and other.text not in quoted and here not in lines:
            quoted.add(other.text)
            number += 1
            yield other.evidence()


def _context(first: Symptom) -> Iterator[tuple[int, str]]:
    """The lines around the one with which it began."""
    if first.match is None:
        return
    before = list(enumerate(first.match.before, first.line - len(first.match.before)))
    after = list(enumerate(first.match.after, first.line + 1))
    for place, text in (*before[-_CONTEXT:], *after[:_CONTEXT]):
        if text.strip():
            yield place, text


def _without_line(case: TriageCase, outcome: TriageOutcome) -> Finding:
    """A failure that no line tells of: a stall, an end in silence, a loss that is no number."""
    facts, name = case.facts, outcome.primary or ""
    host = task = onset = None
    lines: list[Evidence] = []
    if name == "hang":
        behind = hang.straggler(facts)
        if behind is not None:
            task, host = behind.where or None, behind.host
        onset = case.progress.last_step_time
        lines = list(_last_step(case)) + list(_at_barrier(facts))
    elif name == "loss-divergence" and case.divergence is not None:
        lines = [_divergence_line(case)]
    elif name in ("unknown-death", "signal-kill", "stage-fail") and facts.tail:
        lines = [*_last_step(case), *_last_line(facts)]
    if facts.summary is not None and facts.summary.status_text and name != "loss-divergence":
        place = f"{facts.summary.file}:{facts.summary.status_line or facts.summary.line}"
        lines.append(Evidence(place, f"Status: {facts.summary.status_text}"))
    return Finding(
        name, host, task=task, onset=onset, confidence=outcome.confidence, evidence=tuple(lines)
    )


def _last_step(case: TriageCase) -> Iterator[Evidence]:
    steps = case.facts.steps
    if steps is not None:
        text = _in_tail(case.facts, steps.last_line) or f"step {steps.last_step} is the last one"
        place = f"{steps.file}:{steps.last_line}"
        yield Evidence(place, text, float(steps.last_step), case.progress.last_step_time)


def _in_tail(facts: JobFacts, line: int) -> str:
    """A line verbatim, where it is one of the last that were kept."""
    place = line - facts.tail_first_line
    return facts.tail[place] if 0 <= place < len(facts.tail) else ""


def _at_barrier(facts: JobFacts) -> Iterator[Evidence]:
    if facts.steps is None and facts.barrier_line is not None and facts.files:
        text = f"{len(facts.barrier_writers)} tasks reached the barrier before the training loop"
        yield Evidence(f"{facts.files[0].path}:{facts.barrier_line}", text)


def _last_line(facts: JobFacts) -> Iterator[Evidence]:
    filled = [(n, line) for n, line in enumerate(facts.tail, facts.tail_first_line) if line.strip()]
    if filled and facts.files:
        yield Evidence(f"{facts.files[0].path}:{filled[-1][0]}", filled[-1][1])


def _divergence_line(case: TriageCase) -> Evidence:
    broken, steps = case.divergence, case.facts.steps
    assert broken is not None and steps is not None
    text = f"loss: {broken.text} from step {broken.step} on"
    return Evidence(f"{steps.file}:{broken.line}", text, float(broken.step))


def _noticed(case: TriageCase, made: Finding) -> Finding:
    """The process whose end the launcher noticed first, where the error's own line names none."""
    facts = case.facts
    for symptom in case.live:
        if symptom.is_mechanism and symptom.task is not None:
            return replace(made, task=symptom.task, host=symptom.host, pid=symptom.pid)
    for one in failed_exits(facts):
        host = one.host or (facts.hosts.get(one.task) if one.task is not None else None)
        number = one.rank if one.rank is not None else one.task
        if number is not None or host is not None:
            task = None if number is None else str(number)
            return replace(made, task=task, host=host, pid=made.pid or one.pid)
    return made


def _accusing(case: TriageCase, made: Finding) -> Finding:
    """Whom the alarm names, not who wrote it down."""
    task = heartbeat.first_accused(case.facts)
    if task is None:
        return made
    steps = heartbeat.advice(case.facts, case.progress)
    entry = catalog.failures()[made.failure_class]
    more = (steps, *entry.next_steps) if steps else ()
    return replace(made, task=str(task), host=case.facts.hosts.get(task), next_steps=more)


def _of_series(case: TriageCase) -> Iterator[Finding]:
    """What the step lines show besides: training that slows down, losses that are no numbers."""
    speed, broken, steps = case.progress.throughput, case.divergence, case.facts.steps
    if speed is not None and speed.degraded and steps is not None:
        text = (
            f"{speed.early:.4g} {speed.unit} in steps {speed.early_steps[0]}-{speed.early_steps[1]}"
            f", {speed.late:.4g} in steps {speed.late_steps[0]}-{speed.late_steps[1]}: "
            f"{speed.change_percent:.0f} %"
        )
        yield Finding(
            "tgs-degradation",
            evidence=(Evidence(f"{steps.file}:{steps.last_line}", text, speed.change_percent),),
            explanation=f"Throughput fell ({speed.pattern}). {POINTS_AT[speed.pattern]}.",
            confidence=Confidence.LIKELY,
        )
    if broken is not None:
        line = _divergence_line(case)
        severity = None if broken.lasting else Severity.INFO
        yield Finding("loss-divergence", severity=severity, evidence=(line,))


def _completed(finding: Finding) -> Finding:
    """With what the catalog knows of its class."""
    entry = catalog.failures()[finding.failure_class]
    return replace(
        finding,
        title=finding.title or entry.title,
        severity=finding.severity or entry.severity,
        explanation=finding.explanation or entry.explanation,
        next_steps=tuple(finding.next_steps or entry.next_steps),
    )


def first_host(finding: Optional[Finding]) -> str:
    """Where it began, in words; empty when the log does not tell."""
    if finding is None:
        return ""
    parts = [f"task {finding.task}" if finding.task else "", finding.host or ""]
    return " on ".join(part for part in parts if part)
