"""Who listens on a TCP port of this network namespace.

Source: /proc/net/{tcp,tcp6}, in which state 0A is LISTEN; /proc/<pid>/fd (proc(5))
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from raydiag.errors import ReadError
from raydiag.host import Host

_TABLE_LIMIT_BYTES = 16 << 20
_LISTEN = "0A"


def listening_sockets(host: Host) -> dict[str, int]:
    """Ports that somebody listens on in this network namespace, by inode; none where hidden."""
    ports = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in host.text_or_empty(table, _TABLE_LIMIT_BYTES).split("\n")[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                with contextlib.suppress(ValueError):
                    ports[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return ports


def sockets_of_port(host: Host, port: int) -> set[str]:
    """Inodes of the sockets that listen on that port."""
    return {inode for inode, used in listening_sockets(host).items() if used == port}


def holds_socket(host: Host, pid: int, inodes: Collection[str]) -> bool:
    """Whether the process has one of these sockets open, as far as it can be seen."""
    links = {f"socket:[{inode}]" for inode in inodes}
    for name in host.names_or_empty(f"/proc/{pid}/fd"):
        with contextlib.suppress(ReadError):  # closed since it was listed
            if host.readlink(f"/proc/{pid}/fd/{name}") in links:
                return True
    return False
