"""Durations and lists in sentences, and what to take of values that may be unknown."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def span(seconds: float | None) -> str:
    """A duration for sentences: `90 s`, `49 min`, `3.2 h`."""
    if seconds is None:
        return "an unknown time"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def listed(names: Iterable[str], at_most: int) -> str:
    """`a, b and 3 more`."""
    every: Sequence[str] = list(names)
    text = ", ".join(every[:at_most])
    if len(every) <= at_most:
        return text
    return f"{text} and {len(every) - at_most} more"


def task_on_host(task: str | None, host: str | None) -> str:
    """`task 3 on node-2`; empty without either."""
    parts = [f"task {task}"] if task else []
    return " on ".join(filter(None, [*parts, host]))


def known(values: Iterable[_T | None]) -> list[_T]:
    """Those that are not None."""
    return [value for value in values if value is not None]


def first_known(*values: _T | None) -> _T | None:
    """The first one that is not None; None without one."""
    return next(iter(known(values)), None)
