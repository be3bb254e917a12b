"""Processes that ended, and which tasks the coordination service calls unhealthy.

Source: the batch script's NODE_EXIT lines, srun, torchrun's failure table, mpirun, DeepSpeed's
launcher, MaxText's Ray actor; JAX's coordination service.
"""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raydiag.joblog.facts import Heartbeats, TaskExit
from raydiag.joblog.line_context import LineContext
from raydiag.joblog.log_line import JobLogLine
from raydiag.joblog.numbers import whole_number
from raydiag.joblog.tables import anchors_of, line_patterns, table

EXITS = 2048
LOOKED_AT = 16 * EXITS
REPORTERS = 4096
HOSTS = 16384
ACCUSED = 16384
ERRORS = 4096  # every task may print the same one
_UNHEALTHY = "The following tasks are unhealthy"
_POLLED = "Polled error from coordination service"
_FATAL = "Terminating process because the JAX distributed service detected fatal errors"
_ROWS = line_patterns("exits")
ANCHORS = (*anchors_of(_ROWS), *map(str.encode, (_UNHEALTHY, _POLLED, _FATAL)))
_ROOT_CAUSE = "Root Cause (first observed failure)"
_TABLE_ROW = re.compile(r"^\s*(?:(rank)\s*: (\d+) \(local_rank|(host)\s*: (\S+))")
_TASK = re.compile(r"/job:\w{1,64}/(?:replica:\d+/)?task:(\d{1,7})")
_SRUN_SIGNALS: Mapping[str, int] = table("srun_signals")
_BLOCK_LINES = 256


def signal_of(code: int | None) -> int | None:
    """The signal in an exit code: 137 and -9 are both SIGKILL."""
    if code is None:
        return None
    number = -code if code < 0 else code - 128
    return number if 0 < number < 65 else None


def _exit_code(text: str | None) -> int | None:
    return int(text) if text else None


def _tasks(text: str) -> list[int]:
    """`0-3,5` as numbers; at most 1024 of them."""
    numbers: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            numbers += range(int(low), min(int(high or low), int(low) + 1023) + 1)
    return numbers[:1024]


def _table_entry(view: LineContext) -> dict[str, str | None]:
    """Rank and host of one entry of torchrun's table: they stand above the exit code."""
    entry: dict[str, str | None] = {}
    for text in view.text_above(8)[::-1]:
        if row := _TABLE_ROW.search(text):
            entry.setdefault(*filter(None, row.groups()))
        if len(entry) == 2:
            break
    return entry


@dataclass
class ExitTally:
    """Exits in file order, the first and the last ones, and what heartbeat errors say."""

    exits: list[TaskExit] = field(default_factory=list)
    total: int = 0
    accused: dict[int, int] = field(default_factory=dict)  # task -> line
    first_line: int = 0
    time: float | None = None
    reporters: dict[str, int] = field(default_factory=dict)  # where -> line
    file: str = ""
    errors: int = 0
    hosts: dict[int, str] = field(default_factory=dict)  # task -> host, of lines that name both
    nodes: dict[str, int] = field(default_factory=dict)  # IP address -> task, likewise

    def take(self, line: JobLogLine, view: LineContext) -> None:
        """One line that may tell of an exit, or of a heartbeat timeout."""
        text = line.whole_words
        if _UNHEALTHY in text or _POLLED in text or _FATAL in text:
            self._heartbeat(line, view)
        if self.total > LOOKED_AT:
            return
        for row in _ROWS:
            if match := row.search(text):
                self._exit(row.event, match.groupdict(), line, view)
                return

    def _exit(
        self, kind: str, fields: dict[str, str | None], line: JobLogLine, view: LineContext
    ) -> None:
        if kind == "srun":
            self._srun(fields, line)
        elif kind == "table":
            is_first = any(text.startswith(_ROOT_CAUSE) for text in view.text_above(6))
            kind = "torchrun-first" if is_first else "torchrun"
            self._add_fields(kind, line, {**_table_entry(view), **fields})
        else:
            self._add_fields(kind, line, fields)

    def _srun(self, fields: Mapping[str, str | None], line: JobLogLine) -> None:
        how, code = fields["how"] or "", _exit_code(fields["code"])
        signals = [number for name, number in _SRUN_SIGNALS.items() if how.startswith(name)]
        if code is None and not signals:
            return
        for task in _tasks(fields["tasks"] or ""):
            number = next(iter(signals), None)
            self._add("srun", line, fields["host"], code=code, signal=number, task=task)

    def _add_fields(self, kind: str, line: JobLogLine, fields: Mapping[str, str | None]) -> None:
        numbers = {
            name: whole_number(fields.get(name)) for name in ("signal", "task", "rank", "pid")
        }
        if numbers["signal"] is None:
            numbers["signal"] = getattr(signal, fields.get("name") or "", None)
        self._add(kind, line, fields.get("host"), code=_exit_code(fields.get("code")), **numbers)

    def _add(self, kind: str, line: JobLogLine, host: str | None, **numbers: Any) -> None:
        """`numbers`: code, signal, task, rank, pid, as far as the line tells them."""
        prefix = line.prefix
        self.total += 1
        if len(self.exits) >= EXITS:
            del self.exits[EXITS // 2]
        told = {name: number for name, number in numbers.items() if number is not None}
        # The task before what Ray brought from another node is the driver's.
        of_writer = prefix.task if prefix.ip is None else self.nodes.get(prefix.ip)
        of_line = {"task": of_writer, "rank": prefix.rank, "pid": prefix.pid, **told}
        code, task, host = told.get("code"), of_line["task"], host or prefix.host
        if host and task is not None and len(self.hosts) < HOSTS:
            self.hosts.setdefault(task, host)
        if prefix.ip and task is not None and len(self.nodes) < HOSTS:
            self.nodes.setdefault(prefix.ip, task)
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

    def heartbeats(self) -> Heartbeats | None:
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
