"""What a job's logs say, without an opinion: the type between joblog and triage, and its parts.

All types of facts are frozen. Times are Unix seconds UTC; a log that prints no time zone is read as
UTC, one that prints no year as of the year of the file's mtime, or of the year before when that
would lie in the future. Line numbers count from 1. What can grow with the log is bounded, with a
count beside.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from raydiag.model import Unread

WARM_UP = 5  # steps

# ---- what the scripts around training print


TERMINATED = (130, 143)  # exit codes of SIGINT and SIGTERM: somebody ended the process


@dataclass(frozen=True)
class Header:
    """What the job said about itself before training; None where the log does not."""

    job_id: str | None = None
    job_name: str | None = None
    nnodes: int | None = None
    nodelist: tuple[str, ...] = ()  # expanded; index = srun task id with one task a node
    ray: bool = False  # RAY_PORT, [Ray] or [Prometheus] lines, or a ray_logs directory
    model_name: str | None = None
    model_alias: str | None = None
    exp_tag: str | None = None
    passthrough: Mapping[str, str] = field(default_factory=dict)  # PASSTHROUGH_ARGS as key=value
    config: Mapping[str, str] = field(default_factory=dict)  # `Config param KEY: VALUE`
    steps: int | None = None  # passthrough first, then config, then what a step line says
    checkpoint_period: int | None = None  # None: not printed; the default is the judge's matter
    enable_checkpointing: bool | None = None
    async_checkpointing: bool | None = None
    heartbeat_timeout_s: float | None = None
    max_requeue_times: int | None = None
    framework: str | None = None  # whose step lines it prints: the id of their format


@dataclass(frozen=True)
class StageEvent:
    """One line of the stage grammar, or an opening line without BEGIN."""

    name: str  # as printed: Preflight, Docker pull, ECC check, Training
    event: str  # begin, end, timeout, failed
    line: int
    elapsed_s: float | None
    exit_code: int | None
    time: float | None
    raw: str
    file: str = ""


@dataclass(frozen=True)
class Summary:
    """The JOB SUMMARY block. The last one counts where a log holds several."""

    line: int
    file: str
    word: str | None  # SUCCESS or FAILED; None: a summary without status
    exit_code: int | None
    reason: str  # what follows the dash; "" when nothing does
    status_line: int | None
    status_text: str
    wall_s: float | None
    time: float | None
    count: int = 1  # summaries in this file


@dataclass(frozen=True)
class Dashboards:
    """Where the job said that its dashboards are."""

    tunnels: tuple[str, ...] = ()  # commands verbatim, at most 8
    head: str | None = None  # host of the tunnel's target
    prometheus_port: int | None = None  # from the tunnel, else from [Prometheus] lines
    prometheus_source: str = ""  # tunnel, started, occupied; "" when nothing says
    prometheus_dir: str | None = None
    tensorboard_port: int | None = None
    ray_fallback_line: int | None = None  # "Ray cluster failed, falling back to non-Ray mode"


@dataclass(frozen=True)
class PhaseMark:
    """A line that shows how far start-up has come."""

    phase: str  # id: dataset, placement, mooncake, trainer-init, engine-init, queues, training, ...
    event: str  # reached, progress, done, error
    first_time: float | None  # on or above its first line
    last_line: int
    last_time: float | None
    raw: str  # newest, verbatim
    file: str = ""


# ---- training: steps, saves, restores


@dataclass(frozen=True)
class StepSeries:
    """Step lines of one writer in file order: parallel arrays of doubles, NaN where not printed.

    Beyond 16384 entries the middle is thinned; the first 256 and the last 4096 are always there.
    `loss_state` keeps a printed nan or inf apart from a loss that was not printed.
    """

    where: str
    step: array[float]
    seconds: array[float]  # of one step, as printed or from the rate; NaN: only `time` can tell
    loss: array[float]
    loss_state: bytes  # one a step: n none, f finite, a nan, i inf, g none and no gradient
    grad_norm: array[float]
    rate: array[float]  # of learning
    balance: array[float]  # loss by which experts are balanced
    tflops: array[float]  # per device
    tokens_per_s: array[float]  # per device where the line says so, see `throughput_unit`
    time: array[float]
    line: array[float]
    throughput_unit: str = ""  # "tokens/s/device", "samples/s", "tokens/s"; "" without


@dataclass
class StepRun:
    """Steps that follow each other upwards in one writer's lines; a jump back opens the next."""

    first_step: int
    last_step: int
    first_line: int
    last_line: int
    first_time: float | None  # printed on the line itself
    last_time: float | None
    steps: int = 0  # different steps seen
    seconds_sum: float = 0.0  # of all its lines that print seconds
    seconds_count: int = 0
    steady_sum: float = 0.0  # without warm-up: steps first_step+5 and later
    steady_count: int = 0
    file: str = ""

    def add_up(self, step: int, seconds: float, weight: int) -> None:
        """Adds a step's seconds, for `weight` steps."""
        if not math.isfinite(seconds):
            return
        self.seconds_sum += seconds * weight
        self.seconds_count += weight
        if step >= self.first_step + WARM_UP:
            self.steady_sum += seconds * weight
            self.steady_count += weight


