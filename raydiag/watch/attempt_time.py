"""Where a job's time went, by its logs: each second of each attempt under one name.

The usual pace is the median step without warm-up and saves. What a step took beyond it is of the
save beside it, of the warm-up, a stall (ten times the usual step) or slow. Where a log has no step
lines, the time up to its last save is productive, and all of it when the job completed.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from raydiag.joblog.facts import WARM_UP, JobFacts, LoggedSteps, StepRun
from raydiag.joblog.slurm import SlurmRun
from raydiag.triage.progress import checkpoint_period, project, reference_steps, step_interval
from raydiag.triage.verdict import JobStatus, Verdict
from raydiag.triage.wording import first_known
from raydiag.watch.efficiency import AttemptTime, JobEfficiency, TimeSpent

_HANGS = ("hang", "rccl-hang", "nccl-timeout", "heartbeat-timeout", "train-timeout")
_IMAGE_WORDS = ("pull", "image", "container", "enroot", "squash")
_STALL_STEPS, _STALL_S, _HANG_S = 10, 30.0, 300.0
_NOISE = 1.1  # steps up to this much longer than the usual one are as usual


@dataclass(frozen=True)
class _LoggedStep:
    """Steps that one line stands for."""

    step: int
    steps: int  # since the line before
    seconds: float  # of all of them; NaN where nothing tells
    gap_s: float  # wall time since the line before that the steps do not account for
    is_warm_up: bool
    saves: bool  # beside a save


@dataclass
class _TrainingRun:
    """Steps that follow each other, and the log that holds them."""

    facts: JobFacts
    status: JobStatus
    primary: str | None
    run: StepRun | None = None  # None: a log without steps
    steps: list[_LoggedStep] = field(default_factory=list)
    begin: float | None = None  # Unix seconds
    end: float | None = None
    window_s: float | None = None  # from begin to end, also where a log has no clock
    trained_from: float | None = None
    trained_until: float | None = None


def by_logs(
    facts: JobFacts,
    verdict: Verdict,
    step_seconds: float | None,
    slurm_runs: Sequence[SlurmRun] = (),
) -> JobEfficiency:
    """All attempts of a job, in its logs' order; `slurm_runs` date them where there are as many."""
    judged = _judged(facts, verdict)
    if len(slurm_runs) != len(judged):
        slurm_runs = ()
    runs: list[_TrainingRun] = []
    for index, (log_facts, status, primary) in enumerate(judged):
        slurm_run = dict(enumerate(slurm_runs)).get(index)
        runs += _runs_of_log(log_facts, status, primary, slurm_run)
    pace_s, source = step_seconds, "--step-seconds"
    if pace_s is None:
        pace_s, source = _usual_pace(runs)
    attempts = []
    for index, run in enumerate(runs):
        following = next((later for later in runs[index + 1 :] if later.run is not None), None)
        attempts.append(_attempt(index, run, following, pace_s))
    if len(runs) != len(judged):  # several of one log
        slurm_runs = ()
    attempts = _with_time_between(attempts, slurm_runs)
    return JobEfficiency(
        name=verdict.job_name or facts.resolved.name or verdict.log,
        job_id=verdict.job_id,
        step_time_s=pace_s,
        step_time_source=source,
        attempts=tuple(attempts),
        notes=tuple(_notes(runs)),
    )


def _judged(facts: JobFacts, verdict: Verdict) -> list[tuple[JobFacts, JobStatus, str | None]]:
    """Each log with how its attempt ended, oldest first."""
    judged: list[tuple[JobFacts, JobStatus, str | None]] = []
    earlier = verdict.attempts.attempts if verdict.attempts else ()
    for log_facts, attempt in zip(facts.attempts, earlier, strict=False):
        judged.append((log_facts, attempt.status, attempt.primary))
    return [*judged, (facts, verdict.status, verdict.primary)]


