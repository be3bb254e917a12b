"""A heartbeat timeout says that a task was believed dead, which is mostly wrong.

It is taken for a false alarm by default. It was right when an accused task had failed before. Where
steps had stopped long before it, the job hung and the timeout only ended it.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from raydiag.joblog.facts import Heartbeats, JobFacts
from raydiag.triage.progress import longest_save_s, reference_steps
from raydiag.triage.symptoms import CONSEQUENCE, Symptom
from raydiag.triage.verdict import TrainingProgress
from raydiag.triage.wording import listed, span

CLASS = "heartbeat-timeout"
_SAFETY = 2.0  # factor between what a run needs without a heartbeat and the timeout
_LEADER = "leader task"  # in JAX's message about a coordination service that does not answer
_NAMED = 6  # accused tasks in a sentence


@dataclass(frozen=True)
class Accused:
    """The tasks that are said to be dead."""

    tasks: tuple[int, ...]
    alive: tuple[int, ...]  # those that reported the error themselves
    guilty: Symptom | None  # earlier failure of one of them: the alarm was right


def accused(facts: JobFacts, symptoms: Sequence[Symptom]) -> Accused:
    """Who is accused, who of them wrote after their alleged death, who had really failed."""
    heartbeats = facts.heartbeats
    if heartbeats is None:
        return Accused((), (), None)
    alive = sorted(task for task in set(heartbeats.accused) if str(task) in heartbeats.reporters)
    for symptom in symptoms:
        if _is_guilty(symptom, heartbeats):
            return Accused(heartbeats.accused, tuple(alive), symptom)
    return Accused(heartbeats.accused, tuple(alive), None)


def _is_guilty(symptom: Symptom, heartbeats: Heartbeats) -> bool:
    """A failure of an accused task before the alarm."""
    task = symptom.srun_task
    if task is None and symptom.task is not None and symptom.task.isdigit():
        task = int(symptom.task)
    is_earlier = symptom.file != heartbeats.file or symptom.line < heartbeats.first_line
    is_own_failure = symptom.failure_class != CLASS and symptom.role != CONSEQUENCE
    return task in heartbeats.accused and is_earlier and is_own_failure


def first_accused(facts: JobFacts) -> int | None:
    """The task to look at first; task 0 leads, and is the one when nobody hears the service."""
    if facts.heartbeats is not None and facts.heartbeats.accused:
        return facts.heartbeats.accused[0]
    for match in facts.matches:
        if match.failure_class == CLASS and _LEADER in " ".join((match.text, *match.after)):
            return 0
    return None


_MISSED = re.compile(r"(?:[Tt]imed out|missing) task(?:s| names)?\b")
_TASK = re.compile(r"/task:(\d{1,6})\b")


def missed_at_barrier(facts: JobFacts, failure_class: str) -> int | None:
    """The first task that did not come to a barrier of JAX, where the error names some."""
    for match in facts.matches:
        text = "\n".join((match.text, *match.after))
        missed = _MISSED.search(text) if match.failure_class == failure_class else None
        task = _TASK.search(text, missed.end()) if missed else None
        if task:
            return int(task[1])
    return None


def sentences(facts: JobFacts, tasks: Accused, progress: TrainingProgress) -> Iterator[str]:
    """What a heartbeat timeout without a stall means."""
    if tasks.tasks:
        names = listed(_names(facts, tasks.tasks), _NAMED)
        yield f"The coordination service stopped hearing from task {names}."
    else:
        yield "The coordination service ended the job. This log does not say which task it missed."
    if tasks.alive:
        alive = ", ".join(map(str, tasks.alive[:_NAMED]))
        yield f"Task {alive} reported the error too, so it was alive: a false alarm."
    elif tasks.tasks:
        yield (
            "Nothing in the log shows that they had failed before, so a false alarm is the most "
            "likely reading; GPU power and utilisation of their hosts at that time would settle it."
        )
    if progress.last_step is None:
        yield (
            "No step was completed: the timeout is shorter than compilation and the first "
            "checkpoint take, so it will strike again."
        )
    timeout_s = facts.header.heartbeat_timeout_s
    if timeout_s and facts.heartbeats is not None and facts.heartbeats.time is not None:
        timeout = span(timeout_s)
        yield f"With a timeout of {timeout}, heartbeats stopped {timeout} before that."


def _names(facts: JobFacts, tasks: Iterable[int]) -> Iterator[str]:
    for task in tasks:
        host = facts.hosts.get(task)
        yield f"{task} ({host})" if host else str(task)


def recommended_timeout_s(
    warm_up_s: float, restore_s: float, period_steps: int, step_s: float, save_s: float
) -> float:
    """Heartbeat timeout that a stall of one whole checkpoint interval does not trip."""
    return _SAFETY * (warm_up_s + restore_s + period_steps * step_s + save_s)


def advice(facts: JobFacts, progress: TrainingProgress) -> str | None:
    """The timeout that this job's own figures ask for; None where they are not known."""
    steps, _ = reference_steps(facts)
    if steps is None or progress.step_time_s is None or not progress.checkpoint_period:
        return None
    first_step_s = next(filter(math.isfinite, steps.series.seconds), 0.0)
    save_s = longest_save_s(facts, steps, progress.checkpoint_period)
    needed_s = recommended_timeout_s(
        first_step_s, save_s, progress.checkpoint_period, progress.step_time_s, save_s
    )
    return (
        "By this job's own step and save times, jax_distributed_heartbeat_timeout_seconds should "
        f"be {math.ceil(needed_s)} or more."
    )
