"""How a hang looks: all tasks at one step, or some of them behind."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from raydiag.joblog.facts import JobFacts, WriterProgress
from raydiag.triage.stall import StallJudgement
from raydiag.triage.verdict import TrainingProgress
from raydiag.triage.wording import listed, span, task_on_host

_ONE_STEP = 1  # a task that is one step behind may only not have printed it yet
_ACCUSE_AT_MOST = 0.5  # of the tasks: more of them behind are not stragglers
_NAMED = 4  # stragglers in a sentence


@dataclass(frozen=True)
class Front:
    """Where the tasks stopped."""

    tasks: int
    step: int  # of most tasks
    behind: tuple[WriterProgress, ...]  # stragglers, the furthest behind first


def front(facts: JobFacts) -> Front | None:
    """Last step by task; None without step lines."""
    steps = facts.steps
    if steps is None:
        return None
    # A task that printed nothing in this run tells nothing about it.
    start = steps.runs[-1].first_step if steps.runs else 0
    writers = [writer for writer in steps.writers if writer.last_step >= start]
    if not writers:
        return None
    last_steps = Counter(map(attrgetter("last_step"), writers))
    newest = max(last_steps)
    behind = [writer for writer in writers if newest - writer.last_step > _ONE_STEP]
    if not behind or len(behind) > _ACCUSE_AT_MOST * len(writers):
        [(most_common, _)] = last_steps.most_common(1)
        return Front(len(writers), most_common, ())
    return Front(len(writers), newest, tuple(sorted(behind, key=attrgetter("last_step", "where"))))


def reached_barrier(facts: JobFacts) -> bool:
    """All tasks wait before the first collective: no step, and everyone at the barrier."""
    expected = facts.header.nnodes or 1
    return facts.steps is None and len(facts.barrier_writers) >= expected


def sentences(facts: JobFacts, progress: TrainingProgress, stall: StallJudgement) -> Iterator[str]:
    """What happened, and what kind of hang it is."""
    silence = "" if stall.since_s is None else span(stall.since_s)
    if facts.steps is None:
        yield (
            f"All {len(facts.barrier_writers)} tasks reached the barrier before the training loop,"
            f" and no step followed{_for(silence)}: the first collective hangs."
        )
        return
    if stall.basis == "wall time":
        yield (
            f"Steps stopped after step {progress.last_step}: no step and no stage accounts for"
            f" {silence or 'part'} of the wall time."
        )
    else:
        yield (
            f"Step {progress.last_step} was the last one. No step followed{_for(silence)}; up to "
            f"{span(stall.limit_s)} would be normal."
        )
    yield from _front_sentences(front(facts))


def _for(silence: str) -> str:
    return f" for {silence}" if silence else ""


def _front_sentences(tasks_front: Front | None) -> Iterator[str]:
    """What it means where the tasks stopped."""
    if tasks_front is None:
        return
    if tasks_front.behind:
        stragglers = listed(map(_name, tasks_front.behind), _NAMED)
        yield (
            f"Not all tasks stopped at the same step: {stragglers} fell behind "
            f"step {tasks_front.step} first. Start there."
        )
    elif tasks_front.tasks > 1:
        yield (
            f"All {tasks_front.tasks} tasks stopped at the same step without an error. That points"
            " to a deadlock in a collective (RCCL, NCCL) rather than to a dead node."
        )
    else:
        yield "No error precedes the stall: a deadlock in a collective is the usual cause."


def _name(writer: WriterProgress) -> str:
    return f"{task_on_host(writer.where, writer.host)} (step {writer.last_step})"


def straggler(facts: JobFacts) -> WriterProgress | None:
    """The task furthest behind; None where all stopped together."""
    tasks_front = front(facts)
    if tasks_front is None:
        return None
    return next(iter(tasks_front.behind), None)