def _notes(runs: Sequence[_TrainingRun]) -> Iterator[str]:
    for run in runs:
        log = next(reversed(run.facts.resolved.logs), run.facts.resolved.asked)
        if run.window_s is None:
            yield f"{log}: its time is not known: no times on its lines, and no summary"
        elif run.run is None:
            yield f"{log}: no step lines; only saves and the end tell what was kept"


# ---- runs of steps in a log


def _runs_of_log(
    facts: JobFacts, status: JobStatus, primary: str | None, slurm_run: SlurmRun | None
) -> list[_TrainingRun]:
    """One for each time that training started; steps that fall back open the next."""
    steps, _ = reference_steps(facts)
    begin, end = facts.first_time, facts.last_time
    if slurm_run is not None:
        begin, end = slurm_run.start, slurm_run.end or end
    if steps is None or not steps.runs:
        return [_bounded(_TrainingRun(facts, status, primary), begin, _end(facts, begin, end))]
    runs: list[_TrainingRun] = []
    for index, logged_run in enumerate(steps.runs):
        is_last = index == len(steps.runs) - 1
        run = _TrainingRun(
            facts, status if is_last else JobStatus.FAILED, primary if is_last else None
        )
        _take_steps(run, steps, logged_run)
        if not runs and begin is not None and run.trained_from is not None:
            begin = min(begin, run.trained_from)  # the first line with a time may be of a step
        until = _end(facts, begin, end) if is_last else run.trained_until
        runs.append(_bounded(run, begin, until, runs))
        begin = until
    return runs


def _end(facts: JobFacts, begin: float | None, end: float | None) -> float | None:
    """The summary's end, where it is later than the last time in the log."""
    if facts.summary is None or facts.summary.wall_s is None or begin is None:
        return end
    return max(end or begin, begin + facts.summary.wall_s)


def _bounded(
    run: _TrainingRun, begin: float | None, end: float | None, earlier: Sequence[_TrainingRun] = ()
) -> _TrainingRun:
    """With its window; without a clock the steps' own seconds, of the last one the rest."""
    run.begin, run.end = begin, end
    summary = run.facts.summary
    steps_s = sum(step.seconds for step in run.steps if math.isfinite(step.seconds))
    if begin is not None and end is not None:
        run.window_s = max(0.0, end - begin)
    elif run.primary is None and run.status is JobStatus.FAILED and steps_s:
        run.window_s = steps_s  # training was started again in the same log
    elif summary is not None and summary.wall_s is not None:
        run.window_s = max(0.0, summary.wall_s - sum(each.window_s or 0.0 for each in earlier))
    return run


def _take_steps(run: _TrainingRun, steps: LoggedSteps, logged_run: StepRun) -> None:
    """The run's step lines with their times."""
    run.run = logged_run
    series, interval = steps.series, step_interval(logged_run)
    saves, saved_steps = _saves(run.facts)
    # Step, time and line of the line before.
    earlier = (logged_run.first_step - interval, math.nan, -1.0)
    for number, seconds, time, line in zip(
        series.step, series.seconds, series.time, series.line, strict=True
    ):
        step = int(number)
        if not logged_run.first_line <= line <= logged_run.last_line:
            continue
        count = max(1, step - earlier[0])
        between_s = time - earlier[1]
        taken_s = _finite_or(seconds * count, between_s)
        run.steps.append(
            _LoggedStep(
                step=step,
                steps=count,
                seconds=taken_s,
                gap_s=max(0.0, _finite_or(between_s - taken_s, 0.0)),
                is_warm_up=step < logged_run.first_step + WARM_UP,
                saves=_is_beside_save(saves, earlier[2], line)
                or bool({step, step - 1} & saved_steps),
            )
        )
        if math.isfinite(time):
            if run.trained_from is None:
                run.trained_from = time - _finite_or(taken_s, 0.0)
            run.trained_until = time
        earlier = step, time, line


