"""How rules judge numbers: the usual choices, counters that move, and what may be unknown."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from raydiag.model import Confidence, Severity

_Number = TypeVar("_Number", int, float)


def warning_if(condition: object) -> Severity:
    """A warning where the condition holds, else a note."""
    return Severity.WARNING if condition else Severity.INFO


def critical_if(condition: object) -> Severity:
    """Critical where the condition holds, else a warning."""
    return Severity.CRITICAL if condition else Severity.WARNING


def confirmed_if(condition: object) -> Confidence:
    """Confirmed where the condition holds, else likely."""
    return Confidence.CONFIRMED if condition else Confidence.LIKELY


def growth(first: int | None, later: int | None) -> int | None:
    """How far a counter has grown; None where it was missing, or was reset in between."""
    if first is None or later is None or later < first:
        return None
    return later - first


def grown_counters(first: Mapping[str, int], later: Mapping[str, int]) -> dict[str, int]:
    """By how much each counter has grown, of those that have.

    A counter that the second sample is the first to show has not grown: where it began is unknown.
    """
    grown = {}
    for name, count in later.items():
        if difference := growth(first.get(name), count):
            grown[name] = difference
    return grown


def known(values: Iterable[_Number | None]) -> list[_Number]:
    """The numbers among them that are known."""
    return [value for value in values if value is not None]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Median, and median distance from it, scaled to be a standard deviation where normal."""
    middle = median(values)
    return middle, 1.4826 * median(abs(value - middle) for value in values)
