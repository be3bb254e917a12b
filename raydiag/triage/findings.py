"""Symptoms and projections as findings: one per class, with its lines as evidence."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from raydiag import catalog
from raydiag.catalog import signatures
from raydiag.catalog.completion import completed
from raydiag.joblog.facts import JobFacts, TaskExit, Traceback
from raydiag.model import Confidence, Evidence, Finding, Severity
from raydiag.triage import hang, heartbeat
from raydiag.triage.decision import TriageCase, TriageOutcome
from raydiag.triage.exits import failed_exits, host_of
from raydiag.triage.first_cause import of_their_own
from raydiag.triage.loss import Divergence, jump
from raydiag.triage.symptoms import Symptom, classes, first_of, live, of_class
from raydiag.triage.throughput import POINTS_AT
from raydiag.triage.verdict import JobStatus
from raydiag.triage.wording import first_known

_EVIDENCE = 6  # lines quoted for one class
_CONTEXT = 2  # lines before and after
_SILENT_ENDS = ("unknown-death", "signal-kill", "stage-fail")


def findings(case: TriageCase, outcome: TriageOutcome, story: Sequence[str]) -> list[Finding]:
    """The primary's first, then what follows from it, then what else was seen."""
    secondary = [*_of_other_classes(case, outcome), *_of_series(case, outcome)]
    secondary += _of_kernel_lines(case, outcome)
    order = {name: index for index, name in enumerate(outcome.cascade)}
    secondary.sort(key=lambda finding: order.get(finding.failure_class, len(order)))
    if outcome.primary is not None:
        secondary.insert(0, _primary(case, outcome, " ".join(story)))
    situation = _situation(case, outcome)
    return [completed(finding, situation) for finding in secondary]


def _situation(case: TriageCase, outcome: TriageOutcome) -> dict[str, str]:
    """What is known of the job and decides which next steps are for it."""
    situation, resolved = {}, case.facts.resolved
    if outcome.status is not JobStatus.UNKNOWN:
        is_live = outcome.status in (JobStatus.RUNNING, JobStatus.HANGING)
        situation["state"] = "running" if is_live else "ended"
    if case.facts.header.framework not in (None, "generic", "bar"):
        is_jax = case.facts.header.framework == "maxtext"
        situation["framework"] = "jax" if is_jax else "torch"
    if resolved.kubernetes or case.moment.scheduler is not None:
        situation["scheduler"] = "kubernetes" if resolved.kubernetes else "slurm"
    return situation


def _of_other_classes(case: TriageCase, outcome: TriageOutcome) -> Iterator[Finding]:
    """One finding for each class but the primary: of its live symptoms, else of its history."""
    for name in classes(of_their_own(case.symptoms)):
        if name == outcome.primary:
            continue
        of_name = of_class(case.symptoms, name)
        reported = live(of_name) or of_name
        finding = _of_symptom(case.facts, first_of(reported, name), reported, Confidence.LIKELY)
        is_history = catalog.failure(name).survivable or not live(of_name)
        yield replace(finding, severity=_severity(outcome, is_history))


def _of_kernel_lines(case: TriageCase, outcome: TriageOutcome) -> Iterator[Finding]:
    """What the kernel lines report and nothing else in the log does, one of each class and host."""
    of_log = {outcome.primary, *classes(case.symptoms)}
    told: set[tuple[str, str | None]] = set()
    for witness in case.witnesses:
        symptom = witness.symptom
        about = symptom.failure_class, symptom.host
        if symptom.failure_class in of_log or about in told:
            continue
        told.add(about)
        finding = _of_symptom(case.facts, symptom, [symptom], Confidence.LIKELY)
        is_over = witness.is_history or outcome.status is JobStatus.COMPLETED
        yield replace(finding, severity=Severity.INFO if is_over else witness.severity)


def _severity(outcome: TriageOutcome, is_history: bool) -> Severity | None:
    """Of what is not the primary: what the job got over is no problem any more."""
    primary = catalog.failure(outcome.primary) if outcome.primary is not None else None
    is_harmless = primary is not None and primary.severity is Severity.INFO
    if is_history or is_harmless or outcome.status is JobStatus.COMPLETED:
        return Severity.INFO
    return Severity.WARNING if outcome.status is JobStatus.RUNNING else None


# ---- the primary


def _primary(case: TriageCase, outcome: TriageOutcome, explanation: str) -> Finding:
    name = outcome.primary or ""
    symptoms = of_class(case.live, name)
    origin = outcome.origin
    if origin is not None:
        origin = _with_named_host(origin, symptoms)
    elif symptoms and name != "hang":
        origin = first_of(symptoms, name)
    if origin is not None:
        finding = _of_symptom(case.facts, origin, symptoms, outcome.confidence)
    else:
        finding = _without_symptom(case, outcome)
    if name == heartbeat.CLASS:
        finding = _of_accused(case, finding)
    elif finding.task is None and finding.host is None and name != "hang":
        task = heartbeat.missed_at_barrier(case.facts, name)
        if task is None:
            finding = _of_first_exit(case, finding)
        else:
            finding = replace(finding, task=str(task), host=case.facts.hosts.get(task))
    elif finding.task is None and origin is not None and name != "hang":
        finding = _of_first_rank(case, finding, origin.where)
    return replace(finding, explanation=explanation)


