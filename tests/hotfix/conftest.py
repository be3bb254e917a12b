"""Limits of what looks at a node, so long that only a hang reaches them on a loaded machine."""

from __future__ import annotations

import pytest

from raydiag.hotfix import discovery, dry_run, inspection, node, verification

_LONG_S = 90.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits hold in the guarded readers as well, which are forks of the test's process."""
    monkeypatch.setattr(node, "_INSPECT_LIMIT_S", _LONG_S)
    monkeypatch.setattr(discovery, "_LOOK_LIMIT_S", _LONG_S)
    monkeypatch.setattr(dry_run, "_SYNTAX_LIMIT_S", _LONG_S)
    for module in (inspection, verification):
        monkeypatch.setattr(module, "_FETCH_LIMIT_S", 20.0)
