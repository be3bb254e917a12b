"""Jobs that ended badly: what failed, what hung, what somebody cancelled.

A timeout, a cancellation or a heartbeat alarm is how a job ends; an error or a hang before is why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from raydiag import catalog
from raydiag.model import Confidence
from raydiag.triage import hang, heartbeat
from raydiag.triage.decision import TERMINATED, TriageCase, TriageOutcome, chain_of
from raydiag.triage.first_cause import FirstCause, cause, chain
from raydiag.triage.stall import ended_silence
from raydiag.triage.symptoms import CONSEQUENCE, ROOT, Symptom, failed_exits, live
from raydiag.triage.verdict import JobStatus

# Of exceptions that a signal raises in a process that is told to end.
_TOLD_TO_END = ("KeyboardInterrupt", "SignalException", "SIGTERM", "SIGINT", "signal: Terminated")
_NO_NUMBER = re.compile(r"\b(?:nan|inf|infinite|(?:non-?|not )finite)\b", re.IGNORECASE)


def failed(case: TriageCase, end_time: Optional[float], rule: str) -> TriageOutcome:
    """A failure for sure; what caused it: a hang that something ended, or the first error."""
    first = _first_cause(case, case.live)
    if first is None or catalog.failure(first.symptom.failure_class).ends_hang:
        # Anything else says itself why the job failed.
        hung = hang_behind(case, first, end_time)
        if hung is not None:
            return replace(hung, status=JobStatus.FAILED)
    first = first or cause(live(case.found))  # also what training mostly goes on with
    if first is not None:
        return _by(JobStatus.FAILED, first)
    if case.divergence is not None and case.divergence.lasting:
        return _diverged(JobStatus.FAILED, case.live)
    exits = failed_exits(case.facts)
    killed = any((one.code or 0) > 128 or one.signal for one in exits)
    code = case.facts.summary.exit_code if case.facts.summary else None
    primary = "signal-kill" if killed or (code or 0) > 128 else "stage-fail"
    told = f"{rule}; nothing in the log says why"
    return TriageOutcome(
        JobStatus.FAILED, primary, told, None, (primary,), None, Confidence.POSSIBLE
    )


def _first_cause(case: TriageCase, found: Sequence[Symptom]) -> Optional[FirstCause]:
    """The cause among symptoms; an accused task that had failed before comes before the accuser."""
    first = cause(found)
    if first is None or first.symptom.failure_class not in (
        "heartbeat-timeout",
        "python-exception",
    ):
        return first
    if first.symptom.failure_class == "heartbeat-timeout":
        guilty = heartbeat.accused(case.facts, found).guilty
        if guilty is not None:
            rule = "an accused task had failed before the heartbeat timeout"
            return FirstCause(guilty, rule, chain(guilty, found))
    elif (
        case.divergence is not None
        and case.divergence.lasting
        and _NO_NUMBER.search(first.symptom.exception or first.symptom.text)
    ):
        own = replace(first.symptom, failure_class="loss-divergence", line=case.divergence.line)
        rule = "the loss diverged, and the exception says so"
        return FirstCause(own, rule, chain(own, found))
    return first


def hang_behind(
    case: TriageCase, first: Optional[FirstCause], end_time: Optional[float]
) -> Optional[TriageOutcome]:
    """A hang that a timeout, a cancellation or a heartbeat alarm ended; None without one."""
    facts, found = case.facts, case.live
    if first is not None and heartbeat.accused(facts, found).guilty is not None:
        return None
    times = [one.near_time for one in found if one.near_time is not None]
    end = min(times) if times else end_time
    if end is None:
        end = facts.last_time
    stall = ended_silence(facts, case.progress, end)
    if stall is None:
        return None
    if first is None:
        rule = "steps had stopped long before the job ended"
    elif first.symptom.failure_class == "heartbeat-timeout":
        rule = "cascade: a hang blocks the heartbeats, the heartbeat timeout ends the job"
    else:
        rule = "steps had stopped long before; what came then only ended the job"
    cascade = chain_of("hang", found)
    return TriageOutcome(JobStatus.FAILED, "hang", rule, None, cascade, stall, sureness(case))


def _is_node_failure(one: Symptom) -> bool:
    return one.failure_class == "node-fail" and one.code not in (*TERMINATED, None)


def sureness(case: TriageCase) -> Confidence:
    """All tasks at one step is what a deadlock looks like; else one of them may have died."""
    where = hang.front(case.facts)
    return Confidence.LIKELY if where is None or where.uniform else Confidence.POSSIBLE


def cancelled(case: TriageCase, end_time: Optional[float]) -> TriageOutcome:
    """Cancellation is how it ended: an earlier failure, or a hang, is why."""
    ordered = [one for one in case.live if one.failure_class == "cancelled"]
    end = ordered[0].order if ordered else None
    earlier = [one for one in case.live if _came_before(one, end)]
    first = _first_cause(case, earlier)
    if first is not None:
        outcome = _by(JobStatus.CANCELLED, first)
        return replace(
            outcome, cascade=chain_of(first.symptom.failure_class, case.live, "cancelled")
        )
    beaten = [one for one in case.live if one.failure_class in ("heartbeat-timeout",)]
    hung = hang_behind(case, cause(beaten), end_time)
    if hung is not None:
        cascade = chain_of("hang", beaten, "cancelled")
        return replace(hung, status=JobStatus.CANCELLED, cascade=cascade)
    if beaten:
        told = cause(beaten)
        assert told is not None
        return _by(JobStatus.CANCELLED, told)
    if case.divergence is not None and case.divergence.lasting:
        return _diverged(JobStatus.CANCELLED, ordered)
    origin = ordered[0] if ordered else None
    rule = "cancelled; nothing went wrong before"
    return TriageOutcome(
        JobStatus.CANCELLED, "cancelled", rule, origin, ("cancelled",), None, Confidence.CONFIRMED
    )


def _came_before(one: Symptom, end: Optional[tuple[int, int]]) -> bool:
    """A failure of its own, not what processes print when they are told to end."""
    ended = one.is_mechanism or one.failure_class == "heartbeat-timeout"
    if ended or one.role == CONSEQUENCE:
        return _is_node_failure(one)
    if any(word in (one.exception or one.text) for word in _TOLD_TO_END):
        return False
    return end is None or one.order < end


def _diverged(status: JobStatus, found: Sequence[Symptom]) -> TriageOutcome:
    rule = "the loss is no number, and nothing else went wrong before"
    return TriageOutcome(status, "loss-divergence", rule, None, chain_of("loss-divergence", found))


def _by(status: JobStatus, first: FirstCause) -> TriageOutcome:
    one = first.symptom
    sure = Confidence.CONFIRMED if one.role == ROOT else Confidence.LIKELY
    if one.failure_class == "heartbeat-timeout":
        sure = Confidence.LIKELY
    return TriageOutcome(status, one.failure_class, first.rule, one, first.cascade, None, sure)
