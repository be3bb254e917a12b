"""Kernel lines in a job's log as witnesses: what the node suffered, and when.

A line of a `dmesg` that somebody appended says when it happened, not when it was printed. So a
witness never shows that a job ended; it says why, where something else shows the end. Only a grave
fault in the last lines of a log, which nothing of the job follows, is an end by itself.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from raydiag.joblog.facts import JobFacts, LoggedKernelLine
from raydiag.kernel_text import LogLine, Parser
from raydiag.model import Severity
from raydiag.rules.kernel_events import Grouping, KernelEventSeen
from raydiag.triage.symptoms import ROOT, SURVIVED_STEPS, Symptom
from raydiag.triage.tables import TABLES

ROW = "kernel"
_BEFORE_S = 600.0  # a fault so long before the first line of the job is not of this job
_LATER_S = 120.0  # clocks of nodes differ, and a trace is printed after the fault
_PATIENCE_S = 7200.0  # so long after a fault the others may still wait for its victim
_CRASH = re.compile(
    r"\bSIG(?:SEGV|ABRT|FPE|ILL)\b|Segmentation fault|Aborted|Illegal instruction"
    r"|Floating point exception|exitcode ?: -(?:4|6|8|11)\b|signal (?:4|6|8|11)\b"
)
_CLASSES: Mapping[str, str] = {
    finding: failure_class
    for failure_class, findings in TABLES["kernel_classes"].items()
    for finding in findings
}
_ENDS = frozenset(TABLES["kernel_effects"]["ends"])
_NEVER = frozenset(TABLES["kernel_effects"]["never"])


class Witness(NamedTuple):
    """A fault that the kernel lines report."""

    symptom: Symptom
    severity: Severity
    is_history: bool  # it was over before the job began, the job went on, or the log says so

    @property
    def is_grave(self) -> bool:
        """It can end what runs on the node."""
        return self.severity is Severity.CRITICAL and self.may_explain

    @property
    def may_explain(self) -> bool:
        """It may be why a job failed."""
        return not self.is_history and self.symptom.failure_class not in _NEVER


def witnesses(facts: JobFacts) -> list[Witness]:
    """One for each event, in the order of the log's lines."""
    return sorted(_all(facts), key=lambda witness: witness.symptom.order)


def _all(facts: JobFacts) -> Iterator[Witness]:
    def by_writer(line: LoggedKernelLine) -> tuple[str, str, str]:
        return line.file, line.host or "", line.where

    file_order = {file.path: index for index, file in enumerate(facts.files)}
    for _, lines in groupby(sorted(facts.kernel_lines, key=by_writer), by_writer):
        logged = list(lines)
        events = _events(logged, facts)
        over = _ended(events)
        for event in events:
            if event.severity is not Severity.INFO and not event.userspace:
                line = event.lines[0]
                number = line.number if isinstance(line, LogLine) else 0
                symptom = _symptom(event, logged[number], facts, file_order)
                has_crashed = "kernel-oops" in event.related
                severity = Severity.CRITICAL if has_crashed else event.severity
                yield Witness(symptom, severity, _is_history(symptom, facts, event, over))


def _events(logged: Sequence[LoggedKernelLine], facts: JobFacts) -> list[KernelEventSeen]:
    """Lines are numbered by their place in `logged`."""
    written = max((file.mtime or 0.0 for file in facts.files), default=0.0)
    parser, grouping = Parser(facts.last_time or written), Grouping()
    for number, line in enumerate(logged):
        grouping.offer(parser.parse(line.text.encode(), number))
    return grouping.events()


def _ended(events: Sequence[KernelEventSeen]) -> dict[str, float]:
    """Event -> when the log last says that it is over."""
    ends: dict[str, float] = {}
    for event in events:
        for ended in event.row.recovers:
            ends[ended] = max(ends.get(ended, event.last_s), event.last_s)
    return ends


def _symptom(
    event: KernelEventSeen, logged: LoggedKernelLine, facts: JobFacts, file_order: dict[str, int]
) -> Symptom:
    first = event.lines[0]
    time = first.time_s if isinstance(first, LogLine) and first.dated else None
    task = next((str(name) for name in (logged.rank, logged.task) if name is not None), None)
    return Symptom(
        _CLASSES.get(event.finding, event.finding),
        ROOT,
        file=logged.file,
        line=logged.line,
        order=(file_order.get(logged.file, len(file_order)), logged.line),
        text=logged.raw,
        time=time,
        near_time=logged.near_time if time is None else time,
        task=task,
        srun_task=logged.task,
        host=logged.host,
        pid=event.pid,
        where=logged.where,
        last_step=_step_at(time, facts) if time is not None else logged.last_step,
        row=ROW,
    )


def _step_at(time: float, facts: JobFacts) -> int | None:
    """The newest step that was done by then, as far as steps have times."""
    if facts.steps is None:
        return None
    series = facts.steps.series
    timed = [(at, step) for at, step in zip(series.time, series.step, strict=True) if at == at]
    done = [step for at, step in timed if at <= time]
    if done:
        return int(done[-1])
    return int(timed[0][1]) - 1 if timed else None


def _is_history(
    symptom: Symptom, facts: JobFacts, event: KernelEventSeen, over: Mapping[str, float]
) -> bool:
    if over.get(event.event, event.last_s - 1.0) >= event.last_s:
        return True
    if symptom.time is not None and symptom.time < (facts.first_time or 0.0) - _BEFORE_S:
        return True
    steps = facts.steps
    if steps is None or not steps.regular or symptom.last_step is None:
        return False
    return steps.last_step - symptom.last_step > SURVIVED_STEPS


def explains(witness: Witness, failure_class: str, time: float | None, text: str) -> bool:
    """Whether the fault can be why a job failed so, at that time (Unix seconds; None: unknown).

    `text`: of the failure. A program that crashed did so by itself, unless the fault is grave.
    """
    own_class, own_time = witness.symptom.failure_class, witness.symptom.time
    if not witness.may_explain or (not witness.is_grave and _CRASH.search(text)):
        return False
    is_dated = own_time is not None and time is not None
    if is_dated and not -_PATIENCE_S <= (own_time or 0.0) - (time or 0.0) <= _LATER_S:
        return False
    if failure_class in _ENDS:
        return True
    by_fault = TABLES["kernel_effects"]["by_fault"]
    return any(own_class in row["faults"] and failure_class in row["effects"] for row in by_fault)


def cause_of(
    failure_class: str, time: float | None, text: str, seen: Sequence[Witness]
) -> Symptom | None:
    """The fault that explains the failure: a grave one before others, then the earliest."""
    able = [witness for witness in seen if explains(witness, failure_class, time, text)]
    able.sort(key=lambda witness: (not witness.is_grave, witness.symptom.near_time or 0.0))
    return next(map(attrgetter("symptom"), able), None)


def last_word(facts: JobFacts, seen: Sequence[Witness]) -> Symptom | None:
    """A grave fault after which the log shows kernel lines only; None without one."""
    last = max((line.line for line in facts.kernel_lines), default=0)
    shown = facts.tail[max(0, last + 1 - facts.tail_first_line) :]
    if not last or any(map(str.strip, shown)):
        return None
    return next((witness.symptom for witness in seen if witness.is_grave), None)


def with_place(origin: Symptom, seen: Sequence[Witness]) -> Symptom:
    """The symptom, with the host and the time of the kernel line of its class."""
    if origin.host is not None:
        return origin
    for witness in seen:
        symptom = witness.symptom
        if symptom.failure_class == origin.failure_class and symptom.host:
            return replace(origin, host=symptom.host, time=origin.time or symptom.time)
    return origin
