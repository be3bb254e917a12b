"""A heartbeat timeout says that somebody was thought dead, which is mostly wrong.

Default: a false alarm. It was right when an accused task had failed before; and where steps had
stopped long before it, the job hung and the timeout only ended it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from raydiag.joblog.facts import JobFacts
from raydiag.triage.hang import span
from raydiag.triage.progress import longest_save_s, reference_steps
from raydiag.triage.symptoms import CONSEQUENCE, Symptom
from raydiag.triage.verdict import TrainingProgress

_SAFETY = 2.0  # factor between what a run needs without a heartbeat and the timeout
_LEADER = "leader task"  # in JAX's words for a coordination service that does not answer
_NAMED = 6  # accused tasks in a sentence


@dataclass(frozen=True)
class Accused:
    """The tasks that are said to be dead."""

    tasks: tuple[int, ...]
    alive: tuple[int, ...]  # those that reported the error themselves
    guilty: Optional[Symptom]  # earlier failure on one of them: the alarm was right


def accused(facts: JobFacts, found: Sequence[Symptom]) -> Accused:
    """Who is accused, who of them wrote after their alleged death, who had really failed."""
    beats = facts.heartbeats
    if beats is None:
        return Accused((), (), None)
    tasks = set(beats.accused)
    writers = {one for one in beats.reporters if one.isdigit()}
    alive = tuple(sorted(task for task in tasks if str(task) in writers))
    for one in found:
        own = one.srun_task if one.srun_task is not None else _as_task(one.task)
        earlier = one.file != beats.file or one.line < beats.first_line
        real = one.failure_class != "heartbeat-timeout" and one.role != CONSEQUENCE
        if own in tasks and earlier and real:
            return Accused(beats.accused, alive, one)
    return Accused(beats.accused, alive, None)


def first_accused(facts: JobFacts) -> Optional[int]:
    """The task to look at first; task 0 leads, and is the one when nobody hears the service."""
    if facts.heartbeats is not None and facts.heartbeats.accused:
        return facts.heartbeats.accused[0]
    lost = [
        match
        for match in facts.matches
        if match.failure_class == "heartbeat-timeout"
        and _LEADER in " ".join((match.text, *match.after))
    ]
    return 0 if lost else None


def _as_task(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isdigit() else None


def sentences(facts: JobFacts, who: Accused, progress: TrainingProgress) -> Iterator[str]:
    """What a heartbeat timeout without a stall means."""
    names = ", ".join(_named(facts, task) for task in who.tasks[:_NAMED])
    more = f" and {len(who.tasks) - _NAMED} more" if len(who.tasks) > _NAMED else ""
    if names:
        yield f"The coordination service stopped hearing from task {names}{more}."
    else:
        yield "The coordination service ended the job; whom it missed is not in this log."
    if who.alive:
        told = ", ".join(map(str, who.alive[:_NAMED]))
        yield f"Task {told} reported the error too, so it was alive: a false alarm."
    elif who.tasks:
        yield (
            "Nothing in the log shows that they had failed before, so a false alarm is the most "
            "likely reading; GPU power and utilisation of their hosts at that time would settle it."
        )
    if progress.last_step is None:
        yield (
            "No step was completed: the timeout is shorter than compilation and the first "
            "checkpoint take, and it will strike again."
        )
    timeout = facts.header.heartbeat_timeout_s
    beats = facts.heartbeats
    if timeout and beats is not None and beats.time is not None:
        yield f"With a timeout of {span(timeout)}, heartbeats stopped {span(timeout)} before that."


def recommended_timeout_s(
    warm_up_s: float, restore_s: float, period_steps: int, step_s: float, save_s: float
) -> float:
    """Heartbeat timeout that a stall of one whole checkpoint interval does not trip."""
    return _SAFETY * (warm_up_s + restore_s + period_steps * step_s + save_s)


def advice(facts: JobFacts, progress: TrainingProgress) -> Optional[str]:
    """The timeout that this job's own figures ask for; None where they are not known."""
    steps, _ = reference_steps(facts)
    if steps is None or progress.step_time_s is None or not progress.checkpoint_period:
        return None
    first = next((value for value in steps.series.seconds if math.isfinite(value)), 0.0)
    save = longest_save_s(facts, steps, progress.checkpoint_period)
    needed = recommended_timeout_s(
        first, save, progress.checkpoint_period, progress.step_time_s, save
    )
    return (
        f"By this job's own step and save times, jax_distributed_heartbeat_timeout_seconds should "
        f"be {math.ceil(needed)} or more."
    )


def _named(facts: JobFacts, task: int) -> str:
    host = facts.hosts.get(task)
    return f"{task} ({host})" if host else str(task)
