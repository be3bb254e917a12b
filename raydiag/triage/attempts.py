"""A job that is requeued keeps its id: what its attempts achieved together."""

from collections.abc import Sequence
from itertools import pairwise

from raydiag.joblog.facts import JobFacts, LoggedSave
from raydiag.triage.decision import TriageOutcome
from raydiag.triage.progress import project, reference_steps
from raydiag.triage.verdict import Attempt, Attempts, Moment
from raydiag.triage.wording import first_known


def attempts(
    facts: JobFacts, judged: Sequence[tuple[JobFacts, TriageOutcome]], moment: Moment
) -> Attempts | None:
    """All runs of the job; None for a job with one run that no scheduler requeues.

    `judged`: the runs, oldest first. Efficiency is a definition of our own: productive time, which
    ends with the last save of an attempt, over the wall time of all.
    """
    held = moment.scheduler is not None and moment.scheduler.held
    if len(judged) < 2 and not held:
        return None
    runs = [_attempt(index, *run) for index, run in enumerate(judged)]
    limit = facts.header.max_requeue_times
    return Attempts(
        attempts=tuple(runs),
        efficiency=_efficiency(runs),
        downtime_s=_downtime_s([run_facts for run_facts, _ in judged]),
        requeues_left=None if limit is None else max(0, limit - (len(runs) - 1)),
        held=held,
    )


def _attempt(index: int, facts: JobFacts, outcome: TriageOutcome) -> Attempt:
    progress = project(facts, None)
    was_saved = bool(_finished_saves(facts))
    return Attempt(
        index=index,
        log=main_log(facts),
        status=outcome.status,
        primary=outcome.primary,
        first_step=progress.first_step,
        last_step=progress.last_step,
        reached_save=was_saved or progress.last_checkpoint is not None,
        wall_s=wall_s(facts),
        productive_s=_productive_s(facts),
    )


def main_log(facts: JobFacts) -> str:
    """The newest main log; what was asked for, where there is none."""
    return next(reversed(facts.resolved.logs), facts.resolved.asked)


def wall_s(facts: JobFacts) -> float | None:
    """By the summary, else from the first to the last time in the log."""
    if facts.summary is not None and facts.summary.wall_s is not None:
        return facts.summary.wall_s
    if facts.first_time is None or facts.last_time is None:
        return None
    return max(0.0, facts.last_time - facts.first_time)


def _efficiency(runs: Sequence[Attempt]) -> float | None:
    total_s = productive_s = 0.0
    for run in runs:
        if run.wall_s is None or run.productive_s is None:
            return None
        total_s += run.wall_s
        productive_s += run.productive_s
    return min(1.0, productive_s / total_s) if total_s > 0 else None


def _productive_s(facts: JobFacts) -> float | None:
    """From the attempt's start to its last save; by step times where the log has no clock."""
    saves = _finished_saves(facts)
    if saves and facts.first_time is not None:
        time = first_known(saves[-1].time, saves[-1].near_time)
        if time is not None:
            return max(0.0, time - facts.first_time)
    progress, (steps, _) = project(facts, None), reference_steps(facts)
    if not saves and progress.last_checkpoint is None:
        return 0.0
    if steps is None or progress.step_time_s is None or progress.last_checkpoint is None:
        return None
    return (progress.last_checkpoint - steps.runs[-1].first_step + 1) * progress.step_time_s


def _finished_saves(facts: JobFacts) -> list[LoggedSave]:
    return [save for save in facts.saves if save.event == "finished"]


def _downtime_s(runs: Sequence[JobFacts]) -> float | None:
    """Time between attempts in which nothing ran; None where a log has no clock."""
    total_s = 0.0
    for earlier, later in pairwise(runs):
        if earlier.last_time is None or later.first_time is None:
            return None
        total_s += max(0.0, later.first_time - earlier.last_time)
    return total_s
