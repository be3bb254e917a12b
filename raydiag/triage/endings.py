"""Jobs that ended badly: what failed, what hung, what somebody cancelled.

A timeout, a cancellation or a heartbeat timeout is how a job ends; an error or a hang before it is
why.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from raydiag.joblog.facts import TERMINATED
from raydiag.model import Confidence
from raydiag.triage import hang, heartbeat
from raydiag.triage.decision import TriageCase, TriageOutcome, single
from raydiag.triage.exits import failed_exits
from raydiag.triage.first_cause import FirstCause, caused_by, first_cause
from raydiag.triage.stall import ended_silence
from raydiag.triage.symptoms import CONSEQUENCE, ROOT, Symptom, cascade, live, of_class
from raydiag.triage.verdict import JobStatus
from raydiag.triage.wording import first_known, known

# In exceptions that a signal raises in a process that is asked to stop.
_STOP_REQUESTS = ("KeyboardInterrupt", "SignalException", "SIGTERM", "SIGINT", "signal: Terminated")
_KILLED = re.compile(r"\b[Kk]illed\b|\bSIG[A-Z]{3,4}\b|signal \d|exit code 1[23]\d|-9\b").search
_NOT_FINITE = re.compile(r"\b(?:nan|inf|infinite|(?:non-?|not )finite)\b", re.IGNORECASE)


def failed(case: TriageCase, end_time: float | None, rule: str) -> TriageOutcome:
    """A failure for sure; what caused it: a hang that something ended, or the first error."""
    cause = _first_cause(case, case.live)
    if cause is None or cause.symptom.failure.ends_hang:
        # Any other class says itself why the job failed.
        hung = hang_behind(case, cause, end_time)
        if hung is not None:
            return replace(hung, status=JobStatus.FAILED)
    cause = cause or first_cause(live(case.symptoms))  # also what training mostly survives
    if cause is not None and not (case.diverged is not None and _only_ended(cause.symptom)):
        return _outcome(JobStatus.FAILED, cause)
    if case.diverged is not None:
        return _diverged(JobStatus.FAILED, case.live)
    primary = "signal-kill" if _is_killed(case) else "stage-fail"
    rule = f"{rule}; nothing in the log says why"
    return single(JobStatus.FAILED, primary, rule, Confidence.POSSIBLE)


def _only_ended(symptom: Symptom) -> bool:
    """It says that a process ended by itself, as one does that has seen its loss diverge."""
    return symptom.failure.mechanism and symptom.code in (None, 1) and not _KILLED(symptom.text)


def _is_killed(case: TriageCase) -> bool:
    """By a signal, as the summary or an exit says."""
    exits = failed_exits(case.facts)
    codes = [task_exit.code or 0 for task_exit in exits]
    if case.facts.summary is not None:
        codes.append(case.facts.summary.exit_code or 0)
    return max(codes, default=0) > 128 or any(task_exit.signal for task_exit in exits)


def _first_cause(case: TriageCase, symptoms: Sequence[Symptom]) -> FirstCause | None:
    """The cause among symptoms; an accused task that had failed before comes before the accuser."""
    cause = first_cause(symptoms)
    if cause is None:
        return None
    if cause.symptom.failure_class == heartbeat.CLASS:
        guilty = heartbeat.accused(case.facts, symptoms).guilty
        if guilty is not None:
            rule = "an accused task had failed before the heartbeat timeout"
            return caused_by(guilty, rule, symptoms)
    if cause.symptom.is_exception and case.diverged is not None:
        text = cause.symptom.exception or cause.symptom.text
        if _NOT_FINITE.search(text):
            root = replace(cause.symptom, failure_class="loss-divergence", line=case.diverged.line)
            return caused_by(root, "the loss diverged, and the exception says so", symptoms)
    return cause


def hang_behind(
    case: TriageCase, cause: FirstCause | None, end_time: float | None
) -> TriageOutcome | None:
    """A hang that a timeout, a cancellation or a heartbeat timeout ended; None without one."""
    if cause is not None and heartbeat.accused(case.facts, case.live).guilty is not None:
        return None
    times = known(symptom.near_time for symptom in case.live)
    end = first_known(min(times, default=end_time), case.facts.last_time)
    stall = ended_silence(case.facts, case.progress, end)
    if stall is None:
        return None
    if cause is None:
        rule = "steps had stopped long before the job ended"
    elif cause.symptom.failure_class == heartbeat.CLASS:
        rule = "cascade: a hang blocks the heartbeats, the heartbeat timeout ends the job"
    else:
        rule = "steps had stopped long before; what came then only ended the job"
    return TriageOutcome(
        JobStatus.FAILED,
        "hang",
        rule,
        cascade("hang", case.live),
        confidence_of_hang(case),
        stall=stall,
    )


def confidence_of_hang(case: TriageCase) -> Confidence:
    """All tasks at one step is what a deadlock looks like; else one of them may have died."""
    if hang.straggler(case.facts) is None:
        return Confidence.LIKELY
    return Confidence.POSSIBLE


def cancelled(case: TriageCase, end_time: float | None) -> TriageOutcome:
    """Cancellation is how it ended: an earlier failure, or a hang, is why."""
    cancellations = of_class(case.live, "cancelled")
    origin = next(iter(cancellations), None)
    end = None if origin is None else origin.order
    cause = _first_cause(case, [symptom for symptom in case.live if _came_before(symptom, end)])
    if cause is not None:
        root = cause.symptom.failure_class
        outcome = _outcome(JobStatus.CANCELLED, cause)
        return replace(outcome, cascade=cascade(root, case.live, "cancelled"))
    timeouts = of_class(case.live, heartbeat.CLASS)
    timeout = first_cause(timeouts)
    hung = hang_behind(case, timeout, end_time)
    if hung is not None:
        classes = cascade("hang", timeouts, "cancelled")
        return replace(hung, status=JobStatus.CANCELLED, cascade=classes)
    if timeout is not None:
        return _outcome(JobStatus.CANCELLED, timeout)
    if case.diverged is not None:
        return _diverged(JobStatus.CANCELLED, cancellations)
    rule = "cancelled; no failure before"
    outcome = single(JobStatus.CANCELLED, "cancelled", rule, Confidence.CONFIRMED)
    return replace(outcome, origin=origin)


def _came_before(symptom: Symptom, end: tuple[int, int] | None) -> bool:
    """A failure of its own, not what processes print when they are asked to stop."""
    is_notice = symptom.failure.mechanism or symptom.failure_class == heartbeat.CLASS
    if is_notice or symptom.role == CONSEQUENCE:
        return symptom.failure_class == "node-fail" and symptom.code not in (*TERMINATED, None)
    text = symptom.exception or symptom.text
    if any(request in text for request in _STOP_REQUESTS):
        return False
    return end is None or symptom.order < end


def _diverged(status: JobStatus, symptoms: Sequence[Symptom]) -> TriageOutcome:
    rule = "the loss is not finite, and no other failure came before"
    return TriageOutcome(status, "loss-divergence", rule, cascade("loss-divergence", symptoms))


def _outcome(status: JobStatus, cause: FirstCause) -> TriageOutcome:
    symptom = cause.symptom
    is_certain = symptom.role == ROOT and symptom.failure_class != heartbeat.CLASS
    return TriageOutcome(
        status,
        symptom.failure_class,
        cause.rule,
        cause.cascade,
        Confidence.CONFIRMED if is_certain else Confidence.LIKELY,
        symptom,
    )
