"""Which status a job has, and which failure class decided: the table of all cases.

A summary decides first; without one, what ended the job; then whether steps advance. "Unknown" is
an answer: a job is hanging or dead only where something shows it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from raydiag.joblog.facts import TERMINATED, JobFacts, LoggedSteps, Summary
from raydiag.joblog.slurm import SlurmJob
from raydiag.model import Confidence
from raydiag.triage import deaths, hang
from raydiag.triage.decision import TriageCase, TriageOutcome, single
from raydiag.triage.endings import cancelled, confidence_of_hang, failed, hang_behind
from raydiag.triage.exits import failed_exits
from raydiag.triage.kernel_cause import explained
from raydiag.triage.stall import UNEXPLAINED_S, StepPace, mtimes
from raydiag.triage.symptoms import CONSEQUENCE, ROOT, Symptom, cascade, of_class, strong
from raydiag.triage.tables import TABLES
from raydiag.triage.verdict import JobStatus
from raydiag.triage.wording import known

_TRAINER_MARKERS: Sequence[str] = TABLES["trainer_markers"]
_ABANDONED_S = 86400.0  # after a day of silence a job of unknown state may be long gone


def decide(case: TriageCase) -> TriageOutcome:
    """The status of the job and its primary failure."""
    return explained(case, _by_job(case))


def _by_job(case: TriageCase) -> TriageOutcome:
    """By what the job itself and its scheduler say."""
    if deaths.died_in_prolog(case.facts, case.moment.scheduler):
        return single(JobStatus.FAILED, "prolog-kill-no-log", "no log was ever written")
    summary = _summary_of_this_run(case.facts)
    if summary is None:
        return _without_summary(case)
    if summary.word is None:
        return _summary_without_status(case)
    if summary.word == "SUCCESS" or summary.exit_code == 0:
        return TriageOutcome(JobStatus.COMPLETED, rule="summary: success")
    if _is_soft_success(case, summary.exit_code):
        return _soft_success(case, summary.exit_code)
    if summary.exit_code in TERMINATED or "CANCELLED" in summary.reason:
        return cancelled(case, summary.time)
    return failed(case, summary.time, f"summary: exit {summary.exit_code}")


def _unknown(rule: str) -> TriageOutcome:
    return TriageOutcome(JobStatus.UNKNOWN, rule=rule)


# ---- with a summary


def _summary_of_this_run(facts: JobFacts) -> Summary | None:
    """A summary above the steps of a later run in the same file belongs to the run before."""
    summary, steps = facts.summary, facts.steps
    if summary is None or steps is None or not steps.runs or steps.file != summary.file:
        return summary
    return None if steps.runs[-1].first_line > summary.line else summary


def _is_soft_success(case: TriageCase, code: int | None) -> bool:
    """All steps done, and the end went wrong; a checkpoint that failed is a real loss."""
    if not case.progress.complete or code not in (1, 143):
        return False
    return not of_class(case.live, "checkpoint-fs-error", "disk-full")


def _failed_after_last_step(case: TriageCase) -> bool:
    """Only what started the processes complains, after the last step and no save that was cut."""
    steps, facts = case.facts.steps, case.facts
    if steps is None or not _is_soft_success(case, 1):
        return False
    if any(task_exit.code not in (1, 143) for task_exit in failed_exits(facts)):
        return False
    if facts.saves and facts.saves[-1].event in ("started", "failed"):
        return False
    return all(map(partial(_is_shutdown_error, steps), case.live))


def _is_shutdown_error(steps: LoggedSteps, symptom: Symptom) -> bool:
    is_later = symptom.file == steps.file and symptom.line > steps.last_line
    return is_later and symptom.failure.mechanism and symptom.failure_class != "signal-kill"


def _soft_success(case: TriageCase, code: int | None) -> TriageOutcome:
    return TriageOutcome(
        JobStatus.CANCELLED if code in TERMINATED else JobStatus.FAILED,
        "soft-success",
        "the last step was done before the job ended with an error",
        cascade("soft-success", case.live),
        Confidence.CONFIRMED,
    )


def _summary_without_status(case: TriageCase) -> TriageOutcome:
    rule = "summary without status"
    if case.progress.complete:
        return TriageOutcome(JobStatus.COMPLETED, rule=f"{rule}, the last step is done")
    if case.live:
        return failed(case, None, rule)
    return _unknown(rule)


# ---- without a summary


def _without_summary(case: TriageCase) -> TriageOutcome:
    if _is_done(case):
        rule = "training is done: its last step, or its own closing message"
        return TriageOutcome(JobStatus.COMPLETED, rule=rule)
    scheduler = case.moment.scheduler
    was_ended = all(symptom.failure.mechanism for symptom in case.live)
    if scheduler is not None and scheduler.state == "COMPLETED" and was_ended:
        # What ended then was another one's step of the same job: an exporter's, a monitor's.
        return TriageOutcome(JobStatus.COMPLETED, rule=f"{scheduler.source}: COMPLETED")
    if case.live and _shows_an_end(case) and not _goes_on(case):
        if _failed_after_last_step(case):
            return _soft_success(case, None)
        return _ended_by_error(case)
    if scheduler is not None and scheduler.waiting:
        return _unknown("the job waits in the queue to be started again")
    if case.moment.alive is False:
        return _ended_in_silence(case, scheduler)
    return _still_there(case)


def _is_done(case: TriageCase) -> bool:
    """All steps, or a closing message: a rough teardown after it does not count.

    A script says "completed" after anything, a trainer only when it got over what came before.
    """
    marker = _closing_message(case.facts)
    if marker is None:
        return case.progress.complete and not case.live
    line, text = marker
    before = [symptom for symptom in case.live if symptom.line < line]
    after = [symptom for symptom in case.live if symptom.line >= line]
    if any(symptom.role == ROOT and symptom.is_specific for symptom in after):
        return False
    if not any(message in text for message in _TRAINER_MARKERS):
        return not before
    # Ray's word only says how the shell ended, so steps have to show that an error was got over.
    if strong(before) and not (case.progress.complete or _went_on(case, before)):
        return False
    return not after or not strong(before)


def _went_on(case: TriageCase, before: Sequence[Symptom]) -> bool:
    steps = case.facts.steps
    return steps is not None and all(symptom.line < steps.last_line for symptom in before)


def _closing_message(facts: JobFacts) -> tuple[int, str] | None:
    """(line, text) of the last one; None without one, or when steps follow it."""
    if not facts.done_markers:
        return None
    line, text = facts.done_markers[-1]
    steps = facts.steps
    if steps is not None and steps.regular and line < steps.last_line:
        return None
    launches = [mark.last_line for mark in facts.phases if mark.phase == "launch"]
    return None if max(launches, default=0) > line else (line, text)


def _shows_an_end(case: TriageCase) -> bool:
    """Jobs that go on show weak signs too: those count at the very end of a log only."""
    facts = case.facts
    if case.moment.alive is False or strong(case.live):
        return True
    main_logs = {file.path for file in facts.files if file.role in ("main", "piece")}
    last_line = next(filter(str.strip, reversed(facts.tail)), "")
    overcome = set(map(_words, filter(attrgetter("survived"), case.symptoms)))
    return any(
        symptom.file in main_logs
        and symptom.line >= facts.tail_first_line
        and (_words(symptom) not in overcome or _words(symptom) in last_line)
        for symptom in case.live
    )


def _words(symptom: Symptom) -> str:
    """What the job got over once it got over again, unless it is the last word."""
    return symptom.exception or symptom.text


def _goes_on(case: TriageCase) -> bool:
    """The job is known to be alive and its steps are not known to have stopped."""
    if not case.moment.alive or case.moment.log_end or failed_exits(case.facts):
        return False
    return case.stall.pace is not StepPace.STALLED and case.facts.steps is not None


def _ended_by_error(case: TriageCase) -> TriageOutcome:
    end_time = case.facts.last_time
    cancellations = of_class(case.live, "cancelled")
    # A scheduler also says "cancelled" when it ends the tasks that a failed one leaves behind.
    if cancellations:
        end = min(symptom.order for symptom in cancellations)
        earlier = [symptom for symptom in case.live if symptom.order <= end]
        if not any(map(_is_own_failure, earlier)):
            return cancelled(case, end_time)
    outcome = failed(case, end_time, "no summary")
    if outcome.primary == "cancelled":
        return cancelled(case, end_time)
    if case.moment.alive and case.stall.pace is StepPace.STALLED:
        return replace(outcome, status=JobStatus.HANGING)
    return outcome


def _is_own_failure(symptom: Symptom) -> bool:
    """Neither noticed by others nor a cancellation."""
    return symptom.failure_class != "cancelled" and symptom.role != CONSEQUENCE


def _ended_in_silence(case: TriageCase, job: SlurmJob | None) -> TriageOutcome:
    """The scheduler or the user says that the job is over; the log does not say why."""
    failure_class = deaths.scheduler_class(job)
    if failure_class is None or job is None:
        rule = f"no summary, and the job has ended ({case.moment.source})"
        return single(JobStatus.UNKNOWN, "unknown-death", rule)
    status = JobStatus.CANCELLED if failure_class == "cancelled" else JobStatus.FAILED
    if failure_class in ("cancelled", "train-timeout"):
        hung = hang_behind(case, None, case.facts.last_time)
        if hung is not None:
            classes = cascade("hang", case.live, failure_class)
            return replace(hung, status=status, cascade=classes)
    return single(status, failure_class, f"{job.source}: {job.state}", Confidence.CONFIRMED)


# ---- no sign of an end


def _still_there(case: TriageCase) -> TriageOutcome:
    """Nothing shows an end: running, hanging, or nobody can tell."""
    alive = case.moment.alive
    if case.stall.pace is StepPace.STALLED:
        if alive is None and _is_abandoned(case):
            return _unknown("steps stopped, and it is not known whether the job still exists")
        return _hanging(case, "steps stopped, and nothing shows that the job has ended")
    if case.stall.pace is StepPace.ADVANCING:
        return TriageOutcome(JobStatus.RUNNING, rule="steps advance")
    if case.stall.pace is StepPace.BUFFERED:
        rule = "the log stands still, but checkpoints are written: its output is block-buffered"
        return TriageOutcome(JobStatus.RUNNING, rule=rule)
    rule = _stuck_before_training(case)
    if rule:
        return _hanging(case, rule)
    if not alive and not any(file.lines and not file.binary for file in case.facts.files):
        return _unknown("there is no line of text to judge by")
    if alive or case.moment.log_end:
        return TriageOutcome(JobStatus.RUNNING, rule="nothing shows a stall")
    return _unknown("neither the time of the last step is known nor whether the job still exists")


def _hanging(case: TriageCase, rule: str) -> TriageOutcome:
    stall = case.stall
    if stall.since_s is None:
        stall = replace(
            stall, pace=StepPace.STALLED, since_s=_silence_s(case), basis="times in the log"
        )
    confidence = confidence_of_hang(case) if case.moment.alive else Confidence.POSSIBLE
    return replace(single(JobStatus.HANGING, "hang", rule, confidence), stall=stall)


def _stuck_before_training(case: TriageCase) -> str:
    """Why a job without any step hangs; empty when it does not, or when nothing can tell."""
    if case.facts.steps is not None:
        return ""
    phase = case.late_phase
    if phase is not None and not case.moment.log_end:
        return f"start-up is stuck in phase {phase.number}, {phase.name}"
    silence_s = _silence_s(case)
    if silence_s is None or silence_s <= UNEXPLAINED_S or not hang.reached_barrier(case.facts):
        return ""
    return "all tasks reached the barrier before training, and no step followed"


def _silence_s(case: TriageCase) -> float | None:
    """Since the newest time in the log; since its mtime where all times stand above the barrier."""
    facts, newest = case.facts, case.facts.last_time
    if (facts.barrier_line or 0) > (facts.last_time_line or 0):
        newest = None if case.moment.log_end else max(mtimes(facts), default=None)
    if case.moment.now is None or newest is None:
        return None
    return case.moment.now - newest


def _is_abandoned(case: TriageCase) -> bool:
    times = [case.facts.last_time, *(file.mtime for file in case.facts.files)]
    newest = max(known(times), default=None)
    return newest is not None and (case.moment.now or 0.0) - newest > _ABANDONED_S
