"""Cleaning up to the end, whoever loses patience meanwhile."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


def handle(number: int, handler: Any) -> None:
    """Set what a signal does, where Python allows it: in the main thread."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore what interrupts: a second Ctrl-C would leave behind what the first was to end.

    Python interrupts the main thread alone: in another one there is nothing to ignore.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = list(map(signal.getsignal, numbers))
    for number in numbers:
        handle(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            handle(number, handler)