@dataclass
class WriterProgress:
    """How far one writer has come."""

    where: str
    task: int | None
    rank: int | None
    host: str | None
    last_step: int
    run: int = 0  # index of the run that it is in


@dataclass(frozen=True)
class LoggedSteps:
    """Training progress by the step lines of one format."""

    format: str  # id in the table of formats; huggingface: a bar with that trainer's losses
    zero_based: bool  # the first step is 0, so that T steps end at T-1
    counts_done: bool  # the number is of completed steps (n/m bars): T steps end at T
    total: int | None  # as the step line says ("120/ 5000"); None where it does not
    series: StepSeries
    runs: tuple[StepRun, ...]  # of the reference writer, oldest first; the last 64
    runs_total: int
    writers: tuple[WriterProgress, ...]  # bounded; by task
    last_step: int  # the newest of any writer in the current run
    last_line: int
    last_time: float | None  # printed on that line
    last_near_time: float | None  # newest time printed at or above it
    last_next_time: float | None  # oldest time printed below it: an upper bound
    file: str
    regular: bool = True  # False: a bar that may count anything (downloads, shards), not training


@dataclass(frozen=True)
class LoggedSave:
    """A checkpoint save, as one line or several report it."""

    step: int | None
    event: str  # started, finished, failed
    seconds: float | None
    line: int
    time: float | None
    near_time: float | None
    file: str = ""


@dataclass(frozen=True)
class Restore:
    """What the job says it started from."""

    step: int | None  # None: it found none and starts afresh
    line: int


@dataclass(frozen=True)
class LoadedCheckpoint:
    """How long a checkpoint took to load."""

    seconds: float
    line: int  # of the last rank that said so


# ---- failures: signatures that match, tracebacks, processes that ended


@dataclass(frozen=True)
class Match:
    """A signature in the log, with its evidence.

    Per file, row and writer the first few and the last are kept.
    """

    row: str
    failure_class: str
    role: str
    stage: str
    groups: Mapping[str, str]
    file: str
    line: int
    where: str  # `Prefix.where`
    task: int | None
    rank: int | None
    host: str | None  # from the prefix, else the task's host, else the actor's address
    actor: str | None
    pid: int | None
    ip: str | None
    time: float | None
    near_time: float | None
    text: str  # stripped, as it was matched
    raw: str  # verbatim, cut at 4 KiB
    before: tuple[str, ...]  # verbatim lines above, oldest first
    after: tuple[str, ...]  # verbatim lines below
    exception: str | None  # the line that ends the traceback which this line opens or stands in
    last_step: int | None = None  # newest step of any writer above this line in its file
    offset: int = 0  # bytes before the line in its (uncompressed) file
    frame: str = ""  # file of the innermost frame of that traceback


@dataclass(frozen=True)
class LoggedKernelLine:
    """A line of the kernel log that stands in a job's log, and who brought it."""

    file: str
    line: int
    text: str  # from the kernel's stamp on
    raw: str  # verbatim
    where: str  # `Prefix.where`
    task: int | None
    rank: int | None
    host: str | None  # as the line names it, else as what stands before it, else its task's
    near_time: float | None
    last_step: int | None  # newest step above it


@dataclass(frozen=True)
class Traceback:
    """One exception as Python printed it; equal ones of one writer are kept once."""

    line: int  # of "Traceback (most recent call last):"
    end_line: int  # of the exception
    where: str
    exception: str  # e.g. "ValueError: bad shape"; "" when the log ends before
    time: float | None
    file: str
    frame: str = ""  # file of the innermost frame


@dataclass(frozen=True)
class TaskExit:
    """One process that ended, by whoever noticed."""

    kind: str  # node-exit, srun, actor, torchrun, subprocess
    code: int | None
    signal: int | None
    host: str | None
    task: int | None
    rank: int | None
    where: str
    pid: int | None
    line: int
    time: float | None
    near_time: float | None
    raw: str
    file: str = ""


