"""Counters that move: the same record of both samples of a run, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from raydiag.model import NodeReport


def pairs(
    reports: Sequence[NodeReport], probe: str, *identity: str
) -> list[tuple[Any, Any, float]]:
    """(first record, second record, seconds between) of what one machine showed in both samples.

    `identity` names the fields that make two records the same thing. Of several Ray nodes on one
    machine the first that saw it counts.
    """
    key = attrgetter(*identity)
    found: dict[Any, tuple[Any, Any, float]] = {}
    for report in reports:
        result = report.probes.get(probe)
        if result is None:
            continue
        later = {key(record): record for record in result.later}
        for record in result.records:
            if key(record) in later:
                pair = (record, later[key(record)], result.interval_s)
                found.setdefault(key(record), pair)
    return list(found.values())


def growth(first: int | None, later: int | None) -> int | None:
    """How far a counter has come; None where it was not there, or was set back in between."""
    if first is None or later is None or later < first:
        return None
    return later - first
