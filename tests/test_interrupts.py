"""Cleaning up that nothing interrupts, and that works in every thread."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from raydiag.cluster.interrupts import undisturbed

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def test_a_signal_meanwhile_is_ignored_and_later_ones_are_not() -> None:
    at_start = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background
    try:
        before = list(map(signal.getsignal, NUMBERS))
        with undisturbed():
            for number in NUMBERS:
                os.kill(os.getpid(), number)
        assert list(map(signal.getsignal, NUMBERS)) == before
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, at_start)


def test_in_a_thread_it_cleans_up_and_leaves_the_handlers_alone() -> None:
    before = list(map(signal.getsignal, NUMBERS))

    def _clean() -> tuple[bool, list[object]]:
        with undisturbed():
            is_main = threading.current_thread() is threading.main_thread()
            return is_main, list(map(signal.getsignal, NUMBERS))

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(_clean).result(10) == (False, before)
