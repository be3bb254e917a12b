"""What plugins that ran in the test's own process must not leave to what it forks later."""

from __future__ import annotations

import pytest

from raydiag.exporter.plugins import kernel_log


@pytest.fixture(autouse=True)
def closed_kernel_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a reader the log stays open; a later test's reader is forked without its descriptors."""
    monkeypatch.setattr(kernel_log, "_open", None)