def _saves(facts: JobFacts) -> tuple[list[int], frozenset[int]]:
    """The lines of saves, ascending; and the steps that were saved, where no line tells."""
    lines = sorted(save.line for save in facts.saves)
    steps, _ = reference_steps(facts)
    period = checkpoint_period(facts.header)
    if lines or not period or steps is None:
        return lines, frozenset()
    return lines, frozenset(range(period, steps.last_step + 1, period))


def _is_beside_save(save_lines: Sequence[int], after: float, until: float) -> bool:
    place = bisect_left(save_lines, after)
    return place < len(save_lines) and save_lines[place] <= until


def _finite_or(value: float, otherwise: float) -> float:
    return value if math.isfinite(value) else otherwise


def _usual_pace(runs: Sequence[_TrainingRun]) -> tuple[float | None, str]:
    """Seconds of the median step without warm-up and saves, else of all steps; and the source."""
    usual, all_paces = [], []
    for run in runs:
        for step in run.steps:
            if math.isfinite(step.seconds):
                all_paces.append(step.seconds / step.steps)
                if not step.is_warm_up and not step.saves:
                    usual.append(step.seconds / step.steps)
    if not all_paces:
        return None, ""
    return median(usual or all_paces), "log"


# ---- one attempt


def _attempt(
    index: int, run: _TrainingRun, following: _TrainingRun | None, pace_s: float | None
) -> AttemptTime:
    kept = _kept_step(run, following)
    progress = project(run.facts, None)
    saved = any(save.event == "finished" for save in run.facts.saves)
    log = next(reversed(run.facts.resolved.logs), run.facts.resolved.asked)
    return AttemptTime(
        index=index,
        source=log,
        status=run.status,
        primary=run.primary,
        start=run.begin,
        end=run.end,
        first_step=getattr(run.run, "first_step", None),
        last_step=getattr(run.run, "last_step", None),
        kept_step=kept,
        reached_save=saved or progress.last_checkpoint is not None,
        spent=_spent(run, kept, pace_s),
    )


def _kept_step(run: _TrainingRun, following: _TrainingRun | None) -> int | None:
    """The last step that need not be done again; None where the run kept none."""
    if run.run is None:
        return None
    if following is not None and following.run is not None:
        kept = following.run.first_step - 1
    elif run.status in (JobStatus.RUNNING, JobStatus.COMPLETED):
        kept = run.run.last_step
    else:
        saved = project(run.facts, None).last_checkpoint
        if saved is None:
            return None
        kept = saved
    kept = min(kept, run.run.last_step)
    return kept if kept >= run.run.first_step else None


def _spent(run: _TrainingRun, kept: int | None, pace_s: float | None) -> TimeSpent | None:
    if run.window_s is None:
        return None
    spent = TimeSpent()
    if run.run is None or pace_s is None:
        _without_steps(spent, run, run.window_s)
        return _exactly(spent, run.window_s)
    for step in run.steps:
        _count(spent, step, kept, pace_s)
    _before_training(spent, run)
    _after_training(spent, run, pace_s)
    return _exactly(spent, run.window_s)


def _count(spent: TimeSpent, step: _LoggedStep, kept: int | None, pace_s: float) -> None:
    """The seconds of the steps of one line, and of the gap before them."""
    usual_s = step.steps * pace_s
    seconds = _finite_or(step.seconds, usual_s)
    stall_s = max(_STALL_STEPS * pace_s, _STALL_S)
    if step.saves:
        spent.save += step.gap_s
    elif step.gap_s > stall_s:
        spent.stall += step.gap_s
    if kept is None or step.step > kept:
        spent.lost += seconds
        return
    extra_s = max(0.0, seconds - usual_s)
    if seconds <= _NOISE * usual_s:
        extra_s = 0.0
    spent.productive += seconds - extra_s
    if step.saves:
        spent.save += extra_s
    elif step.is_warm_up:
        spent.startup += extra_s
    elif extra_s > stall_s:
        spent.stall += extra_s
    else:
        spent.slow += extra_s


