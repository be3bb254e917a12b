"""Processes that ended: which ends are failures, whose they are, what their codes mean."""

from collections.abc import Mapping
from itertools import filterfalse

from raydiag.joblog.facts import TERMINATED, JobFacts, TaskExit
from raydiag.triage.tables import TABLES

_TERMINATING_SIGNALS = (2, 15)
_CODES: Mapping[int, str] = TABLES["exit_codes"]
_SIGNALS: Mapping[int, str] = TABLES["signals"]


def meaning(code: int | None, signal: int | None = None) -> str:
    """`137 (SIGKILL: ...)`; empty without either."""
    if code is not None and code < 0:
        code = 128 - code
    if signal and not code:
        code = 128 + signal
    if code is None:
        return ""
    text = _CODES.get(code)
    if text is None and 128 < code <= 128 + 64:
        text = _SIGNALS.get(code - 128, f"signal {code - 128}")
    return f"{code} ({text})" if text else str(code)


def host_of(task_exit: TaskExit, facts: JobFacts) -> str | None:
    """The host whose process ended: as the line says, else the host of its task."""
    if task_exit.host or task_exit.task is None:
        return task_exit.host or None
    return facts.hosts.get(task_exit.task)


def exit_codes(facts: JobFacts) -> dict[int, int]:
    """The exit code by task; the first one that is not 0 counts."""
    task_of_host = {host: task for task, host in facts.hosts.items()}
    codes: dict[int, int] = {}
    for task_exit in facts.exits:
        task = task_exit.task
        if task is None:
            task = task_of_host.get(task_exit.host or "")
        code = _code(task_exit)
        if task is not None and code is not None and codes.get(task, 0) == 0:
            codes[task] = code
    return codes


def _code(task_exit: TaskExit) -> int | None:
    """As a shell would tell it."""
    if task_exit.code is None and task_exit.signal:
        return 128 + task_exit.signal
    return task_exit.code


def failed_exits(facts: JobFacts) -> list[TaskExit]:
    """Exits that mean a failure: not 0, and not how every task of a cancelled job ends."""
    failures = [task_exit for task_exit in facts.exits if task_exit.code or task_exit.signal]
    if all_terminated(facts):
        return list(filterfalse(_is_termination, failures))
    return failures


def _is_termination(task_exit: TaskExit) -> bool:
    return task_exit.code in TERMINATED or task_exit.signal in _TERMINATING_SIGNALS


def all_terminated(facts: JobFacts) -> bool:
    """All tasks that ended with an error ended by SIGTERM or SIGINT: a cancellation."""
    codes = {task_exit.code for task_exit in facts.exits} - {None, 0}
    return bool(codes) and codes <= {*TERMINATED}
