"""KNOW: what can go wrong and how it shows, as YAML tables, and the strict loader that checks them.

`failures.yaml` is the only vocabulary of failure classes; `kernel_events.yaml` maps lines of the
kernel log to them, with what NVIDIA's error numbers mean from `nvidia_codes.yaml`. A table with a
mistake is refused as a whole: CatalogError names file and row.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from raydiag.catalog.failure_classes import FailureClass, FailureTable, parse_failures
from raydiag.catalog.kernel_table import (
    KernelEvent,
    KernelTable,
    NvidiaCode,
    parse_kernel_events,
    parse_nvidia_codes,
)

_FAILURES, _KERNEL_EVENTS = "failures.yaml", "kernel_events.yaml"
_NVIDIA_CODES = "nvidia_codes.yaml"
_MESSAGES = 4096  # different messages whose row is remembered; logs repeat themselves


def failures() -> Mapping[str, FailureClass]:
    """Every failure class by id."""
    return failure_table().classes


def failure(class_id: str) -> FailureClass:
    """One failure class. Raises KeyError for an id that does not exist."""
    return failures()[class_id]


def variant(class_id: str, name: str) -> Mapping[str, Any]:
    """What a finding of the class says in that circumstance, as fields of a `Finding`."""
    return failure(class_id).variants[name]


def more_specific() -> tuple[tuple[str, str], ...]:
    """Pairs of classes: of one device at one time the first says more than the second."""
    return tuple(
        (entry.id, general) for entry in failures().values() for general in entry.more_specific_than
    )


def nvidia_code(family: str, code: int) -> NvidiaCode | None:
    """What an error number means; None for an unknown one."""
    return _nvidia_codes().get((family, code))


def nvidia_numbers(family: str) -> list[int]:
    """The numbers that are known of a family, `xid` or `sxid`."""
    return [number for name, number in _nvidia_codes() if name == family]


@lru_cache(maxsize=_MESSAGES)
def kernel_event(message: str, level: int = -1) -> tuple[KernelEvent, re.Match[str]] | None:
    """The first row that matches a kernel message, with its match; None for a line of no event.

    `level`: of the kernel, 0 emergency to 7 debug; -1 where it is not known.
    """
    return kernel_table().match(message, level)


def related_events(event: str) -> frozenset[str]:
    """The event itself and those that may share a report with it."""
    return kernel_table().related.get(event, frozenset((event,)))


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")


@cache
def failure_table() -> FailureTable:
    """The failure classes, and how logs are read by them."""
    return parse_failures(_read(_FAILURES))


@cache
def kernel_table() -> KernelTable:
    """The kernel events in their own order, and the words that nodes look for."""
    return parse_kernel_events(_read(_KERNEL_EVENTS), failures())


@cache
def _nvidia_codes() -> Mapping[tuple[str, int], NvidiaCode]:
    events = [row.event for row in kernel_table().events]
    return parse_nvidia_codes(_read(_NVIDIA_CODES), failures(), events)
