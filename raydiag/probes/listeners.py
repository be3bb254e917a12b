"""TCP sockets that wait for connections from other machines, and which of Ray's services hold them.

Source: /proc/net/{tcp,tcp6}, /proc/net/{fib_trie,if_inet6} (proc(5); net/ipv4/fib_trie.c,
net/ipv6/addrconf.c), /proc/<pid>/{stat,cmdline,fd}. Sample of tcp; the local address ends with the
port (8265), the state 0A is LISTEN, the tenth word (4242) is the inode:

     sl local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
      0: 0100007F:2049 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4242 1 ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Optional, Union

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.host import Host
from raydiag.model import Unread
from raydiag.probes import PROCESSES, probe
from raydiag.procfs import process_ids, read_stat

# Dashboard, TensorBoard, Prometheus: meant for the node itself. On a host with private addresses
# only, the holders of no others are looked for: that means reading every process's name.
_PORTS = frozenset({8265, 6006, *range(9190, 9196)})
_TABLE_LIMIT_BYTES = 1 << 16  # listening sockets come first in a table that may be long
_COMMAND_LIMIT_BYTES = 1 << 14
_MAX_SOCKETS, _MAX_DESCRIPTORS = 256, 1 << 14
_LISTEN = "0A"
_V4_IN_V6 = bytes(10) + b"\xff\xff"


@dataclass(frozen=True)
class Listener:
    address: str  # "0.0.0.0" or "::" is every address; never a loopback one
    port: int
    pid: Optional[int]  # in the PID namespace of the reader; None: not looked for, or not visible
    program: str  # "gcs_server", "raylet", "dashboard", "agent", "prometheus", ...; "" unknown


@dataclass(frozen=True)
class Listeners:
    public_v4: tuple[str, ...]  # the host's own addresses of no private or special range
    public_v6: tuple[str, ...]  # the same of IPv6, with all their zeros
    sockets: tuple[Listener, ...]  # those open to other machines, by port; at most 256


@probe(Listeners, identity=("sockets",), reader=PROCESSES)
def listeners(host: Host) -> Iterator[Union[Listeners, Unread]]:
    """Exactly one record, of the network namespace that we are in.

    Raises NoData, Denied or ParseError without /proc/net/tcp or /proc/net/fib_trie.
    """
    public_v4 = list(filter(_is_public, local_v4(host.read_text("/proc/net/fib_trie"))))
    public_v6 = list(filter(_is_public, _local_v6(host)))
    open_sockets = {
        inode: (address, port)
        for inode, (address, port) in _listening(host).items()
        if not _is_loopback(address)
    }
    look_at_all = bool(public_v4 or public_v6)
    inodes = {inode for inode, (_, port) in open_sockets.items() if look_at_all or port in _PORTS}
    holders = _Holders(host, inodes)
    records = {
        Listener(as_text(address), port, *holders.by_inode.get(inode, (None, "")))
        for inode, (address, port) in open_sockets.items()
    }
    yield Listeners(
        public_v4=tuple(map(as_text, public_v4)),
        public_v6=tuple(map(as_text, public_v6)),
        sockets=tuple(sorted(records, key=attrgetter("port", "address"))[:_MAX_SOCKETS]),
    )
    if holders.refused and not inodes <= holders.by_inode.keys():
        yield Unread("/proc/<pid>/fd", holders.refused.status, str(holders.refused))


def _listening(host: Host) -> dict[str, tuple[bytes, int]]:
    """Address and port of all listening sockets by inode."""
    sockets = parse_sockets(host.read_text("/proc/net/tcp", _TABLE_LIMIT_BYTES), "/proc/net/tcp")
    try:
        table = host.read_text("/proc/net/tcp6", _TABLE_LIMIT_BYTES)
    except NoData:
        return sockets  # no IPv6
    return sockets | parse_sockets(table, "/proc/net/tcp6")


def parse_sockets(text: str, path: str) -> dict[str, tuple[bytes, int]]:
    """Address and port of listening sockets by inode. Raises ParseError for another table.

    The kernel prints addresses as 32-bit numbers in the byte order of the machine. The last line
    may be cut.
    """
    title, _, table = text.partition("\n")
    if "local_address" not in title:
        raise ParseError(f"{path}: not a table of sockets: {title[:80]!r}")
    sockets = {}
    for line in table.split("\n"):
        words = line.split()
        if len(words) < 11 or words[3] != _LISTEN:
            continue
        try:
            sockets[words[9]] = _endpoint(words[1])
        except ValueError:
            raise ParseError(f"{path}: not an address: {line[:80]!r}") from None
    return sockets


def _endpoint(text: str) -> tuple[bytes, int]:
    """Address and port of `0100007F:2049`. Raises ValueError."""
    hexadecimal, _, port = text.partition(":")
    address, number = bytes.fromhex(hexadecimal), int(port, 16)
    if len(address) not in (4, 16) or not 0 < number < 1 << 16:
        raise ValueError(text)
    if sys.byteorder == "little":
        groups = (address[start : start + 4] for start in range(0, len(address), 4))
        address = b"".join(group[::-1] for group in groups)
    return address.removeprefix(_V4_IN_V6), number


def local_v4(text: str) -> list[bytes]:
    """The addresses that fib_trie calls local: `|-- 192.0.2.7` with `/32 host LOCAL` below it."""
    addresses: dict[bytes, None] = {}
    address = b""
    for line in text.split("\n"):
        words = line.split()
        if words[:1] == ["|--"]:
            address = _v4("".join(words[1:2]))
        elif address and words[:3] == ["/32", "host", "LOCAL"]:
            addresses[address] = None
    return list(addresses)


def _v4(text: str) -> bytes:
    """The four bytes of `192.0.2.7`; empty for anything else."""
    parts = text.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
        return b""
    numbers = list(map(int, parts))
    return bytes(numbers) if max(numbers) < 256 else b""


def as_text(address: bytes) -> str:
    """An address as people write it; of IPv6 with all its zeros."""
    if len(address) == 4:
        return ".".join(map(str, address))
    if not any(address):
        return "::"
    return ":".join(f"{address[at] << 8 | address[at + 1]:x}" for at in range(0, 16, 2))


def _local_v6(host: Host) -> list[bytes]:
    try:
        lines = host.read_text("/proc/net/if_inet6").split("\n")
    except NoData:
        return []
    try:
        addresses = [bytes.fromhex(line.partition(" ")[0]) for line in lines]
    except ValueError:
        raise ParseError("/proc/net/if_inet6: not addresses") from None
    return [address for address in addresses if len(address) == 16]


def _is_loopback(address: bytes) -> bool:
    return address[:1] == b"\x7f" if len(address) == 4 else address == bytes(15) + b"\1"


def _is_public(address: bytes) -> bool:
    """Whether the internet could route to it: no private, shared, local, test or group address."""
    if len(address) == 16:  # of IPv6 only 2000::/3 is given out; 2001:db8::/32 is for documents
        return address[0] >> 5 == 1 and not address.startswith(b"\x20\x01\x0d\xb8")
    a, b, c, _ = address
    return not (
        a in (0, 10, 127)
        or a >= 224
        or (a == 172 and 16 <= b < 32)
        or (a == 100 and 64 <= b < 128)
        or (a, b) in ((192, 168), (169, 254), (198, 18), (198, 19))
        or (a, b, c) in ((192, 0, 0), (192, 0, 2), (198, 51, 100), (203, 0, 113))
    )


class _Holders:
    """Which of the known programs hold sockets; nothing is read where no inode is looked for."""

    def __init__(self, host: Host, inodes: set[str]) -> None:
        self.host = host
        self.by_inode: dict[str, tuple[int, str]] = {}  # pid and program
        self.refused: Optional[Denied] = None
        for pid in process_ids(host) if inodes else ():
            if inodes <= self.by_inode.keys():
                break
            program = self._program(pid)
            for inode in self._inodes(pid) & inodes if program else ():
                self.by_inode.setdefault(inode, (pid, program))

    def _program(self, pid: int) -> str:
        """Of a process in state D only stat is read: its command line could block."""
        try:
            stat = read_stat(self.host, f"/proc/{pid}")
            if stat.comm in _KNOWN_NAMES:
                return stat.comm
            if not stat.comm.startswith(_INTERPRETERS) or stat.state == "D":
                return ""
            command = self.host.read_bytes(f"/proc/{pid}/cmdline", _COMMAND_LIMIT_BYTES)
            return program_of(command.decode("utf-8", "replace").split("\0"))
        except ReadError:
            return ""  # ended, or hidden from us as a whole

    def _inodes(self, pid: int) -> set[str]:
        inodes = set()
        try:
            for name in self.host.listdir(f"/proc/{pid}/fd")[:_MAX_DESCRIPTORS]:
                target = self.host.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
        except Denied as error:
            self.refused = self.refused or error
        except ReadError:
            pass  # ended, or closed it meanwhile
        return inodes


_KNOWN_NAMES = frozenset({"gcs_server", "raylet", "prometheus", "tensorboard"})
_INTERPRETERS = ("python", "ray", "MainThread")
_SCRIPTS = (
    ("ray/dashboard/dashboard.py", "dashboard"),
    ("ray/dashboard/agent.py", "agent"),
    ("/tensorboard", "tensorboard"),
    ("tensorboard.main", "tensorboard"),
    ("hw_metrics.prom", "exporter"),
)


def program_of(arguments: list[str]) -> str:
    """Which service a Python command line is; "" for all others, the trainer's among them."""
    if arguments[0].startswith("ray::DashboardAgent"):
        return "agent"
    for program, command in zip(arguments, arguments[1:]):
        if command == "exporter" and program.endswith(("raydiag", "raydiag.pyz")):
            return command
    for argument in arguments:
        for ending, program in _SCRIPTS:
            if argument.endswith(ending):
                return program
    return ""
