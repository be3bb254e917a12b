"""Which status a job has, and which failure class decided: the table of all cases.

A summary speaks first; without one, what ended the job; then whether steps advance. "Unknown" is an
answer: a job is hanging or dead only where something shows it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from raydiag.joblog.facts import JobFacts
from raydiag.joblog.script_facts import Summary
from raydiag.model import Confidence
from raydiag.triage import deaths, hang
from raydiag.triage.decision import TERMINATED, TriageCase, TriageOutcome, chain_of
from raydiag.triage.endings import cancelled, failed, hang_behind, sureness
from raydiag.triage.stall import UNEXPLAINED_S, StepPace
from raydiag.triage.symptoms import CONSEQUENCE, ROOT, Symptom, failed_exits
from raydiag.triage.verdict import JobStatus

# What only a trainer prints, when its steps are done; a script says "completed" after anything.
_TRAINERS_WORD = (
    "'train_runtime':",
    "[after training is done]",
    "`Trainer.fit` stopped",
    "run_stop",
)
_ABANDONED_S = 86400.0  # after a day of silence, a job of which nobody knows may be long gone


def decide(case: TriageCase) -> TriageOutcome:
    """The status of the job and its primary failure."""
    if deaths.died_in_prolog(case.facts, case.moment.scheduler):
        rule = "no log was ever written"
        return TriageOutcome(
            JobStatus.FAILED, "prolog-kill-no-log", rule, None, ("prolog-kill-no-log",)
        )
    summary = _summary_of_this_run(case.facts)
    if summary is None:
        return _without_summary(case)
    if summary.word is None:
        return _summary_without_status(case)
    code = summary.exit_code
    if summary.word == "SUCCESS" or code == 0:
        return TriageOutcome(JobStatus.COMPLETED, rule="summary: success")
    if _is_soft_success(case, code):
        rule = "the last step was done before the job ended with an error"
        cascade = chain_of("soft-success", case.live)
        status = JobStatus.CANCELLED if code in TERMINATED else JobStatus.FAILED
        return TriageOutcome(
            status, "soft-success", rule, None, cascade, None, Confidence.CONFIRMED
        )
    if code in TERMINATED or "CANCELLED" in summary.reason:
        return cancelled(case, summary.time)
    return failed(case, summary.time, f"summary: exit {code}")


def _summary_of_this_run(facts: JobFacts) -> Optional[Summary]:
    """A summary above the steps of a later run in the same file is of the run before."""
    summary, steps = facts.summary, facts.steps
    if summary is None or steps is None or not steps.runs or steps.file != summary.file:
        return summary
    return None if steps.runs[-1].first_line > summary.line else summary


def _is_soft_success(case: TriageCase, code: Optional[int]) -> bool:
    """All steps done, and the end went wrong; a checkpoint that failed is a real loss."""
    lost = {"checkpoint-fs-error", "disk-full"} & {one.failure_class for one in case.live}
    return case.progress.complete and code in (1, 143) and not lost


def _summary_without_status(case: TriageCase) -> TriageOutcome:
    rule = "summary without status"
    if case.progress.complete:
        return TriageOutcome(JobStatus.COMPLETED, rule=f"{rule}, the last step is done")
    if case.live:
        return failed(case, None, rule)
    return TriageOutcome(JobStatus.UNKNOWN, rule=rule)


def _without_summary(case: TriageCase) -> TriageOutcome:
    if _is_done(case):
        return TriageOutcome(
            JobStatus.COMPLETED, rule="training is done: its last step, or its own word"
        )
    if case.live and _shows_an_end(case) and not _goes_on(case):
        return _ended_by_error(case)
    scheduler = case.moment.scheduler
    if scheduler is not None and scheduler.waiting:
        return TriageOutcome(JobStatus.UNKNOWN, rule="it waits in the queue to be started again")
    if case.moment.alive is False:
        return _ended_in_silence(case)
    return _still_there(case)


def _is_done(case: TriageCase) -> bool:
    """All steps, or a closing word; errors before it stay errors, a rough teardown after it not."""
    marker, word = case.facts.done_markers[-1] if case.facts.done_markers else (None, "")
    steps = case.facts.steps
    if marker is not None and steps is not None and steps.regular and marker < steps.last_line:
        marker = None
    if marker is None:
        return case.progress.complete and not case.live
    trusted = any(own in word for own in _TRAINERS_WORD)
    return not any(
        (one.order[1] < marker and not (trusted and one.weak))
        or (one.role == ROOT and one.is_specific)
        for one in case.live
    )


def _shows_an_end(case: TriageCase) -> bool:
    """Weak signs are also seen on jobs that go on: they count at the very end of a log only."""
    facts = case.facts
    if case.moment.alive is False or any(not one.weak for one in case.live):
        return True
    main = {file.path for file in facts.files if file.role in ("main", "piece")}
    return any(one.line >= facts.tail_first_line for one in case.live if one.file in main)


def _goes_on(case: TriageCase) -> bool:
    """The job is known to be alive and its steps are not known to have stopped."""
    if not case.moment.alive or case.moment.log_end or failed_exits(case.facts):
        return False
    return case.stall.pace in (StepPace.ADVANCING, StepPace.UNKNOWN, StepPace.BUFFERED) and (
        case.facts.steps is not None
    )


def _ended_by_error(case: TriageCase) -> TriageOutcome:
    ends = [one.order for one in case.live if one.failure_class == "cancelled"]
    hard = [one for one in case.live if _is_own(one)]
    # A scheduler also says "cancelled" when it ends the tasks that a failed one leaves behind.
    if ends and not any(one.order <= min(ends) for one in hard):
        return cancelled(case, case.facts.last_time)
    outcome = failed(case, case.facts.last_time, "no summary")
    if outcome.primary == "cancelled":
        return cancelled(case, case.facts.last_time)
    if case.moment.alive and case.stall.pace is StepPace.STALLED:
        return replace(outcome, status=JobStatus.HANGING)
    return outcome


def _is_own(one: Symptom) -> bool:
    """A failure of its own, neither noticed by others nor a cancellation."""
    return one.failure_class != "cancelled" and one.role != CONSEQUENCE


def _ended_in_silence(case: TriageCase) -> TriageOutcome:
    """The scheduler or the user says that it is over; the log does not say why."""
    job = case.moment.scheduler
    if job is not None and job.state == "COMPLETED":
        return TriageOutcome(JobStatus.COMPLETED, rule=f"{job.source}: {job.state}")
    told = deaths.scheduler_class(job)
    if told is None or job is None:
        rule = f"no summary, and the job has ended ({case.moment.source})"
        return TriageOutcome(JobStatus.UNKNOWN, "unknown-death", rule, None, ("unknown-death",))
    rule = f"{job.source}: {job.state}"
    if told in ("cancelled", "train-timeout"):
        hung = hang_behind(case, None, case.facts.last_time)
        status = JobStatus.CANCELLED if told == "cancelled" else JobStatus.FAILED
        if hung is not None:
            return replace(hung, status=status, cascade=chain_of("hang", case.live, told))
        return TriageOutcome(status, told, rule, None, (told,), None, Confidence.CONFIRMED)
    return TriageOutcome(JobStatus.FAILED, told, rule, None, (told,), None, Confidence.CONFIRMED)


def _still_there(case: TriageCase) -> TriageOutcome:
    """Nothing shows an end: running, hanging, or nobody can tell."""
    pace_now, alive = case.stall.pace, case.moment.alive
    if pace_now is StepPace.STALLED:
        if alive is None and _is_abandoned(case):
            rule = "steps stopped, and nobody says whether the job still exists"
            return TriageOutcome(JobStatus.UNKNOWN, rule=rule)
        return _hanging(case, "steps stopped, and nothing shows that the job has ended")
    if pace_now is StepPace.ADVANCING:
        return TriageOutcome(JobStatus.RUNNING, rule="steps advance")
    if pace_now is StepPace.BUFFERED:
        rule = "the log stands still, but checkpoints are written: its output is block-buffered"
        return TriageOutcome(JobStatus.RUNNING, rule=rule)
    if case.facts.steps is None and (told := _stuck_before_training(case)):
        return _hanging(case, told)
    if not any(file.lines and not file.binary for file in case.facts.files) and not alive:
        return TriageOutcome(JobStatus.UNKNOWN, rule="there is no line of text to judge by")
    if alive or case.moment.log_end:
        rule = "nothing shows a stall"
        return TriageOutcome(JobStatus.RUNNING, rule=rule)
    rule = "no time of the last step is known, nor whether the job still exists"
    return TriageOutcome(JobStatus.UNKNOWN, rule=rule)


def _hanging(case: TriageCase, rule: str) -> TriageOutcome:
    stall = case.stall
    if stall.since_s is None:
        stall = replace(
            stall, pace=StepPace.STALLED, since_s=_silence(case), basis="times in the log"
        )
    sure = sureness(case) if case.moment.alive else Confidence.POSSIBLE
    cascade = chain_of("hang", [])
    return TriageOutcome(JobStatus.HANGING, "hang", rule, None, cascade, stall, sure)


def _stuck_before_training(case: TriageCase) -> str:
    """Why a job without any step hangs; empty when it does not, or when nothing can tell."""
    if case.phase is not None and case.phase.late and not case.moment.log_end:
        return f"start-up is stuck in phase {case.phase.number}, {case.phase.name}"
    silence = _silence(case)
    if hang.reached_barrier(case.facts) and silence is not None and silence > UNEXPLAINED_S:
        return "all tasks reached the barrier before training, and no step followed"
    return ""


def _silence(case: TriageCase) -> Optional[float]:
    """Since the newest time in the log."""
    if case.moment.now is None or case.facts.last_time is None:
        return None
    return case.moment.now - case.facts.last_time


def _is_abandoned(case: TriageCase) -> bool:
    times = [case.facts.last_time, *(one.mtime for one in case.facts.files)]
    newest = max((one for one in times if one is not None), default=None)
    return newest is not None and (case.moment.now or 0.0) - newest > _ABANDONED_S
