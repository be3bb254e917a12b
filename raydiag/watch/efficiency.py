"""Training-time efficiency: of all wall time of a job, how much made progress that was kept.

    efficiency = productive time / wall time over all attempts, with the time between them

Productive is the time of steps that were kept, each at the job's usual pace. Kept are the steps up
to the attempt's last save, or those that the next attempt goes on from, or all of a job that
completed or still runs. Every other second has one name: the parts add up to the wall time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from raydiag.triage.verdict import JobStatus


@dataclass
class TimeSpent:
    """Seconds of wall time by what they went into."""

    productive: float = 0.0  # steps that were kept, at the usual pace
    image: float = 0.0  # pulling and loading the container
    startup: float = 0.0  # everything else before steps are at their usual pace, compiling included
    restore: float = 0.0  # loading a checkpoint, where the log tells it
    save: float = 0.0  # what saves added to steps
    slow: float = 0.0  # what steps took beyond the usual pace
    stall: float = 0.0  # no step for ten times the usual step, or the end of a hang
    lost: float = 0.0  # steps that were done again, or never saved
    down: float = 0.0  # between attempts
    queue: float = 0.0  # the part of that in the scheduler's queue, where it tells
    other: float = 0.0  # the log does not tell

    @property
    def total(self) -> float:
        """The wall time."""
        return float(sum(vars(self).values()))

    def add(self, spent: "TimeSpent") -> None:
        """Part by part."""
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(spent, part.name))


PARTS = tuple(part.name for part in fields(TimeSpent))


@dataclass(frozen=True)
class AttemptTime:
    """One attempt and where its time went."""

    index: int
    source: str  # its log, or the event file
    status: JobStatus
    primary: str | None  # failure class; None where nothing failed, or where nobody judged
    start: float | None  # Unix seconds UTC
    end: float | None
    first_step: int | None
    last_step: int | None
    kept_step: int | None  # the last step that was kept
    reached_save: bool  # the criterion of a restart that worked
    spent: TimeSpent | None  # with the time before it in `down` and `queue`; None: not known


@dataclass(frozen=True)
class JobEfficiency:
    """One job over all its attempts."""

    name: str
    job_id: str | None
    step_time_s: float | None  # the usual pace
    step_time_source: str  # --step-seconds, log, saves; "" where it is not known
    attempts: tuple[AttemptTime, ...]
    notes: tuple[str, ...] = ()
    spent: TimeSpent | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spent", summed(attempt.spent for attempt in self.attempts))

    @property
    def efficiency(self) -> float | None:
        """0 to 1; None where the time of an attempt is not known."""
        return efficiency(self.spent)

    @property
    def restarts(self) -> int:
        """Attempts after the first."""
        return max(0, len(self.attempts) - 1)


def summed(parts: Iterable[TimeSpent | None]) -> TimeSpent | None:
    """All of them together; None where one of them is not known, or none is there."""
    known = list(parts)
    if not known:
        return None
    total = TimeSpent()
    for spent in known:
        if spent is None:
            return None
        total.add(spent)
    return total


def efficiency(spent: TimeSpent | None) -> float | None:
    """Productive time of all wall time, 0 to 1; None without wall time."""
    if spent is None or spent.total <= 0:
        return None
    return min(1.0, spent.productive / spent.total)


def all_together(jobs: Sequence[JobEfficiency]) -> TimeSpent | None:
    """Of the jobs whose time is known."""
    return summed(job.spent for job in jobs if job.spent is not None)
