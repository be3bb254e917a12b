"""How a hang looks: all tasks at one step, or some of them behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from raydiag.joblog.facts import JobFacts
from raydiag.joblog.step_facts import WriterProgress
from raydiag.triage.stall import StallJudgement
from raydiag.triage.verdict import TrainingProgress

_ONE_STEP = 1  # a task that is one step behind may only not have printed it yet
_ACCUSE_AT_MOST = 0.5  # of the tasks: more of them behind are not stragglers


@dataclass(frozen=True)
class Front:
    """Where the tasks stopped."""

    tasks: int
    step: int  # of most tasks
    behind: tuple[WriterProgress, ...]  # stragglers, the furthest behind first

    @property
    def uniform(self) -> bool:
        return not self.behind


def front(facts: JobFacts) -> Optional[Front]:
    """Last step by task; None without step lines."""
    steps = facts.steps
    if steps is None or not steps.writers:
        return None
    writers = [one for one in steps.writers if one.last_step >= _start_of_run(facts)]
    if not writers:
        return None
    most, _ = Counter(one.last_step for one in writers).most_common(1)[0]
    newest = max(one.last_step for one in writers)
    behind = sorted(
        (one for one in writers if newest - one.last_step > _ONE_STEP),
        key=lambda one: (one.last_step, one.where),
    )
    if len(behind) > _ACCUSE_AT_MOST * len(writers):
        behind = []
    return Front(len(writers), newest if behind else most, tuple(behind))


def _start_of_run(facts: JobFacts) -> int:
    """A task that printed nothing in this run tells nothing about it."""
    steps = facts.steps
    return steps.runs[-1].first_step if steps is not None and steps.runs else 0


def reached_barrier(facts: JobFacts) -> bool:
    """All tasks wait before the first collective: no step, and everyone at the barrier."""
    expected = facts.header.nnodes or 1
    return facts.steps is None and len(facts.barrier_writers) >= expected


def sentences(
    facts: JobFacts, progress: TrainingProgress, stall: StallJudgement, live: bool
) -> Iterator[str]:
    """What happened, and what kind of hang it is."""
    since = f" {span(stall.since_s)}" if stall.since_s is not None else ""
    if facts.steps is None:
        yield (
            f"All {len(facts.barrier_writers)} tasks reached the barrier before the training loop "
            f"and no step followed{' for' + since if since else ''}: the first collective hangs."
        )
        return
    if stall.basis == "wall time":
        yield (
            f"Steps stopped after step {progress.last_step}: of the wall time{since} are explained "
            "by no step and no stage."
        )
    else:
        yield (
            f"Step {progress.last_step} was the last one; for{since} no step followed, where "
            f"{span(stall.limit_s)} would be the most that is normal."
        )
    where = front(facts)
    if where is None:
        return
    if where.behind:
        names = ", ".join(_named(one) for one in where.behind[:4])
        more = f" and {len(where.behind) - 4} more" if len(where.behind) > 4 else ""
        yield (
            f"Not all tasks stopped at the same step: {names}{more} fell behind step {where.step} "
            "first, so look there."
        )
    elif where.tasks > 1:
        yield (
            f"All {where.tasks} tasks stopped at the same step without an error, which is a "
            "deadlock in a collective (RCCL, NCCL) rather than a dead node."
        )
    else:
        yield "No error stands before the stall: a deadlock in a collective is the usual cause."


def _named(one: WriterProgress) -> str:
    host = f" on {one.host}" if one.host else ""
    return f"task {one.where}{host} (step {one.last_step})"


def straggler(facts: JobFacts) -> Optional[WriterProgress]:
    """The task furthest behind; None where all stopped together."""
    where = front(facts)
    return where.behind[0] if where is not None and where.behind else None


def span(seconds: Optional[float]) -> str:
    """A duration for sentences: `90 s`, `49 min`, `3.2 h`."""
    if seconds is None:
        return "an unknown time"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
