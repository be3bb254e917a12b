"""Ports of this machine that somebody listens on, and a free one for a server of ours.

An occupant is never ended, whoever it is: a tunnel to a live Prometheus, another one's viewer, or
something else. The next port is taken.

Source: /proc/net/tcp, /proc/net/tcp6 (proc(5)); state 0A is LISTEN.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from raydiag.errors import CannotRun

FIRST = 9190  # Prometheus of a job starts here and goes up when it is taken
_LAST = 9190 + 2000
_LISTEN = "0A"


def listening(root: Path = Path("/proc/net")) -> frozenset[int]:
    """Ports with a listener on any address, of any user; empty where the kernel does not tell."""
    return frozenset((*_listeners(root / "tcp"), *_listeners(root / "tcp6")))


def _listeners(path: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == _LISTEN:
                with contextlib.suppress(ValueError):
                    yield int(fields[1].rpartition(":")[2], 16)


def free(avoid: Iterable[int] = (), first: int = FIRST) -> int:
    """The first port from `first` on that nobody listens on. Raises CannotRun when there is none.

    Somebody may take it before it is used: then try again, with the port in `avoid`.
    """
    occupied = listening() | frozenset(avoid)
    for port in range(first, _LAST):
        if port not in occupied and _can_bind(port):
            return port
    raise CannotRun(f"no free port from {first} to {_LAST} on this machine")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