def _with_named_host(origin: Symptom, symptoms: Sequence[Symptom]) -> Symptom:
    """With whom lines next to it name, else whom alone its class's lines name."""
    if origin.host is not None or origin.task is not None:
        return origin
    named = {(other.task, other.host): other for other in symptoms if other.task or other.host}
    witnesses = [other for other in named.values() if other.host and _is_beside(other, origin)]
    is_of_named = origin.failure.told_by_others or not origin.failure.late_notice
    if len(named) == 1 and is_of_named:
        witnesses += named.values()
    for other in witnesses[:1]:
        pid = origin.pid or other.pid
        return replace(origin, host=other.host, task=other.task, pid=pid)
    return origin


def _is_beside(symptom: Symptom, origin: Symptom) -> bool:
    is_of_writer = (symptom.file, symptom.where) == (origin.file, origin.where)
    return is_of_writer and abs(symptom.line - origin.line) <= _CONTEXT


def _of_accused(case: TriageCase, finding: Finding) -> Finding:
    """About the task that the alarm names, not the one that logged it."""
    task = heartbeat.first_accused(case.facts)
    if task is None:
        return finding
    advice = heartbeat.advice(case.facts, case.progress)
    entry = catalog.failure(finding.failure_class)
    next_steps = (advice, *entry.next_steps) if advice else ()
    return replace(finding, task=str(task), host=case.facts.hosts.get(task), next_steps=next_steps)


def _of_first_exit(case: TriageCase, finding: Finding) -> Finding:
    """About the process whose end the launcher noticed first, where the error names none."""
    for symptom in case.live:
        if symptom.failure.mechanism and symptom.task is not None:
            return replace(finding, task=symptom.task, host=symptom.host, pid=symptom.pid)
    for task_exit in sorted(failed_exits(case.facts), key=_is_later_exit):
        host = host_of(task_exit, case.facts)
        number = first_known(task_exit.rank, task_exit.task)
        if number is not None or host is not None:
            task = None if number is None else str(number)
            return replace(finding, task=task, host=host, pid=finding.pid or task_exit.pid)
    return finding


def _of_first_rank(case: TriageCase, finding: Finding, where: str) -> Finding:
    """With the rank that failed first by the launcher of the same writer."""
    for task_exit in failed_exits(case.facts):
        is_first = task_exit.kind == "torchrun-first" and task_exit.where == where
        if is_first and task_exit.rank is not None:
            return replace(finding, task=str(task_exit.rank))
    return finding


def _is_later_exit(task_exit: TaskExit) -> bool:
    """torchrun's table ends with the failure that it observed first."""
    return task_exit.kind != "torchrun-first"


# ---- findings of lines


def _of_symptom(
    facts: JobFacts, first: Symptom, symptoms: Sequence[Symptom], confidence: Confidence
) -> Finding:
    row = signatures.table().by_id.get(first.row)
    if row is not None and row.does_not_show:
        confidence = confidence.at_most(Confidence.LIKELY)  # the line alone leaves it open
    return Finding(
        failure_class=first.failure_class,
        host=first.host,
        pid=first.pid,
        task=first.task,
        onset=first.time,
        confidence=confidence,
        evidence=tuple(_evidence(facts, first, symptoms)),
    )


def _evidence(facts: JobFacts, first: Symptom, symptoms: Sequence[Symptom]) -> Iterator[Evidence]:
    """The line where it began, its exception, then the first line of other tasks."""
    quoted = {first.text}
    places = {first.place}
    yield first.evidence()
    for line, text in _context(first):
        quoted.add(text)
        places.add((first.file, line))
        yield Evidence(f"{first.file}:{line}", text)
    number = 1
    traceback = _traceback_of(facts, first)
    if traceback is not None and traceback.exception not in quoted:
        quoted.add(traceback.exception)
        number += 1
        place = f"{traceback.file}:{traceback.end_line}"
        yield Evidence(place, traceback.exception, None, traceback.time)
    for other in symptoms:
        if number < _EVIDENCE and other.text not in quoted and other.place not in places:
            quoted.add(other.text)
            number += 1
            yield other.evidence()


def _context(first: Symptom) -> Iterator[tuple[int, str]]:
    """The lines around the one with which it began."""
    if first.match is None:
        return
    before = first.match.before[-_CONTEXT:]
    lines = [
        *enumerate(before, first.line - len(before)),
        *enumerate(first.match.after[:_CONTEXT], first.line + 1),
    ]
    for line, text in lines:
        if text.strip():
            yield line, text


