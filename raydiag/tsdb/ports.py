"""Ports of this machine that somebody listens on, and a free one for a server of ours.

An occupant is never ended, whoever it is: a tunnel to a live Prometheus, another one's viewer, or
something else. The next port is taken.
"""

import socket
from collections.abc import Iterable

from raydiag.errors import CannotRun
from raydiag.host import Host
from raydiag.listening import listening_sockets

FIRST = 9190  # Prometheus of a job starts here and goes up when it is taken
_LAST = 9190 + 2000


def listening(root: str = "/") -> frozenset[int]:
    """Ports with a listener on any address, of any user; empty where the kernel does not tell."""
    return frozenset(listening_sockets(Host(root)).values())


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
