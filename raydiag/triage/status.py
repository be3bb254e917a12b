"""Which status a job has, and which failure class decided: the table of all cases.

A summary speaks first; without one, what ended the job; then whether steps advance. "Unknown" is an
answer: a job is hanging or dead only where something shows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Optional

from raydiag.joblog.facts import JobFacts, Summary
from raydiag.model import Confidence
from raydiag.triage import deaths, hang, heartbeat
from raydiag.triage.causes import Cause, cause, chain
from raydiag.triage.loss import Divergence, divergence
from raydiag.triage.phases import phase
from raydiag.triage.stall import UNEXPLAINED_S, Pace, Stall, ended_silence, pace
from raydiag.triage.symptoms import (
    CONSEQUENCE,
    MECHANISMS,
    NOT_FATAL,
    ROOT,
    Symptom,
    failed_exits,
    live,
    symptoms,
)
from raydiag.triage.verdict import JobStatus, Moment, Phase, Progress

_TERMINATED = (130, 143)
_ABANDONED_S = 86400.0  # after a day of silence, a job of which nobody knows may be long gone
# The ways in which a hang ends; anything else says itself why the job failed.
_ENDS_OF_A_HANG = frozenset(("heartbeat-timeout", "train-timeout", "cancelled", "stage-fail"))
# Of exceptions that a signal raises in a process that is told to end.
_TOLD_TO_END = ("KeyboardInterrupt", "SignalException", "SIGTERM", "SIGINT", "signal: Terminated")
_NO_NUMBER = re.compile(r"\b(?:nan|inf|infinite|(?:non-?|not )finite)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Case:
    """All that a decision rests on."""

    facts: JobFacts
    moment: Moment
    progress: Progress
    found: Sequence[Symptom]
    live: Sequence[Symptom]
    stall: Stall
    divergence: Optional[Divergence]
    phase: Optional[Phase]


@dataclass(frozen=True)
class Outcome:
    """The decision, before it is put in words."""

    status: JobStatus
    primary: Optional[str] = None
    rule: str = ""
    origin: Optional[Symptom] = None
    cascade: tuple[str, ...] = ()
    stall: Optional[Stall] = None  # of a hang
    confidence: Confidence = Confidence.LIKELY


def examined(facts: JobFacts, moment: Moment, progress: Progress) -> Case:
    """Everything that the rules look at, worked out once."""
    found = symptoms(facts)
    return Case(
        facts=facts,
        moment=moment,
        progress=progress,
        found=found,
        live=[one for one in live(found) if one.failure_class not in NOT_FATAL],
        stall=pace(facts, progress, moment),
        divergence=divergence(facts.steps),
        phase=phase(facts, moment),
    )


def decide(case: Case) -> Outcome:
    """The status of the job and its primary failure."""
    if deaths.died_in_prolog(case.facts, case.moment.scheduler):
        rule = "no log was ever written"
        return Outcome(JobStatus.FAILED, "prolog-kill-no-log", rule, None, ("prolog-kill-no-log",))
    summary = _summary_of_this_run(case.facts)
    if summary is None:
        return _without_summary(case)
    if summary.word is None:
        return _summary_without_status(case)
    code = summary.exit_code
    if summary.word == "SUCCESS" or code == 0:
        return Outcome(JobStatus.COMPLETED, rule="summary: success")
    if _is_soft_success(case, code):
        rule = "the last step was done before the job ended with an error"
        cascade = chain_of("soft-success", case.live)
        status = JobStatus.CANCELLED if code in _TERMINATED else JobStatus.FAILED
        return Outcome(status, "soft-success", rule, None, cascade, None, Confidence.CONFIRMED)
    if code in _TERMINATED or "CANCELLED" in summary.reason:
        return _cancelled(case, summary.time)
    return _failed(case, summary.time, f"summary: exit {code}")


def _summary_of_this_run(facts: JobFacts) -> Optional[Summary]:
    """A summary above the steps of a later run in the same file is of the run before."""
    summary, steps = facts.summary, facts.steps
    if summary is None or steps is None or not steps.runs or steps.file != summary.file:
        return summary
    return None if steps.runs[-1].first_line > summary.line else summary


def _is_soft_success(case: Case, code: Optional[int]) -> bool:
    """All steps done, and the end went wrong; a checkpoint that failed is a real loss."""
    lost = {"checkpoint-fs-error", "disk-full"} & {one.failure_class for one in case.live}
    return case.progress.complete and code in (1, 143) and not lost


def _summary_without_status(case: Case) -> Outcome:
    rule = "summary without status"
    if case.progress.complete:
        return Outcome(JobStatus.COMPLETED, rule=f"{rule}, the last step is done")
    if case.live:
        return _failed(case, None, rule)
    return Outcome(JobStatus.UNKNOWN, rule=rule)


# ---- jobs that ended


def _failed(case: Case, end_time: Optional[float], rule: str) -> Outcome:
    """A failure for sure; what caused it: a hang that something ended, or the first error."""
    first = _first_cause(case, case.live)
    if first is None or first.symptom.failure_class in _ENDS_OF_A_HANG:
        hung = _hang_behind(case, first, end_time)
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
    return Outcome(JobStatus.FAILED, primary, told, None, (primary,), None, Confidence.POSSIBLE)


def _first_cause(case: Case, found: Sequence[Symptom]) -> Optional[Cause]:
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
            return Cause(guilty, rule, chain(guilty, found))
    elif (
        case.divergence is not None
        and case.divergence.lasting
        and _NO_NUMBER.search(first.symptom.exception or first.symptom.text)
    ):
        own = replace(first.symptom, failure_class="loss-divergence", line=case.divergence.line)
        rule = "the loss diverged, and the exception says so"
        return Cause(own, rule, chain(own, found))
    return first


def _hang_behind(
    case: Case, first: Optional[Cause], end_time: Optional[float]
) -> Optional[Outcome]:
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
    return Outcome(JobStatus.FAILED, "hang", rule, None, cascade, stall, _sureness(case))


def _is_node_failure(one: Symptom) -> bool:
    return one.failure_class == "node-fail" and one.code not in (*_TERMINATED, None)


def _sureness(case: Case) -> Confidence:
    """All tasks at one step is what a deadlock looks like; else one of them may have died."""
    where = hang.front(case.facts)
    return Confidence.LIKELY if where is None or where.uniform else Confidence.POSSIBLE


def _cancelled(case: Case, end_time: Optional[float]) -> Outcome:
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
    hung = _hang_behind(case, cause(beaten), end_time)
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
    return Outcome(
        JobStatus.CANCELLED, "cancelled", rule, origin, ("cancelled",), None, Confidence.CONFIRMED
    )


def _came_before(one: Symptom, end: Optional[tuple[int, int]]) -> bool:
    """A failure of its own, not what processes print when they are told to end."""
    if one.failure_class in MECHANISMS | {"heartbeat-timeout"} or one.role == CONSEQUENCE:
        return _is_node_failure(one)
    if any(word in (one.exception or one.text) for word in _TOLD_TO_END):
        return False
    return end is None or one.order < end


def _diverged(status: JobStatus, found: Sequence[Symptom]) -> Outcome:
    rule = "the loss is no number, and nothing else went wrong before"
    return Outcome(status, "loss-divergence", rule, None, chain_of("loss-divergence", found))


def _by(status: JobStatus, first: Cause) -> Outcome:
    one = first.symptom
    sure = Confidence.CONFIRMED if one.role == ROOT else Confidence.LIKELY
    if one.failure_class == "heartbeat-timeout":
        sure = Confidence.LIKELY
    return Outcome(status, one.failure_class, first.rule, one, first.cascade, None, sure)


def chain_of(root: str, found: Sequence[Symptom], *more: str) -> tuple[str, ...]:
    """Classes in the order in which they appear, the root first."""
    return tuple(dict.fromkeys([root, *(one.failure_class for one in found), *more]))


# ---- jobs without a summary


def _without_summary(case: Case) -> Outcome:
    if _is_done(case):
        return Outcome(JobStatus.COMPLETED, rule="training is done: its last step, or its own word")
    if case.live and _shows_an_end(case) and not _goes_on(case):
        return _ended_by_error(case)
    scheduler = case.moment.scheduler
    if scheduler is not None and scheduler.waiting:
        return Outcome(JobStatus.UNKNOWN, rule="it waits in the queue to be started again")
    if case.moment.alive is False:
        return _ended_in_silence(case)
    return _still_there(case)


def _is_done(case: Case) -> bool:
    """All steps, or a closing word; errors before it stay errors, a rough teardown after it not."""
    marker = case.facts.done_markers[-1][0] if case.facts.done_markers else None
    steps = case.facts.steps
    if marker is not None and steps is not None and steps.regular and marker < steps.last_line:
        marker = None
    if marker is None:
        return case.progress.complete and not case.live
    return not any(
        one.order[1] < marker or (one.role == ROOT and one.is_specific) for one in case.live
    )


def _shows_an_end(case: Case) -> bool:
    """Weak signs are also seen on jobs that go on: they count at the very end of a log only."""
    facts = case.facts
    if case.moment.alive is False or any(not one.weak for one in case.live):
        return True
    main = {file.path for file in facts.files if file.role in ("main", "piece")}
    return any(one.line >= facts.tail_first_line for one in case.live if one.file in main)


def _goes_on(case: Case) -> bool:
    """The job is known to be alive and its steps are not known to have stopped."""
    if not case.moment.alive or case.moment.log_end or failed_exits(case.facts):
        return False
    return case.stall.pace in (Pace.ADVANCING, Pace.UNKNOWN, Pace.BUFFERED) and (
        case.facts.steps is not None
    )


def _ended_by_error(case: Case) -> Outcome:
    ends = [one.order for one in case.live if one.failure_class == "cancelled"]
    hard = [one for one in case.live if _is_own(one)]
    # A scheduler also says "cancelled" when it ends the tasks that a failed one leaves behind.
    if ends and not any(one.order <= min(ends) for one in hard):
        return _cancelled(case, case.facts.last_time)
    outcome = _failed(case, case.facts.last_time, "no summary")
    if outcome.primary == "cancelled":
        return _cancelled(case, case.facts.last_time)
    if case.moment.alive and case.stall.pace is Pace.STALLED:
        return replace(outcome, status=JobStatus.HANGING)
    return outcome


def _is_own(one: Symptom) -> bool:
    """A failure of its own, neither noticed by others nor a cancellation."""
    return one.failure_class != "cancelled" and one.role != CONSEQUENCE


def _ended_in_silence(case: Case) -> Outcome:
    """The scheduler or the user says that it is over; the log does not say why."""
    job = case.moment.scheduler
    if job is not None and job.state == "COMPLETED":
        return Outcome(JobStatus.COMPLETED, rule=f"{job.source}: {job.state}")
    told = deaths.scheduler_class(job)
    if told is None or job is None:
        rule = f"no summary, and the job has ended ({case.moment.source})"
        return Outcome(JobStatus.UNKNOWN, "unknown-death", rule, None, ("unknown-death",))
    rule = f"{job.source}: {job.state}"
    if told in ("cancelled", "train-timeout"):
        hung = _hang_behind(case, None, case.facts.last_time)
        status = JobStatus.CANCELLED if told == "cancelled" else JobStatus.FAILED
        if hung is not None:
            return replace(hung, status=status, cascade=chain_of("hang", case.live, told))
        return Outcome(status, told, rule, None, (told,), None, Confidence.CONFIRMED)
    return Outcome(JobStatus.FAILED, told, rule, None, (told,), None, Confidence.CONFIRMED)


def _still_there(case: Case) -> Outcome:
    """Nothing shows an end: running, hanging, or nobody can tell."""
    pace_now, alive = case.stall.pace, case.moment.alive
    if pace_now is Pace.STALLED:
        if alive is None and _is_abandoned(case):
            rule = "steps stopped, and nobody says whether the job still exists"
            return Outcome(JobStatus.UNKNOWN, rule=rule)
        return _hanging(case, "steps stopped, and nothing shows that the job has ended")
    if pace_now is Pace.ADVANCING:
        return Outcome(JobStatus.RUNNING, rule="steps advance")
    if pace_now is Pace.BUFFERED:
        rule = "the log stands still, but checkpoints are written: its output is block-buffered"
        return Outcome(JobStatus.RUNNING, rule=rule)
    if case.facts.steps is None and (told := _stuck_before_training(case)):
        return _hanging(case, told)
    if not any(file.lines and not file.binary for file in case.facts.files) and not alive:
        return Outcome(JobStatus.UNKNOWN, rule="there is no line of text to judge by")
    if alive or case.moment.log_end:
        rule = "nothing shows a stall"
        return Outcome(JobStatus.RUNNING, rule=rule)
    rule = "no time of the last step is known, nor whether the job still exists"
    return Outcome(JobStatus.UNKNOWN, rule=rule)


def _hanging(case: Case, rule: str) -> Outcome:
    stall = case.stall
    if stall.since_s is None:
        stall = replace(stall, pace=Pace.STALLED, since_s=_silence(case), basis="times in the log")
    sure = _sureness(case) if case.moment.alive else Confidence.POSSIBLE
    cascade = chain_of("hang", [])
    return Outcome(JobStatus.HANGING, "hang", rule, None, cascade, stall, sure)


def _stuck_before_training(case: Case) -> str:
    """Why a job without any step hangs; empty when it does not, or when nothing can tell."""
    if case.phase is not None and case.phase.late and not case.moment.log_end:
        return f"start-up is stuck in phase {case.phase.number}, {case.phase.name}"
    silence = _silence(case)
    if hang.reached_barrier(case.facts) and silence is not None and silence > UNEXPLAINED_S:
        return "all tasks reached the barrier before training, and no step followed"
    return ""


def _silence(case: Case) -> Optional[float]:
    """Since the newest time in the log."""
    if case.moment.now is None or case.facts.last_time is None:
        return None
    return case.moment.now - case.facts.last_time


def _is_abandoned(case: Case) -> bool:
    times = [case.facts.last_time, *(one.mtime for one in case.facts.files)]
    newest = max((one for one in times if one is not None), default=None)
    return newest is not None and (case.moment.now or 0.0) - newest > _ABANDONED_S