@dataclass(frozen=True)
class Heartbeats:
    """The tasks that the coordination service calls unhealthy, and who reports the error."""

    accused: tuple[int, ...]  # task ids, ascending
    first_line: int
    time: float | None
    reporters: tuple[str, ...]  # `where` of the writers of "Polled error ..." and the like
    file: str = ""


# ---- files, and all that they say


@dataclass(frozen=True)
class LogFile:
    """One file that was read, or that should have been."""

    path: str
    role: str  # main, piece (rotated), attempt, rank, worker
    size_bytes: int  # compressed size where it is compressed
    read_bytes: int  # uncompressed
    lines: int  # line ends seen, plus one for an unfinished last line
    mtime: float | None  # may support a stall, never prove life
    complete: bool  # the last byte is a line end: the opposite is an abrupt cut
    binary: bool = False  # NUL bytes make up much of its start


@dataclass(frozen=True)
class Resolved:
    """What PATH or JOBID means: files in the order in which they were written."""

    asked: str
    job_id: str | None
    name: str | None  # of the job's configuration: the directory's name without the id
    job_dir: str | None
    logs: tuple[str, ...]  # the newest attempt's main log; rotated pieces oldest first, live last
    attempts: tuple[tuple[str, ...], ...] = ()  # older ones, oldest first, each like `logs`
    rank_logs: tuple[str, ...] = ()  # rank-N.log of Kubernetes jobs, without rank 0's
    worker_logs: tuple[str, ...] = ()  # ray_logs/<host>/**/worker*.out and .err
    ray_log_hosts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # e.g. "the link `log` is broken: ...", in one line each
    empty_dir: bool = False  # a job directory without anything in it, and no log: died in prolog
    kubernetes: bool = False
    batch_script: str | None = None  # *.sbatch or similar beside it, for its directives
    slurm_name: str | None = None  # by which Slurm knows it, where the log is named %x-%j
    series_dir: str | None = None  # the job's Prometheus, where there is one


@dataclass(frozen=True)
class WorkerLogs:
    """The second source of a Ray job: what the workers' own logs say about steps."""

    files: tuple[LogFile, ...] = ()
    files_found: int = 0  # on disk, also those that were not read
    steps: LoggedSteps | None = None  # of the one that came furthest
    restores: tuple[Restore, ...] = ()
    matches: tuple[Match, ...] = ()  # by file and line; `host` is the directory's name
    saves: tuple[LoggedSave, ...] = ()


@dataclass(frozen=True)
class JobFacts:
    """All that the logs of one job say. An attempt is a job of its own, in `attempts`."""

    resolved: Resolved
    files: tuple[LogFile, ...]
    header: Header
    stages: tuple[StageEvent, ...]
    summary: Summary | None
    steps: LoggedSteps | None
    saves: tuple[LoggedSave, ...]  # the first 64 and the last 192 by line
    restores: tuple[Restore, ...]
    matches: tuple[Match, ...]  # by file and line
    tracebacks: tuple[Traceback, ...]
    exits: tuple[TaskExit, ...]
    heartbeats: Heartbeats | None
    dashboards: Dashboards
    phases: tuple[PhaseMark, ...]
    barrier_writers: tuple[str, ...]  # who reached "Synchronizing hosts before training loop"
    barrier_line: int | None
    worker_logs: WorkerLogs
    attempts: tuple[JobFacts, ...]  # earlier ones, oldest first
    first_time: float | None
    last_time: float | None
    last_time_line: int | None
    clock_jumps: int  # times that run backwards by more than a minute
    head: tuple[str, ...]  # verbatim first lines, at most 80
    tail: tuple[str, ...]  # verbatim last lines, at most 200
    tail_first_line: int  # number of tail[0]; 0 without
    last_line_complete: bool
    hosts: Mapping[int, str]  # task id -> host, from lines that carry both, else the node list
    unread: tuple[Unread, ...]
    done_markers: tuple[tuple[int, str], ...] = ()  # (line, text) of "Training completed" and such
    resumed_at: int = 0  # bytes skipped thanks to --state
    loads: tuple[LoadedCheckpoint, ...] = ()
    kernel_lines: tuple[LoggedKernelLine, ...] = ()  # of a `dmesg` or a journal in the log

    @property
    def summary_time(self) -> float | None:
        """When the summary was printed, Unix seconds; None without one, or without a time."""
        return self.summary.time if self.summary is not None else None
