"""What a job's logs say, without an opinion: the types between joblog, triage and the catalog.

Everything is frozen. Times are Unix seconds UTC; a log that prints no time zone is read as UTC, one
that prints no year as of the year of the file's mtime, or of the year before when that would lie in
the future. Line numbers count from 1. What can grow with the log is bounded, with a count beside.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional, Protocol

from raydiag.model import Unread


@dataclass(frozen=True)
class Prefix:
    """Who wrote a line, from what launchers put before it. Fields are None where nothing says."""

    task: Optional[int] = None  # of `srun -l`: index into the job's node list with one task a node
    rank: Optional[int] = None  # global, `[rank3]:`
    local_rank: Optional[int] = None  # `[default0]:`, the same number on every node
    host: Optional[str] = None  # where the prefix names it
    actor: Optional[str] = None  # Ray class or actor name, `(TrainerActor pid=12, ip=10.0.0.2)`
    pid: Optional[int] = None  # of the actor
    ip: Optional[str] = None  # of the actor's node; Ray leaves it out on the driver's own node
    repeated: int = 1  # Ray's `[repeated 15x across cluster]`: lines that this one stands for

    @property
    def where(self) -> str:
        """Shortest name of one writer: the rank, else the task, else the actor's process; or ""."""
        if self.rank is not None:
            return str(self.rank)
        if self.task is not None:
            return f"{self.task}.{self.local_rank}" if self.local_rank else str(self.task)
        if self.local_rank is not None:
            return f"local {self.local_rank}"
        if self.pid is None:
            return ""
        return f"{self.actor or 'pid'} {self.pid}" + (f" {self.ip}" if self.ip else "")


@dataclass(frozen=True)
class JobLogLine:
    """One decoded line: what a signature is matched against."""

    file: str  # path as it was found
    number: int  # from 1; segments between lone carriage returns share their line's number
    text: str  # without prefixes, their timestamps kept, ANSI, NUL and line end; 64 KiB at most
    raw: str  # verbatim but for the line end, invalid UTF-8 as U+FFFD
    prefix: Prefix
    time: Optional[float]  # printed on this very line
    near_time: Optional[float]  # the newest time printed on this line or above it: a lower bound
    training: bool  # a step line stands above, in the same file
    complete: bool = True  # False: the log ends within it, so its last word may be cut

    @property
    def whole_words(self) -> str:
        """`text` without a last word that may be cut: 13 of 137 is a wrong number."""
        return self.text if self.complete else self.text[: max(self.text.rfind(" "), 0)]


class Selector(Protocol):
    """Finds candidate lines fast: never misses a line that a signature or an anchor could match."""

    def __call__(self, chunk: bytes, /) -> Iterable[int]:
        """Offsets into `chunk`, ascending, each inside a candidate line; repeats are allowed.

        `chunk` begins at a line start and ends at a line end, or is a piece of one overlong line.
        Which line an offset belongs to (LF, CRLF, lone CR) is decided by the caller.
        """


class MakeSelector(Protocol):
    """Builds a selector for the catalog's signatures and the anchors of this package."""

    def __call__(self, anchors: Sequence[bytes], /) -> Selector:
        """`anchors` are case-sensitive literals, `joblog.read.ANCHORS`."""


@dataclass(frozen=True)
class Hit:
    """One signature row that matches one line."""

    row: str  # id in signatures.yaml
    failure_class: str  # "" where the row is harmless
    role: str  # root, consequence, either, harmless
    stage: str  # of the job, as the row says; "" when the row does not
    groups: Mapping[str, str] = field(default_factory=dict)  # named groups of the pattern


class Classify(Protocol):
    """Decides: which rows match this line. A harmless row is told like any other."""

    def __call__(self, line: JobLogLine, /) -> Sequence[Hit]: ...


@dataclass(frozen=True)
class Match:
    """A signature in the log, with its evidence.

    Per file, row and writer the first few and the last are kept; `MatchCount` has all.
    """

    row: str
    failure_class: str
    role: str
    stage: str
    groups: Mapping[str, str]
    file: str
    line: int
    where: str  # `Prefix.where`
    task: Optional[int]
    rank: Optional[int]
    host: Optional[str]  # from the prefix, else the task's host, else the actor's address
    actor: Optional[str]
    pid: Optional[int]
    ip: Optional[str]
    time: Optional[float]
    near_time: Optional[float]
    training: bool
    text: str  # stripped, as it was matched
    raw: str  # verbatim, cut at 4 KiB
    before: tuple[str, ...]  # verbatim lines above, oldest first
    after: tuple[str, ...]  # verbatim lines below
    exception: Optional[str]  # the line that ends the traceback which this line opens or stands in
    last_step: Optional[int] = None  # newest step of any writer above this line in its file
    offset: int = 0  # bytes before the line in its (uncompressed) file


