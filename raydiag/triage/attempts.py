"""A job that is requeued keeps its id: what its attempts achieved together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from raydiag.joblog.facts import JobFacts
from raydiag.triage.progress import project, reference_steps
from raydiag.triage.verdict import Attempt, Attempts, JobStatus, Moment


def attempts(
    facts: JobFacts,
    judged: Sequence[tuple[JobFacts, JobStatus, Optional[str]]],
    moment: Moment,
) -> Optional[Attempts]:
    """All runs of the job, oldest first; None for a job with one run that no scheduler requeues.

    `judged`: facts, status and primary class of each. Efficiency is a definition of our own:
    productive time, which ends with the last save of an attempt, over the wall time of all.
    """
    held = moment.scheduler is not None and moment.scheduler.held
    if len(judged) < 2 and not held:
        return None
    told = [_attempt(index, *one) for index, one in enumerate(judged)]
    walls = [one.wall_s for one in told]
    productive = [one.productive_s for one in told]
    efficiency = None
    if None not in walls and None not in productive:
        wall = sum(one for one in walls if one is not None)
        useful = sum(one for one in productive if one is not None)
        efficiency = min(1.0, useful / wall) if wall > 0 else None
    most = facts.header.max_requeue_times
    return Attempts(
        attempts=tuple(told),
        efficiency=efficiency,
        downtime_s=_downtime([one for one, _, _ in judged]),
        requeues_left=None if most is None else max(0, most - (len(told) - 1)),
        held=held,
    )


def _attempt(index: int, facts: JobFacts, status: JobStatus, primary: Optional[str]) -> Attempt:
    progress = project(facts, None)
    log = facts.resolved.logs[-1] if facts.resolved.logs else facts.resolved.asked
    return Attempt(
        index=index,
        log=log,
        status=status,
        primary=primary,
        first_step=progress.first_step,
        last_step=progress.last_step,
        reached_save=any(save.event == "finished" for save in facts.saves)
        or progress.last_checkpoint is not None,
        wall_s=wall_s(facts),
        productive_s=_productive_s(facts),
    )


def wall_s(facts: JobFacts) -> Optional[float]:
    """By the summary, else from the first to the last time in the log."""
    if facts.summary is not None and facts.summary.wall_s is not None:
        return facts.summary.wall_s
    if facts.first_time is None or facts.last_time is None:
        return None
    return max(0.0, facts.last_time - facts.first_time)


def _productive_s(facts: JobFacts) -> Optional[float]:
    """From the attempt's start to its last save; by step times where the log has no clock."""
    saves = [save for save in facts.saves if save.event == "finished"]
    if saves and facts.first_time is not None:
        time = saves[-1].time if saves[-1].time is not None else saves[-1].near_time
        if time is not None:
            return max(0.0, time - facts.first_time)
    progress, (steps, _) = project(facts, None), reference_steps(facts)
    if not saves and progress.last_checkpoint is None:
        return 0.0
    if steps is None or progress.step_time_s is None or progress.last_checkpoint is None:
        return None
    return (progress.last_checkpoint - steps.runs[-1].first_step + 1) * progress.step_time_s


def _downtime(runs: Sequence[JobFacts]) -> Optional[float]:
    """Time between attempts in which nothing ran; None where a log has no clock."""
    total = 0.0
    for before, after in zip(runs, runs[1:], strict=False):
        if before.last_time is None or after.first_time is None:
            return None
        total += max(0.0, after.first_time - before.last_time)
    return total
