"""Signals that a background job ignores, made deliverable to the programs that tests start.

A shell starts a job in the background with SIGINT ignored, and `nohup` ignores SIGHUP. Children
inherit that, and a program that is to end by such a signal would not.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def deliverable_signals() -> Iterator[None]:
    """In programs that are started: their defaults. This process goes on ignoring them."""
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, _ignore)  # a handler does not outlive the start of a program
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def _ignore(number: int, _: object) -> None:
    """Do nothing."""
