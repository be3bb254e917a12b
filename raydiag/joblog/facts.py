"""What a job's logs say, without an opinion: the type between joblog and triage, and its parts.

All types of facts are frozen. Times are Unix seconds UTC; a log that prints no time zone is read as
UTC, one that prints no year as of the year of the file's mtime, or of the year before when that
would lie in the future. Line numbers count from 1. What can grow with the log is bounded, with a
count beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from raydiag.joblog.failure_facts import Heartbeats, Match, TaskExit, Traceback
from raydiag.joblog.script_facts import Dashboards, Header, PhaseMark, StageEvent, Summary
from raydiag.joblog.step_facts import LoggedSave, LoggedSteps, Restore
from raydiag.model import Unread


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
    slurm_name: Optional[str] = None  # by which Slurm knows it, where the log is named %x-%j
    series_dir: Optional[str] = None  # the job's Prometheus, where there is one


@dataclass(frozen=True)
class WorkerLogs:
    """The second source of a Ray job: what the workers' own logs say about steps."""

    files: tuple[LogFile, ...] = ()
    files_found: int = 0  # on disk, also those that were not read
    last_step_file: Optional[str] = None
    last_step_time: Optional[float] = None
    seconds_sum: Optional[float] = None  # of `last_step_file`, duplicates counted once
    steps: Optional[LoggedSteps] = None  # of `last_step_file`
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
    summary: Optional[Summary]
    steps: Optional[LoggedSteps]
    saves: tuple[LoggedSave, ...]  # the first 64 and the last 192 by line
    restores: tuple[Restore, ...]
    matches: tuple[Match, ...]  # by file and line
    tracebacks: tuple[Traceback, ...]
    exits: tuple[TaskExit, ...]
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
    clock_jumps: int  # times that run backwards by more than a minute
    head: tuple[str, ...]  # verbatim first lines, at most 80
    tail: tuple[str, ...]  # verbatim last lines, at most 200
    tail_first_line: int  # number of tail[0]; 0 without
    last_line_complete: bool
    hosts: Mapping[int, str]  # task id -> host, from lines that carry both, else the node list
    unread: tuple[Unread, ...]
    done_markers: tuple[tuple[int, str], ...] = ()  # (line, text) of "Training completed" and such
    resumed_at: int = 0  # bytes skipped thanks to --state