def _before_training(spent: TimeSpent, run: _TrainingRun) -> None:
    """Image, restore, and the rest of the time until the first step began."""
    stages = [stage for stage in run.facts.stages if stage.event != "begin"]
    first_line = getattr(run.run, "first_line", 0)
    image_s = other_s = 0.0
    for stage in stages:
        if stage.line > first_line or stage.name == "Training":
            continue
        if any(word in stage.name.lower() for word in _IMAGE_WORDS):
            image_s += stage.elapsed_s or 0.0
        else:
            other_s += stage.elapsed_s or 0.0
    before_s = image_s + other_s
    if run.begin is not None and run.trained_from is not None:
        before_s = max(0.0, run.trained_from - run.begin)
    loads = [load.seconds for load in run.facts.loads if load.line <= first_line]
    spent.image += min(image_s, before_s)
    spent.restore += min(next(reversed(loads), 0.0), before_s - spent.image)
    spent.startup += before_s - spent.image - spent.restore


def _after_training(spent: TimeSpent, run: _TrainingRun, pace_s: float) -> None:
    """The end of a hang is a stall; what else stands there is left to `other`."""
    is_hang = run.status is JobStatus.HANGING or run.primary in _HANGS
    if run.end is None or run.trained_until is None:  # a log without a clock
        if is_hang and run.window_s is not None:
            spent.stall += max(0.0, run.window_s - spent.total)
        return
    tail_s = run.end - run.trained_until
    is_long = tail_s > max(_STALL_STEPS * pace_s, _HANG_S)
    if is_hang or (is_long and run.status in (JobStatus.FAILED, JobStatus.CANCELLED)):
        spent.stall += max(0.0, tail_s)


def _without_steps(spent: TimeSpent, run: _TrainingRun, window_s: float) -> None:
    """Up to the last save; a job that completed kept everything, one without a save none."""
    if run.status is JobStatus.COMPLETED:
        spent.productive = window_s
        return
    if run.status is JobStatus.HANGING or run.primary in _HANGS:
        spent.stall = window_s
        return
    finished = [save for save in run.facts.saves if save.event == "finished"]
    times = [first_known(save.time, save.near_time) for save in finished]
    saved_at = next(filter(None, reversed(times)), None)
    if saved_at is None or run.begin is None:  # as far as the log tells, it never trained
        spent.startup = window_s
        return
    spent.productive = max(0.0, saved_at - run.begin)
    spent.lost = max(0.0, window_s - spent.productive)


def _exactly(spent: TimeSpent, window_s: float) -> TimeSpent:
    """The parts made to add up: the rest is `other`; printed seconds may be rounded up."""
    total_s = spent.total
    if total_s <= window_s:
        spent.other += window_s - total_s
        return spent
    scaled = {name: seconds * window_s / total_s for name, seconds in vars(spent).items()}
    return TimeSpent(**scaled)


# ---- between attempts


def _with_time_between(
    attempts: Sequence[AttemptTime], slurm_runs: Sequence[SlurmRun]
) -> list[AttemptTime]:
    """With the time before each attempt as down, the part in Slurm's queue as queue."""
    dated = list(attempts[:1])
    for earlier, later in pairwise(attempts):
        spent = later.spent
        if spent is not None and earlier.end is not None and later.start is not None:
            down_s = max(0.0, later.start - earlier.end)
            queue_s = 0.0
            if slurm_runs:
                slurm_run = slurm_runs[later.index]
                queued_from = max(slurm_run.submitted, earlier.end)
                queue_s = min(down_s, max(0.0, slurm_run.start - queued_from))
            spent = replace(spent, down=spent.down + down_s - queue_s, queue=spent.queue + queue_s)
        dated.append(replace(later, spent=spent))
    return dated
