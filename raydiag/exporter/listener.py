"""The address that the exporter serves on: taken once, loopback unless it is said otherwise.

Source: /proc/net/{tcp,tcp6}, /proc/<pid>/{fd,stat} for who has it already
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable

from raydiag.errors import CannotRun, ReadError
from raydiag.host import Host
from raydiag.listening import holds_socket, sockets_of_port
from raydiag.procfs import process_ids, split_stat

_BACKLOG = 64


def listen(address: str, port: int) -> socket.socket:
    """A listening socket. Raises CannotRun, naming who has the port if that can be seen."""
    tcp, passive = socket.SOCK_STREAM, socket.AI_PASSIVE
    try:
        addresses = socket.getaddrinfo(address, port, type=tcp, flags=passive)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", "not a host name")
        raise CannotRun(f"--listen {address}: {reason}") from None
    *family, _, place = addresses[0]
    listener = socket.socket(*family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = _whose(port) if error.errno == errno.EADDRINUSE else error.strerror
        raise CannotRun(f"cannot listen on {shown(address, port)}: {reason}") from None
    return listener


def shown(address: str, port: int) -> str:
    """As a URL has it: an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def is_exposed(listener: socket.socket) -> bool:
    """Whether others than this machine and its private networks may reach it."""
    import ipaddress  # for this question only

    address = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
    return address.is_unspecified or not (address.is_private or address.is_link_local)


def _whose(port: int) -> str:
    """Who listens on that port, as far as it can be seen."""
    host = Host()
    sockets = sockets_of_port(host, port)
    if not sockets:
        return "that port is taken"
    for pid in process_ids(host):
        if holds_socket(host, pid, sockets):
            path = f"/proc/{pid}/stat"  # never its command line, which can block
            name = "a process"
            with contextlib.suppress(ReadError):
                name = split_stat(host.read_text(path, 4096), path)[0]
            return f"{name} (pid {pid}) has that port"
    return "another process has that port already"


def holders(host: Host, port: int, pids: Iterable[int]) -> list[int]:
    """Those of these processes that listen on the port, as far as it can be seen."""
    sockets = sockets_of_port(host, port)
    return [pid for pid in pids if sockets and holds_socket(host, pid, sockets)]
