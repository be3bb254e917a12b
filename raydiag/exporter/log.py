"""What the exporter says on stderr, without ever waiting for who takes it.

A job's log is a file on shared storage as a rule, and a write to that can hang in the kernel like
any read. So where stderr is a file, a child writes, and is left alone when it hangs; what it does
not take is dropped. A pipe or a terminal is asked before whether it takes a line now.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import time
from contextlib import suppress

from raydiag import confinement

_STDERR = 2
_ATOMIC_BYTES = 4096  # a pipe takes that much at once or not at all
_LAST_WORDS_S = 0.5
_NAME = "raydiag-log"


class Log:
    """Takes lines, as bytes that end with a newline."""

    def __init__(self) -> None:
        self._pid, self._fd = 0, _STDERR
        with suppress(OSError):
            if stat.S_ISREG(os.fstat(_STDERR).st_mode):
                self._start()

    def write(self, line: bytes) -> None:
        """Print a line; one that nobody reads is dropped."""
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        with suppress(OSError):
            if any(event & select.POLLOUT for _, event in poller.poll(0)):
                os.write(self._fd, line[:_ATOMIC_BYTES])

    def close(self) -> None:
        """Let the child write what it has; wait for a moment, and not for ever."""
        if not self._pid:
            return
        os.close(self._fd)
        pid, self._pid, self._fd = self._pid, 0, _STDERR
        until = time.monotonic() + _LAST_WORDS_S
        while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < until:
            time.sleep(0.005)

    def _start(self) -> None:
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _relay(reading, writing)  # never returns
        os.close(reading)
        os.set_blocking(writing, False)
        self._fd = writing


def _relay(reading: int, writing: int) -> None:
    """Body of the child: it ends when the last copy of the other end is closed."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # for the exporter, whose last words come yet
        confinement.set_name(_NAME)
        os.close(writing)
        null = os.open("/dev/null", os.O_RDONLY)
        for fd in (0, 1):  # whoever waits for their end does not wait for this process
            os.dup2(null, fd)
        while data := os.read(reading, 1 << 16):
            with suppress(OSError):  # a full disk: the next line may find room
                os.write(_STDERR, data)
    finally:
        os._exit(0)
