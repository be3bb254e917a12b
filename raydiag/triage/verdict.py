"""What triage says about a job: the types between judging and showing.

Times are Unix seconds UTC, durations seconds. None means that nothing tells, never zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from raydiag.joblog.artefacts import Artefact
from raydiag.joblog.facts import Match, Resolved
from raydiag.joblog.slurm import SlurmJob
from raydiag.model import Diagnosis


class JobStatus(str, Enum):
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RUNNING = "running"
    HANGING = "hanging"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Moment:
    """When a job is judged, and what is known of it from outside its logs."""

    now: float | None  # None: at the end of a log that shows no time
    log_end: bool = False  # the question is what the log said when it ended
    alive: bool | None = None  # None: nobody says whether the job still exists
    source: str = ""  # who says so: "--job-state", "squeue"
    scheduler: SlurmJob | None = None
    artefact: Artefact | None = None  # newest checkpoint or event file of the job


@dataclass(frozen=True)
class Throughput:
    """How fast training was early and is now; means of ten steps each."""

    unit: str  # tokens/s/device, samples/s, TFLOP/s/device, steps/s
    early: float
    early_steps: tuple[int, int]
    late: float
    late_steps: tuple[int, int]
    change_percent: float  # negative: slower
    pattern: str  # steady, constant, gradual, phased, dip
    since_step: int | None  # where the drop begins; None without one
    degraded: bool


@dataclass(frozen=True)
class TrainingProgress:
    """Where training stands. Steps as the log numbers them."""

    start: str | None = None  # "fresh" or "restored from checkpoint step N"
    first_step: int | None = None  # of this run
    last_step: int | None = None
    total_steps: int | None = None
    steps_this_run: int | None = None
    steps_done: int | None = None  # with those of earlier runs
    percent: float | None = None
    step_time_s: float | None = None  # steady-state mean
    step_interval: int = 1  # steps from one printed line to the next
    last_step_time: float | None = None
    expected_step: int | None = None  # by `now`, were nothing wrong
    stalled_s: float | None = None  # since the last step; None unless it stalled
    unexplained_s: float | None = None  # wall time that no step and no stage accounts for
    checkpoint_period: int | None = None
    last_checkpoint: int | None = None  # periodic one of this run
    progress_lost_steps: int | None = None
    progress_lost_s: float | None = None
    time_remaining_s: float | None = None
    complete: bool = False  # the last step is the final one
    source: str = ""  # file of the step lines where it is not the job's log
    throughput: Throughput | None = None


@dataclass(frozen=True)
class Task:
    """One task of the job."""

    task: str
    host: str | None
    last_step: int | None
    exit_code: int | None


@dataclass(frozen=True)
class Phase:
    """How far start-up has come, for jobs that print its marks."""

    name: str
    number: int  # 1 to 7
    done: tuple[str, ...]  # phases that are over
    seconds: float | None  # in this phase
    normal_s: float  # what it normally takes at most
    late: bool
    advice: str
    line: int
    file: str
    raw: str


@dataclass(frozen=True)
class Attempt:
    """One run of a job that was requeued."""

    index: int
    log: str
    status: JobStatus
    primary: str | None
    first_step: int | None
    last_step: int | None
    reached_save: bool  # the criterion of a restart that worked
    wall_s: float | None
    productive_s: float | None  # up to its last save


@dataclass(frozen=True)
class Attempts:
    """All runs of one job id, oldest first."""

    attempts: tuple[Attempt, ...]
    efficiency: float | None  # productive time of all wall time, 0 to 1
    downtime_s: float | None  # between attempts
    requeues_left: int | None
    held: bool  # it waits in the queue, held, to be released


@dataclass(frozen=True)
class Verdict:
    """The answer about one job."""

    resolved: Resolved
    log: str
    job_id: str | None
    job_name: str | None
    status: JobStatus
    primary: str | None  # failure class; None for a job that is completed or running
    stage: str | None
    cascade: tuple[str, ...]  # classes, root first
    rule: str  # what decided
    story: tuple[str, ...]  # what happened, in sentences
    progress: TrainingProgress
    tasks: tuple[Task, ...]
    diagnosis: Diagnosis  # the primary's finding stands first
    origin: Match | None = None  # the line where it began
    tunnels: tuple[str, ...] = ()
    dashboards: Mapping[str, object] = field(default_factory=dict)
    live: bool = False  # dashboards may still answer
    phase: Phase | None = None
    attempts: Attempts | None = None
    notes: tuple[str, ...] = ()
    next_steps: Sequence[str] = ()
