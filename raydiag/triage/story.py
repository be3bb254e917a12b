"""What happened, in one to four sentences."""

from __future__ import annotations

from collections.abc import Iterator

from raydiag import catalog
from raydiag.joblog.facts import JobFacts
from raydiag.triage import deaths, hang, heartbeat
from raydiag.triage.decision import TriageCase, TriageOutcome
from raydiag.triage.stall import StepPace
from raydiag.triage.symptoms import Symptom, failed_exits
from raydiag.triage.verdict import JobStatus

_QUOTE = 160  # characters of an exception in a sentence


def story(case: TriageCase, outcome: TriageOutcome) -> tuple[str, ...]:
    """Sentences for "What happened", the first one the answer."""
    return tuple(_sentences(case, outcome))


def _sentences(case: TriageCase, outcome: TriageOutcome) -> Iterator[str]:
    if outcome.primary is None:
        yield from _without_failure(case, outcome)
        return
    facts, progress = case.facts, case.progress
    if outcome.primary == "hang" and outcome.stall is not None:
        if case.phase is not None and case.phase.late:
            span = hang.span(case.phase.seconds)
            yield f"Start-up is in phase {case.phase.number} ({case.phase.name}) since {span}."
        else:
            live = outcome.status is JobStatus.HANGING
            yield from hang.sentences(facts, progress, outcome.stall, live)
        yield from _ended_by(outcome)
        if outcome.status is JobStatus.HANGING and not case.moment.alive:
            yield (
                "Nobody says whether the job still exists: if it has ended, it died without a "
                "summary (--job-state tells)."
            )
    elif outcome.primary == "heartbeat-timeout":
        yield from heartbeat.sentences(facts, heartbeat.accused(facts, case.live), progress)
    elif outcome.primary == "unknown-death":
        yield from deaths.sentences(facts, case.moment)
    elif outcome.primary == "soft-success":
        yield (
            f"All {progress.total_steps} steps were done; only the shut-down went wrong "
            f"({_status(facts)}). Nothing is lost, and nothing has to be run again."
        )
    else:
        yield from _error(case, outcome)


def _error(case: TriageCase, outcome: TriageOutcome) -> Iterator[str]:
    origin = outcome.origin
    title = catalog.failures()[outcome.primary or ""].title
    where = ""
    if origin is not None:
        parts = [f"task {origin.task}" if origin.task else "", origin.host or ""]
        where = " on ".join(part for part in parts if part)
        where = f" (first seen: {where})" if where else ""
    yield f"{title}{where}."
    said = _exception(origin) if origin is not None else ""
    if said:
        yield f"It said: {said[:_QUOTE]}{'...' if len(said) > _QUOTE else ''}"
    if outcome.primary == "checkpoint-fs-error":
        yield from _checkpoints(case.facts)
    exits = failed_exits(case.facts)
    if outcome.primary in ("node-fail", "signal-kill", "stage-fail") and exits:
        yield from deaths.node_sentences(exits, case.facts)
    if len(outcome.cascade) > 1:
        yield f"What followed from it: {', '.join(outcome.cascade[1:])}."


def _exception(origin: Symptom) -> str:
    """The exception's own words, where there is one."""
    if origin.exception:
        return origin.exception
    raised = origin.failure_class == "python-exception" and origin.match is not None
    return origin.match.text.strip() if raised and origin.match is not None else ""


def _checkpoints(facts: JobFacts) -> Iterator[str]:
    """Which saves worked and which did not, as the other tasks tell."""
    failed = sorted({save.step for save in facts.saves if save.event == "failed" and save.step})
    done = sorted({save.step for save in facts.saves if save.event == "finished" and save.step})
    if failed:
        yield f"The save of step {failed[-1]} failed."
    if failed and failed[-1] in done:
        yield "Other tasks say that they have saved it: it may be intact, check its directory."
    elif done:
        yield f"The newest save that worked is that of step {done[-1]}."
    longest = max((save.seconds or 0.0 for save in facts.saves), default=0.0)
    limit = facts.header.heartbeat_timeout_s
    if longest and limit and longest > limit / 2:
        yield (
            f"The longest save took {hang.span(longest)}; with a heartbeat timeout of "
            f"{hang.span(limit)} a slow one may be taken for a dead task."
        )


def _ended_by(outcome: TriageOutcome) -> Iterator[str]:
    ends = [one for one in outcome.cascade if one != "hang"]
    if ends:
        yield f"What ended the job then ({', '.join(ends)}) is a consequence."


def _without_failure(case: TriageCase, outcome: TriageOutcome) -> Iterator[str]:
    progress = case.progress
    last = progress.last_step
    if outcome.status is JobStatus.COMPLETED:
        yield "The job ended well" + ("." if last is None else f"; its last step was {last}.")
        if last is not None and progress.total_steps and not progress.complete:
            yield (
                f"Its log shows fewer steps than the {progress.total_steps} that were asked for: "
                "lines may be missing."
            )
    elif outcome.status is JobStatus.RUNNING:
        yield "Training goes on" + ("." if last is None else f", at step {last}.")
        if case.phase is not None and last is None:
            late = "longer than normal" if case.phase.late else "which is normal so far"
            span = f" for {hang.span(case.phase.seconds)}, {late}" if case.phase.seconds else ""
            yield f"It is in start-up phase {case.phase.number}, {case.phase.name}{span}."
    else:
        yield f"The log does not tell how the job stands: {outcome.rule}."
    if case.stall.pace is StepPace.BUFFERED:
        yield "Start it with `python -u` or PYTHONUNBUFFERED=1 to see its output in time."


def _status(facts: JobFacts) -> str:
    return facts.summary.status_text if facts.summary is not None else "no summary"
