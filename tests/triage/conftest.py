"""The tests of this directory read hundreds of small logs with the same table of signatures."""

from __future__ import annotations

from functools import cache

import pytest

from raydiag.triage import signatures

_SELECTOR = cache(signatures.make_selector)


@pytest.fixture(autouse=True)
def one_selector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building a selector takes longer than reading such a log."""
    monkeypatch.setattr(signatures, "make_selector", _SELECTOR)
