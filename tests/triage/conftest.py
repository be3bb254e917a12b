"""The tests of this directory read hundreds of small logs with the same table of signatures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from raydiag.joblog.line_selection import Finder, finder
from raydiag.triage import signatures

_SELECTOR = cache(signatures.make_selector)


@cache
def _made_finder(literals: tuple[bytes, ...]) -> Finder:
    return finder(literals)


def _finder(literals: Sequence[bytes]) -> Finder:
    return _made_finder(tuple(literals))


@pytest.fixture(autouse=True)
def made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building what selects and finds takes longer than reading such a log."""
    monkeypatch.setattr(signatures, "make_selector", _SELECTOR)
    monkeypatch.setattr(signatures, "finder", _finder)