@dataclass(frozen=True)
class MatchCount:
    """All lines of one row, also those of which no `Match` is kept."""

    row: str
    lines: int
    first_line: int
    last_line: int
    writers: int  # how many different `where`; stops at the bound on tasks


@dataclass(frozen=True)
class Traceback:
    """One exception as Python printed it; equal ones of one writer are told once."""

    line: int  # of "Traceback (most recent call last):"
    end_line: int  # of the exception
    where: str
    host: Optional[str]
    exception: str  # e.g. "ValueError: bad shape"; "" when the log ends before
    frame: str  # the innermost `File "...", line N, in f`
    time: Optional[float]
    near_time: Optional[float]
    file: str
    count: int = 1
    chained: bool = False  # "During handling of the above ..." or "... the direct cause ..." above


@dataclass(frozen=True)
class LogFile:
    """One file that was read, or that should have been."""

    path: str
    role: str  # main, piece (rotated), attempt, rank, worker
    size_bytes: int  # compressed size where it is compressed
    read_bytes: int  # uncompressed
    lines: int  # line ends seen, plus one for an unfinished last line
    mtime: Optional[float]  # may support a stall, never prove life
    complete: bool  # the last byte is a line end: the opposite is an abrupt cut
    binary: bool = False  # NUL bytes make up much of its start


@dataclass(frozen=True)
class Resolved:
    """What PATH or JOBID means: files in the order in which they were written."""

    asked: str
    job_id: Optional[str]
    name: Optional[str]  # of the job's configuration: the directory's name without the id
    job_dir: Optional[str]
    logs: tuple[str, ...]  # the newest attempt's main log; rotated pieces oldest first, live last
    attempts: tuple[tuple[str, ...], ...] = ()  # older ones, oldest first, each like `logs`
    rank_logs: tuple[str, ...] = ()  # rank-N.log of Kubernetes jobs, without rank 0's
    worker_logs: tuple[str, ...] = ()  # ray_logs/<host>/**/worker*.out and .err
    ray_log_hosts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # e.g. "the link `log` is broken: ...", in one line each
    empty_dir: bool = False  # a job directory without anything in it, and no log: died in prolog
    kubernetes: bool = False
    batch_script: Optional[str] = None  # *.sbatch or similar beside it, for its directives


@dataclass(frozen=True)
class Header:
    """What the job said about itself before training; None where the log does not."""

    job_id: Optional[str] = None
    job_name: Optional[str] = None
    nnodes: Optional[int] = None
    nodelist: tuple[str, ...] = ()  # expanded; index = srun task id with one task a node
    nodelist_raw: Optional[str] = None
    coordinator_port: Optional[int] = None
    ray_port: Optional[int] = None
    ray: bool = False  # RAY_PORT, [Ray] or [Prometheus] lines, or a ray_logs directory
    model_name: Optional[str] = None
    model_alias: Optional[str] = None
    exp_tag: Optional[str] = None
    passthrough: Mapping[str, str] = field(default_factory=dict)  # PASSTHROUGH_ARGS as key=value
    config: Mapping[str, str] = field(default_factory=dict)  # `Config param KEY: VALUE`, of note
    steps: Optional[int] = None  # passthrough first, then config, then what a step line says
    checkpoint_period: Optional[int] = None  # None: not printed; the default is the judge's matter
    enable_checkpointing: Optional[bool] = None
    async_checkpointing: Optional[bool] = None
    heartbeat_timeout_s: Optional[float] = None
    stage_timeouts_s: Mapping[str, Optional[float]] = field(default_factory=dict)  # None: no limit
    auto_resume_mode: Optional[str] = None  # Slurm comment, APS.auto_resume_mode
    max_requeue_times: Optional[int] = None
    keys: Mapping[str, int] = field(default_factory=dict)  # header key -> line that says so
    framework: Optional[str] = None  # of the step format in use: maxtext, megatron, ...
    other_job_ids: tuple[str, ...] = ()  # of later headers: the log holds several jobs


@dataclass(frozen=True)
class StageEvent:
    """One line of the stage grammar, or an opening line without BEGIN."""

    name: str  # as printed: Preflight, Docker pull, ECC check, Training
    event: str  # begin, end, timeout, failed
    line: int
    elapsed_s: Optional[float]
    limit_s: Optional[float]
    exit_code: Optional[int]
    time: Optional[float]
    raw: str
    file: str = ""


