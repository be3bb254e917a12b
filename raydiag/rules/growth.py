"""Counters that move between the two samples of a run."""

from __future__ import annotations


def growth(first: int | None, later: int | None) -> int | None:
    """How far a counter has grown; None where it was missing, or was reset in between."""
    if first is None or later is None or later < first:
        return None
    return later - first