def _traceback_of(facts: JobFacts, symptom: Symptom) -> Traceback | None:
    """The traceback that begins at this line."""
    for traceback in facts.tracebacks:
        if (traceback.file, traceback.line) == symptom.place and traceback.exception:
            return traceback
    return None


# ---- findings without a line of their own


def _without_symptom(case: TriageCase, outcome: TriageOutcome) -> Finding:
    """A failure that no line reports: a stall, an end in silence, a loss that is not finite."""
    facts, name = case.facts, outcome.primary or ""
    lines = list(_lines_without_symptom(case, name))
    summary = facts.summary
    if summary is not None and summary.status_text and name != "loss-divergence":
        place = f"{summary.file}:{summary.status_line or summary.line}"
        lines.append(Evidence(place, f"Status: {summary.status_text}"))
    finding = Finding(name, confidence=outcome.confidence, evidence=tuple(lines))
    if name != "hang":
        return finding
    finding = replace(finding, onset=case.progress.last_step_time)
    straggler = hang.straggler(facts)
    if straggler is None:
        return finding
    return replace(finding, task=straggler.where or None, host=straggler.host)


def _lines_without_symptom(case: TriageCase, name: str) -> Iterator[Evidence]:
    if name == "hang":
        yield from _last_step(case)
        yield from _at_barrier(case.facts)
    elif name == "loss-divergence":
        yield from _divergence_line(case, case.divergence)
    elif name in _SILENT_ENDS and case.facts.tail:
        yield from _last_step(case)
        yield from _last_line(case.facts)


def _last_step(case: TriageCase) -> Iterator[Evidence]:
    steps = case.facts.steps
    if steps is not None:
        text = _in_tail(case.facts, steps.last_line) or f"step {steps.last_step} is the last one"
        place = f"{steps.file}:{steps.last_line}"
        yield Evidence(place, text, float(steps.last_step), case.progress.last_step_time)


def _in_tail(facts: JobFacts, line: int) -> str:
    """A line verbatim, where it is one of the last that were kept."""
    index = line - facts.tail_first_line
    return facts.tail[index] if 0 <= index < len(facts.tail) else ""


def _at_barrier(facts: JobFacts) -> Iterator[Evidence]:
    if facts.steps is None and facts.barrier_line is not None and facts.files:
        text = f"{len(facts.barrier_writers)} tasks reached the barrier before the training loop"
        yield Evidence(f"{facts.files[0].path}:{facts.barrier_line}", text)


def _last_line(facts: JobFacts) -> Iterator[Evidence]:
    """The last line that is not blank."""
    for index in reversed(range(len(facts.tail))):
        if facts.files and facts.tail[index].strip():
            line = facts.tail_first_line + index
            yield Evidence(f"{facts.files[0].path}:{line}", facts.tail[index])
            return


# ---- what the step lines show besides


def _of_series(case: TriageCase, outcome: TriageOutcome) -> Iterator[Finding]:
    """Training that slows down, losses that are not finite."""
    if outcome.primary != "tgs-degradation":
        yield from _degradation(case)
    divergence = case.divergence
    if divergence is not None and outcome.primary != "loss-divergence":
        severity = None if divergence.lasting else Severity.INFO
        evidence = tuple(_divergence_line(case, divergence))
        yield Finding("loss-divergence", severity=severity, evidence=evidence)
    jumped = jump(case.facts.steps)
    if divergence is None and jumped is not None:
        evidence = tuple(_divergence_line(case, jumped))
        confidence = Confidence.LIKELY if jumped.lasting else Confidence.POSSIBLE
        yield Finding("loss-divergence", evidence=evidence, confidence=confidence)


def _divergence_line(case: TriageCase, divergence: Divergence | None) -> Iterator[Evidence]:
    steps = case.facts.steps
    if divergence is not None and steps is not None:
        text = f"{divergence.text} from step {divergence.step} on"
        yield Evidence(f"{steps.file}:{divergence.line}", text, float(divergence.step))


def _degradation(case: TriageCase) -> Iterator[Finding]:
    speed, steps = case.progress.throughput, case.facts.steps
    if speed is None or not speed.degraded or steps is None:
        return
    text = (
        f"{speed.early:.4g} {speed.unit} in steps {speed.early_steps[0]}-{speed.early_steps[1]}"
        f", {speed.late:.4g} in steps {speed.late_steps[0]}-{speed.late_steps[1]}: "
        f"{speed.change_percent:.0f} %"
    )
    yield Finding(
        "tgs-degradation",
        evidence=(Evidence(f"{steps.file}:{steps.last_line}", text, speed.change_percent),),
        explanation=f"Throughput fell ({speed.pattern}): {POINTS_AT[speed.pattern]}.",
        confidence=Confidence.LIKELY,
    )