@dataclass(frozen=True)
class Summary:
    """The JOB SUMMARY block. The last one counts where a log holds several."""

    line: int
    file: str
    word: Optional[str]  # SUCCESS or FAILED; None: a summary without status
    exit_code: Optional[int]
    reason: str  # what follows the dash; "" when nothing does
    status_line: Optional[int]
    status_text: str
    job_id: Optional[str]
    job_name: Optional[str]
    model: Optional[str]
    nodes: Optional[str]
    wall_s: Optional[float]
    time: Optional[float]
    count: int = 1  # summaries in this file


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
    loss_state: bytes  # one a step: n none, f finite, a nan, i inf
    tflops: array[float]  # per device
    tokens_per_s: array[float]  # per device where the line says so, see `throughput_unit`
    time: array[float]
    line: array[float]
    throughput_unit: str = ""  # "tokens/s/device", "samples/s", "tokens/s"; "" without
    thinned: bool = False


@dataclass(frozen=True)
class StepRun:
    """Steps that follow each other upwards in one writer's lines; a jump back opens the next."""

    first_step: int
    last_step: int
    first_line: int
    last_line: int
    first_time: Optional[float]  # printed on the line itself
    last_time: Optional[float]
    steps: int  # different steps seen
    seconds_sum: float  # of all its lines that print seconds
    seconds_count: int
    steady_sum: float  # without warm-up: steps first_step+5 and later
    steady_count: int
    steady_max: float  # the longest single step of them, e.g. one that waited for a save
    nan_losses: int
    first_nan_step: Optional[int]
    file: str = ""


@dataclass(frozen=True)
class WriterProgress:
    """First and last step of one writer."""

    where: str
    task: Optional[int]
    rank: Optional[int]
    host: Optional[str]
    first_step: int
    last_step: int
    last_line: int
    last_time: Optional[float]
    lines: int


@dataclass(frozen=True)
class LoggedSteps:
    """Training progress by the step lines of one format."""

    format: str  # id in the table of formats
    framework: str
    zero_based: bool  # the first step is 0, so that T steps end at T-1
    counts_done: bool  # the number is of completed steps (n/m bars): T steps end at T
    total: Optional[int]  # as the step line says ("120/ 5000"); None where it does not
    series: StepSeries
    runs: tuple[StepRun, ...]  # of the reference writer, oldest first; the last 64
    runs_total: int
    writers: tuple[WriterProgress, ...]  # bounded; by task
    writers_total: int
    lines: int  # step lines of all writers
    first_step: int
    last_step: int  # the newest of any writer in the current run
    last_line: int
    last_time: Optional[float]  # printed on that line
    last_near_time: Optional[float]  # newest time printed at or above it
    last_next_time: Optional[float]  # oldest time printed below it: an upper bound
    file: str
    regular: bool = True  # False: a bar that may count anything (downloads, shards), not training


@dataclass(frozen=True)
class LoggedSave:
    """A checkpoint save, told by one line or by several."""

    step: Optional[int]
    event: str  # started, finished, failed
    seconds: Optional[float]
    line: int
    where: str
    time: Optional[float]
    near_time: Optional[float]
    pattern: str  # id of the pattern that knew it
    raw: str
    file: str = ""


@dataclass(frozen=True)
class Restore:
    """What the job says it started from."""

    step: Optional[int]  # None: it found none and starts afresh
    line: int
    file: str
    raw: str
    time: Optional[float]


@dataclass(frozen=True)
class TaskExit:
    """One process that ended, by whoever noticed."""

    kind: str  # node-exit, srun, actor, torchrun, subprocess
    code: Optional[int]
    signal: Optional[int]
    host: Optional[str]
    task: Optional[int]
    rank: Optional[int]
    where: str
    pid: Optional[int]
    line: int
    time: Optional[float]
    near_time: Optional[float]
    raw: str
    file: str = ""


@dataclass(frozen=True)
class Heartbeats:
    """Whom the coordination service accuses, and who reports the error."""

    accused: tuple[int, ...]  # task ids, ascending
    first_line: int
    last_line: int
    time: Optional[float]
    near_time: Optional[float]
    reporters: tuple[str, ...]  # `where` of the writers of "Polled error ..." and the like
    reporter_lines: Mapping[str, int]
    file: str = ""


