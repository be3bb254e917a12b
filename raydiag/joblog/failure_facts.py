"""What logs say of failures: signatures that match, tracebacks, processes that ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional


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
    task: Optional[int]
    rank: Optional[int]
    host: Optional[str]  # from the prefix, else the task's host, else the actor's address
    actor: Optional[str]
    pid: Optional[int]
    ip: Optional[str]
    time: Optional[float]
    near_time: Optional[float]
    text: str  # stripped, as it was matched
    raw: str  # verbatim, cut at 4 KiB
    before: tuple[str, ...]  # verbatim lines above, oldest first
    after: tuple[str, ...]  # verbatim lines below
    exception: Optional[str]  # the line that ends the traceback which this line opens or stands in
    last_step: Optional[int] = None  # newest step of any writer above this line in its file
    offset: int = 0  # bytes before the line in its (uncompressed) file


@dataclass(frozen=True)
class Traceback:
    """One exception as Python printed it; equal ones of one writer are kept once."""

    line: int  # of "Traceback (most recent call last):"
    end_line: int  # of the exception
    where: str
    exception: str  # e.g. "ValueError: bad shape"; "" when the log ends before
    time: Optional[float]
    file: str


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
    """The tasks that the coordination service calls unhealthy, and who reports the error."""

    accused: tuple[int, ...]  # task ids, ascending
    first_line: int
    time: Optional[float]
    reporters: tuple[str, ...]  # `where` of the writers of "Polled error ..." and the like
    file: str = ""
