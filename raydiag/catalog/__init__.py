"""KNOW: what can go wrong and how it shows, as YAML tables, and the strict loader that checks them.

`failures.yaml` is the only vocabulary of failure classes; `kernel_events.yaml` maps lines of the
kernel log to them, with what NVIDIA's error numbers mean from `nvidia_codes.yaml`. A table with a
mistake is refused as a whole: CatalogError names file and row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from raydiag.catalog.failure_classes import Cascade, FailureClass, FailureTable, parse_failures
from raydiag.catalog.kernel_table import KernelEvent, KernelTable, parse_kernel_events
from raydiag.catalog.nvidia_codes import NvidiaCode, parse_nvidia_codes

_FAILURES, _KERNEL_EVENTS = "failures.yaml", "kernel_events.yaml"
_NVIDIA_CODES = "nvidia_codes.yaml"
_MESSAGES = 4096  # different messages whose row is remembered; logs repeat themselves


def failures() -> Mapping[str, FailureClass]:
    """Every failure class by id."""
    return _failures().classes


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


def log_priority() -> tuple[str, ...]:
    """Classes of job logs: of several errors on one line the first one here counts."""
    return _failures().log_priority


def cascades() -> tuple[Cascade, ...]:
    """What fails first in a log, and what follows from it."""
    return _failures().cascades


def kernel_events() -> tuple[KernelEvent, ...]:
    """The kernel-event table in its own order."""
    return _kernel_table().events


def kernel_words() -> tuple[str, ...]:
    """Lower-case words; nodes send only kernel lines that contain one of them."""
    return _kernel_table().words


def kernel_quiet() -> tuple[str, ...]:
    """Phrases of harmless lines that contain one of the words; nodes do not send them."""
    return _kernel_table().quiet


def driver_fault_symbols() -> tuple[str, ...]:
    """Kernel functions that show the driver fault in a log, stack or wait channel."""
    return _kernel_table().driver_fault_symbols


def nvidia_code(family: str, code: int) -> NvidiaCode | None:
    """What an error number means; None for an unknown one."""
    return _nvidia_codes().get((family, code))


@lru_cache(maxsize=_MESSAGES)
def kernel_event(message: str) -> tuple[KernelEvent, re.Match[str]] | None:
    """The first row that matches a kernel message, with its match; None for a line of no event."""
    return _kernel_table().match(message)


def related_events(event: str) -> frozenset[str]:
    """The event itself and those that may share a report with it."""
    return _kernel_table().related.get(event, frozenset((event,)))


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")


@cache
def _failures() -> FailureTable:
    return parse_failures(_read(_FAILURES))


@cache
def _kernel_table() -> KernelTable:
    return parse_kernel_events(_read(_KERNEL_EVENTS), failures())


@cache
def _nvidia_codes() -> Mapping[tuple[str, int], NvidiaCode]:
    events = [row.event for row in kernel_events()]
    return parse_nvidia_codes(_read(_NVIDIA_CODES), failures(), events)