@dataclass(frozen=True)
class Dashboards:
    """Where the job said that its dashboards are."""

    tunnels: tuple[str, ...] = ()  # commands verbatim, at most 8
    lines: tuple[int, ...] = ()
    head: Optional[str] = None  # host of the tunnel's target
    prometheus_port: Optional[int] = None  # from the tunnel, else from [Prometheus] lines
    prometheus_source: str = ""  # tunnel, started, occupied; "" when nothing says
    prometheus_failed: bool = False
    prometheus_dir: Optional[str] = None
    tensorboard_port: Optional[int] = None
    ray_head: Optional[str] = None  # host:port of `[Ray] Starting HEAD on`
    ray_logs: Optional[str] = None
    exporters: Mapping[str, int] = field(default_factory=dict)  # host -> port
    ray_fallback_line: Optional[int] = None  # "Ray cluster failed, falling back to non-Ray mode"


@dataclass(frozen=True)
class PhaseMark:
    """A line that shows how far start-up has come."""

    phase: str  # id: dataset, placement, mooncake, trainer-init, engine-init, queues, training, ...
    event: str  # reached, progress, done, error
    first_line: int
    last_line: int
    first_time: Optional[float]
    last_time: Optional[float]
    first_near_time: Optional[float]
    last_near_time: Optional[float]
    count: int
    value: Optional[float]  # newest number on it: percent of shards, seconds
    raw: str  # newest, verbatim
    file: str = ""


@dataclass(frozen=True)
class LogGap:
    """The longest silence between lines that print a time."""

    seconds: float
    start: float
    end: float
    line: int  # the first line after it
    file: str = ""


@dataclass(frozen=True)
class WorkerLogs:
    """The second source of a Ray job: what the workers' own logs say about steps."""

    files: tuple[LogFile, ...] = ()
    files_found: int = 0  # on disk, also those that were not read
    last_step: Optional[int] = None
    last_step_file: Optional[str] = None
    last_step_line: Optional[int] = None
    last_step_time: Optional[float] = None
    head_file: Optional[str] = None
    seconds_sum: Optional[float] = None  # of `last_step_file`, duplicates counted once
    steps: Optional[LoggedSteps] = None  # of `last_step_file`
    restores: tuple[Restore, ...] = ()
    per_host: Mapping[str, int] = field(default_factory=dict)  # host -> last step
    matches: tuple[Match, ...] = ()  # by file and line; `host` is the directory's name
    tracebacks: tuple[Traceback, ...] = ()
    saves: tuple[LoggedSave, ...] = ()
    phases: tuple[PhaseMark, ...] = ()


@dataclass(frozen=True)
class JobFacts:
    """All that the logs of one job say. An attempt is a job of its own, in `attempts`."""

    resolved: Resolved
    files: tuple[LogFile, ...]
    header: Header
    stages: tuple[StageEvent, ...]
    summary: Optional[Summary]
    steps: Optional[LoggedSteps]
    saves: tuple[LoggedSave, ...]  # the first 64 and the last 192 by line
    saves_total: int
    restores: tuple[Restore, ...]
    matches: tuple[Match, ...]  # by file and line
    match_counts: Mapping[str, MatchCount]
    tracebacks: tuple[Traceback, ...]
    tracebacks_total: int
    exits: tuple[TaskExit, ...]
    exits_total: int
    heartbeats: Optional[Heartbeats]
    dashboards: Dashboards
    phases: tuple[PhaseMark, ...]
    barrier_writers: tuple[str, ...]  # who reached "Synchronizing hosts before training loop"
    barrier_line: Optional[int]
    worker_logs: WorkerLogs
    attempts: tuple[JobFacts, ...]  # earlier ones, oldest first
    first_time: Optional[float]
    last_time: Optional[float]
    last_time_line: Optional[int]
    gap: Optional[LogGap]
    clock_jumps: int  # times that run backwards by more than a minute
    head: tuple[str, ...]  # verbatim first lines, at most 80
    tail: tuple[str, ...]  # verbatim last lines, at most 200
    tail_first_line: int  # number of tail[0]; 0 without
    last_line_complete: bool
    hosts: Mapping[int, str]  # task id -> host, from lines that carry both, else the node list
    hosts_source: str  # lines, nodelist, or ""
    writers: tuple[str, ...]  # every `where` seen on a decoded line; bounded
    unread: tuple[Unread, ...]
    done_markers: tuple[tuple[int, str], ...] = ()  # (line, text) of "Training completed" and such
    resumed_at: int = 0  # bytes skipped thanks to --state
    options: Mapping[str, str] = field(default_factory=dict)
