"""Processes that ended, and which tasks the coordination service calls unhealthy.

Source: the batch script's NODE_EXIT lines, srun, torchrun's failure table, mpirun, DeepSpeed's
launcher, MaxText's Ray actor; JAX's coordination service.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from raydiag.joblog.failure_facts import Heartbeats, TaskExit
from raydiag.joblog.line_context import LineContext
from raydiag.joblog.log_line import JobLogLine
from raydiag.joblog.numbers import whole_number

EXITS = 2048
LOOKED_AT = 16 * EXITS
REPORTERS = 4096
HOSTS = 16384
ACCUSED = 16384
ERRORS = 4096  # every task may print the same one
_UNHEALTHY = "The following tasks are unhealthy"
_POLLED = "Polled error from coordination service"
_FATAL = "Terminating process because the JAX distributed service detected fatal errors"
ANCHORS = (
    b"NODE_EXIT ",
    b"srun: error:",
    b"Training subprocess ",
    b"Actor failed:",
    b"exitcode",
    b"exited on signal ",
    b"exits with return code",
    _UNHEALTHY.encode(),
    _POLLED.encode(),
    _FATAL.encode(),
)
_NODE_EXIT = re.compile(r"\bNODE_EXIT host=(?P<host>\S+) exit=(?P<code>\d+)")
_SRUN = re.compile(
    r"\bsrun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>Exited with exit code "
    r"(?P<code>\d+)|[A-Z][\w ]{2,40})"
)
_SUBPROCESS = re.compile(
    r"Training subprocess (?:killed by (?P<name>SIG[A-Z0-9+]+)(?: \(signal (?P<signal>\d+)\))?"
    r"|exited with code (?P<code>-?\d+))"
)
_ACTOR = re.compile(r"(?:\[Node (?P<task>\d+)\] )?Actor failed: ")
_TORCHRUN = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\) (?:local_rank: (?P<local>\d+) )?\(pid: (?P<pid>\d+)\)"
)
_TABLE = re.compile(r"^\s*exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_TABLE_RANK = re.compile(r"^\s*(rank)\s*: (\d+) \(local_rank")
_TABLE_HOST = re.compile(r"^\s*(host)\s*: (\S+)")
_MPI = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) "
    r"exited on signal (?P<signal>\d+)"
)
_LAUNCHER = re.compile(r"exits with return code = (?P<code>-?\d+)")
_KINDS = (
    ("node-exit", _NODE_EXIT),
    ("actor", _ACTOR),
    ("torchrun", _TORCHRUN),
    ("mpirun", _MPI),
    ("launcher", _LAUNCHER),
)
_TASK = re.compile(r"/job:\w{1,64}/(?:replica:\d+/)?task:(\d{1,7})")
_SRUN_SIGNALS = {
    "Killed": 9,
    "Terminated": 15,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Floating point exception": 8,
    "Illegal instruction": 4,
    "Interrupt": 2,
    "Out Of Memory": 9,
}
_BLOCK_LINES = 256
_NUMBERS = ("signal", "task", "rank", "pid")  # that an exit's line may tell


def signal_of(code: Optional[int]) -> Optional[int]:
    """The signal in an exit code: 137 and -9 are both SIGKILL."""
    if code is None:
        return None
    number = -code if code < 0 else code - 128
    return number if 0 < number < 65 else None


def _exit_code(text: Optional[str]) -> Optional[int]:
    return int(text) if text else None


def _tasks(text: str) -> list[int]:
    """`0-3,5` as numbers; at most 1024 of them."""
    numbers: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            numbers += range(int(low), min(int(high or low), int(low) + 1023) + 1)
    return numbers[:1024]


@dataclass
class ExitTally:
    """Exits in file order, the first and the last ones, and what heartbeat errors say."""

    exits: list[TaskExit] = field(default_factory=list)
    total: int = 0
    accused: dict[int, int] = field(default_factory=dict)  # task -> line
    first_line: int = 0
    time: Optional[float] = None
    reporters: dict[str, int] = field(default_factory=dict)  # where -> line
    file: str = ""
    errors: int = 0
    hosts: dict[int, str] = field(default_factory=dict)  # task -> host, of lines that name both

    def take(self, line: JobLogLine, view: LineContext) -> None:
        """One line that may tell of an exit, or of a heartbeat timeout."""
        text = line.whole_words
        if _UNHEALTHY in text or _POLLED in text or _FATAL in text:
            self._heartbeat(line, view)
        if match := _SRUN.search(text):
            self._srun(match, line)
        elif match := _SUBPROCESS.search(text):
            self._subprocess(match, line)
        elif match := _TABLE.match(text):
            self._table(match, line, view)
        else:
            for kind, pattern in _KINDS:
                if match := pattern.search(text):
                    self._add_fields(kind, line, match.groupdict())
                    return

    def _srun(self, match: re.Match[str], line: JobLogLine) -> None:
        reason = match["how"].strip()
        number = 0
        for name, signal_number in _SRUN_SIGNALS.items():
            if reason.startswith(name):
                number = signal_number
        if match["code"] is None and not number:
            return
        tasks = _tasks(match["tasks"])
        if self.total > LOOKED_AT:
            self.total += len(tasks)
            return
        code, host = _exit_code(match["code"]), match["host"]
        for task in tasks:
            self._add("srun", line, code=code, signal=number, host=host, task=task)

    def _subprocess(self, match: re.Match[str], line: JobLogLine) -> None:
        number = whole_number(match["signal"])
        if number is None and match["name"]:
            number = getattr(signal, match["name"], None)
        self._add("subprocess", line, code=_exit_code(match["code"]), signal=number)

    def _table(self, match: re.Match[str], line: JobLogLine, view: LineContext) -> None:
        """One entry of torchrun's table: rank and host stand above the exit code."""
        entry: dict[str, str] = {}
        for text in view.above(8)[::-1]:
            row = _TABLE_RANK.search(text) or _TABLE_HOST.search(text)
            if row:
                entry.setdefault(*row.groups())
            if len(entry) == 2:
                break
        self._add_fields("torchrun", line, {**entry, **match.groupdict()})

    def _add_fields(self, kind: str, line: JobLogLine, fields: Mapping[str, Optional[str]]) -> None:
        numbers = {
            name: whole_number(fields.get(name)) for name in ("signal", "task", "rank", "pid")
        }
        code, host = _exit_code(fields.get("code")), fields.get("host")
        self._add(kind, line, code=code, host=host, **numbers)

    def _add(self, kind: str, line: JobLogLine, host: Optional[str] = None, **numbers: Any) -> None:
        """`numbers`: code, signal, task, rank, pid, as far as the line tells them."""
        prefix = line.prefix
        self.total += 1
        if self.total > LOOKED_AT:
            return
        if len(self.exits) >= EXITS:
            del self.exits[EXITS // 2]
        told = {name: number for name, number in numbers.items() if number is not None}
        of_line = {"task": prefix.task, "rank": prefix.rank, "pid": prefix.pid, **told}
        code, task, host = told.get("code"), of_line["task"], host or prefix.host
        if host and task is not None and len(self.hosts) < HOSTS:
            self.hosts.setdefault(task, host)
        self.exits.append(
            TaskExit(
                kind=kind,
                code=code,
                signal=int(told.get("signal", 0)) or signal_of(code),
                host=host,
                task=task,
                rank=of_line["rank"],
                where=prefix.where,
                pid=of_line["pid"],
                line=line.number,
                time=line.time,
                near_time=line.near_time,
                raw=line.raw[:4096],
                file=line.file,
            )
        )

    def _heartbeat(self, line: JobLogLine, view: LineContext) -> None:
        self._note_heartbeat(line)
        _, message, tasks = line.text.partition(_UNHEALTHY)
        if not message or self.errors >= ERRORS:
            return
        self.errors += 1
        self._accuse(tasks, line.number)
        for number, text in view.writers_below(_BLOCK_LINES, line.prefix):
            if not text.lstrip().startswith("/job:"):
                return
            self._accuse(text, number)

    def _note_heartbeat(self, line: JobLogLine) -> None:
        if not self.first_line:
            self.first_line, self.time, self.file = line.number, line.time, line.file
        if (_POLLED in line.text or _FATAL in line.text) and len(self.reporters) < REPORTERS:
            self.reporters.setdefault(line.prefix.where, line.number)

    def _accuse(self, text: str, number: int) -> None:
        for task in _TASK.findall(text):
            if len(self.accused) < ACCUSED:
                self.accused.setdefault(int(task), number)

    def heartbeats(self) -> Optional[Heartbeats]:
        """Which tasks were called unhealthy, and by which; None when none was."""
        if not self.first_line:
            return None
        return Heartbeats(
            accused=tuple(sorted(self.accused)),
            first_line=self.first_line,
            time=self.time,
            reporters=tuple(self.reporters),
            file=self.file,
        )
