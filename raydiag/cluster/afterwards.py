"""Work that may outlast a command by some seconds, so that nobody waits for it."""

import contextlib
import os
from collections.abc import Callable


def do_afterwards(work: Callable[[], None]) -> None:
    """Have a process of its own do that; it holds nothing of ours open. What it raises is lost.

    Forks, so only for a process with one thread. The child is not ours to wait for.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    with contextlib.suppress(BaseException):
        if os.fork() == 0:
            _let_go()
            work()
    os._exit(0)


def _let_go() -> None:
    """Who waits for the end of our output, or for the terminal, waits no longer."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
