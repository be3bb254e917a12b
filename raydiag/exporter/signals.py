"""Signals as something to wait for: a handler only notes them, and a descriptor becomes readable.

An exception out of a handler could come anywhere, also between a fork and the first line of the
child, which would then clean up as if it were the parent.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import Optional

TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Takes signals from when it is made until `restore`."""

    def __init__(self, other_signals: Iterable[signal.Signals] = ()) -> None:
        """Those that ask us to end, unless they are ignored (as under nohup), and `others`."""
        self.told = 0  # the first signal that asked us to end
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before = {}
        for number in (*TO_END, *other_signals):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Readable when a signal has come: then call `clear`."""
        return self._read

    def clear(self) -> None:
        """Make the descriptor wait for the next signal."""
        with suppress(BlockingIOError):
            while os.read(self._read, 64):
                pass

    def wait(self, timeout_s: Optional[float]) -> None:
        """Until a signal comes, or for so long."""
        poller = select.poll()
        poller.register(self._read, select.POLLIN)
        poller.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
        self.clear()

    def restore(self) -> None:
        """Put back the handlers that were there before."""
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _take(self, number: int, _: object) -> None:
        if number in TO_END:
            self.told = self.told or number
