"""What happened, in one to four sentences."""

from collections.abc import Iterator

from raydiag import catalog
from raydiag.joblog.facts import JobFacts
from raydiag.triage import deaths, hang, heartbeat, kernel_log
from raydiag.triage.decision import TriageCase, TriageOutcome
from raydiag.triage.exits import failed_exits
from raydiag.triage.progress import saved_steps
from raydiag.triage.stall import StepPace
from raydiag.triage.symptoms import Symptom
from raydiag.triage.verdict import JobStatus
from raydiag.triage.wording import span, task_on_host

_QUOTE = 160  # characters of an exception in a sentence


def story(case: TriageCase, outcome: TriageOutcome) -> tuple[str, ...]:
    """Sentences for "What happened", the first one the answer."""
    return tuple(_sentences(case, outcome))


def _sentences(case: TriageCase, outcome: TriageOutcome) -> Iterator[str]:
    facts, progress = case.facts, case.progress
    if outcome.primary is None:
        yield from _without_failure(case, outcome)
    elif outcome.primary == "hang" and outcome.stall is not None:
        yield from _hang(case, outcome)
    elif outcome.primary == heartbeat.CLASS:
        yield from heartbeat.sentences(facts, heartbeat.accused(facts, case.live), progress)
    elif outcome.primary == "unknown-death":
        yield from deaths.sentences(facts, case.moment)
    elif outcome.primary == "soft-success":
        status = "no summary" if facts.summary is None else facts.summary.status_text
        yield (
            f"All {progress.total_steps} steps were completed; only the shutdown failed ({status})."
            " Nothing is lost, and no step has to be repeated."
        )
    else:
        yield from _error(case, outcome)


# ---- a hang


def _hang(case: TriageCase, outcome: TriageOutcome) -> Iterator[str]:
    phase = case.late_phase
    if phase is not None:
        yield (
            f"Start-up has been in phase {phase.number} ({phase.name}) for {span(phase.seconds)}."
        )
    elif outcome.stall is not None:
        yield from hang.sentences(case.facts, case.progress, outcome.stall)
    ends = [name for name in outcome.cascade if name != "hang"]
    if ends:
        yield f"What ended the job then ({', '.join(ends)}) is a consequence."
    if outcome.status is JobStatus.HANGING and not case.moment.alive:
        yield (
            "It is not known whether the job still exists. If it has ended, it died without a "
            "summary: say so with --job-state ended."
        )


# ---- an error


def _error(case: TriageCase, outcome: TriageOutcome) -> Iterator[str]:
    title = catalog.failure(outcome.primary or "").title
    place = quote = ""
    if outcome.origin is not None:
        place = _place(outcome.origin)
        quote = _quote(outcome.origin)
    yield f"{title}{place}."
    if quote:
        yield f"The error message: {quote}"
    if outcome.primary == "checkpoint-fs-error":
        yield from _checkpoints(case.facts)
    exits = failed_exits(case.facts)
    if outcome.primary in ("node-fail", "signal-kill", "stage-fail") and exits:
        yield from deaths.node_sentences(exits, case.facts)
    if outcome.origin is not None and outcome.origin.row == kernel_log.ROW:
        yield f"The kernel log says: {outcome.origin.text.strip()[:_QUOTE]}"
    if len(outcome.cascade) > 1:
        yield f"Consequences: {', '.join(outcome.cascade[1:])}."


def _place(origin: Symptom) -> str:
    place = task_on_host(origin.task, origin.host)
    return f" (first seen: {place})" if place else ""


def _quote(origin: Symptom) -> str:
    """The exception's own message, where there is one."""
    message = origin.exception or ""
    if not message and origin.is_exception and origin.match is not None:
        message = origin.match.text.strip()
    return message if len(message) <= _QUOTE else f"{message[:_QUOTE]}..."


def _checkpoints(facts: JobFacts) -> Iterator[str]:
    """Which saves worked and which did not, as the other tasks report."""
    failed = max(saved_steps(facts, "failed"), default=0)
    finished = saved_steps(facts, "finished") - {0}
    if failed:
        yield f"The save of step {failed} failed."
    if failed and failed in finished:
        yield "Other tasks report that they saved it. It may be intact: check its directory."
    elif finished:
        yield f"The newest save that worked is that of step {max(finished)}."
    longest = max((save.seconds or 0.0 for save in facts.saves), default=0.0)
    limit = facts.header.heartbeat_timeout_s
    if longest and limit and longest > limit / 2:
        yield (
            f"The longest save took {span(longest)}; with a heartbeat timeout of "
            f"{span(limit)} a slow save may be taken for a dead task."
        )


# ---- no failure


def _without_failure(case: TriageCase, outcome: TriageOutcome) -> Iterator[str]:
    if outcome.status is JobStatus.COMPLETED:
        yield from _completed(case)
    elif outcome.status is JobStatus.RUNNING:
        yield from _running(case)
    else:
        yield f"The log does not show the state of the job: {outcome.rule}."
    if case.stall.pace is StepPace.BUFFERED:
        yield "Start it with `python -u` or PYTHONUNBUFFERED=1 to see its output in time."


def _completed(case: TriageCase) -> Iterator[str]:
    progress = case.progress
    if progress.last_step is None:
        yield "The job completed."
        return
    yield f"The job completed; its last step was {progress.last_step}."
    if progress.total_steps and not progress.complete:
        yield (
            f"Its log shows fewer steps than the {progress.total_steps} that were requested: "
            "lines may be missing."
        )


def _running(case: TriageCase) -> Iterator[str]:
    if case.progress.last_step is not None:
        yield f"Training is running, at step {case.progress.last_step}."
        return
    yield "The job is running."
    phase = case.phase
    if phase is not None:
        duration = ""
        if phase.seconds:
            normal = "longer than normal" if phase.late else "which is normal so far"
            duration = f" for {span(phase.seconds)}, {normal}"
        yield f"It is in start-up phase {phase.number}, {phase.name}{duration}."
