"""The network as the kernel counts it: interfaces, TCP, and how long the node has been up.

Everything but `uptime_s` is that of our network namespace: the node's own where Ray runs in it,
a container's otherwise. Left out are interfaces that end in a container of this node, and the files
`speed` and `carrier`: they take the lock of all network settings, which a card in trouble may hold
for long.

Source: /proc/net/{dev,snmp,netstat}, /proc/uptime, /proc/self/ns/net (proc(5)),
/sys/class/net/<interface>/operstate. Sample of /proc/net/snmp (a header, then its values):

    Tcp: RtoAlgorithm EstabResets OutSegs RetransSegs
    Tcp: 1 21 25741 2
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional, Union

from raydiag.errors import NoData, ParseError, ReadError
from raydiag.host import Host, OptionalFiles, is_digits
from raydiag.model import Unread
from raydiag.probes import probe
from raydiag.procfs import uptime_if_known

DEV, _SNMP, _NETSTAT = "/proc/net/dev", "/proc/net/snmp", "/proc/net/netstat"
# EstabResets and its like stand in snmp, not among the extensions of netstat.
_TCP = ("RetransSegs", "OutSegs", "EstabResets")
_TCP_EXTENSIONS = ("ListenOverflows", "ListenDrops", "TCPAbortOnTimeout")
# Numbers of a line of /proc/net/dev, in a row for each direction; and where those begin.
_COLUMNS = ("bytes", "packets", "errors", "dropped")
_DIRECTIONS = {"rx": 0, "tx": 8}
_INSIDE = ("veth", "docker", "br-", "virbr", "vnet", "tap", "cni", "cali", "lxc", "cilium", "ifb")


@dataclass(frozen=True)
class NetworkState:
    namespace: str  # of the network, e.g. "net:[4026531840]"; "" unknown
    uptime_s: Optional[float]  # since the machine booted; /proc/uptime
    # Segments and events since boot by the kernel's names; what it does not count is not there.
    tcp: dict[str, int]  # RetransSegs, OutSegs, EstabResets, ListenOverflows, ListenDrops, ...
    interfaces: dict[str, dict[str, int]]  # by name: rx_ and tx_ bytes, packets, errors, dropped
    operstates: dict[str, str]  # by name: "up", "down", "lowerlayerdown", "unknown", ...


def has_counted(state: NetworkState) -> bool:
    """Whether an interface or the accept queues have failed since boot."""
    if state.tcp.get("ListenOverflows") or state.tcp.get("ListenDrops"):
        return True
    interfaces = state.interfaces.values()
    return any(counts.get("rx_errors") or counts.get("tx_errors") for counts in interfaces)


@probe(NetworkState, identity=("namespace",), timeout_s=2, samples=2, watch=has_counted)
def network(host: Host) -> Iterator[Union[NetworkState, Unread]]:
    """One record; an Unread for each file that could not be read or understood.

    Raises NoData when there is neither an interface nor a counter.
    """
    files, namespace = OptionalFiles(host), ""
    tcp = tcp_counters(files)
    interfaces = files.value(DEV, parse_interfaces) or {}
    if not tcp and not interfaces and not files.unread:
        raise NoData("no network statistics")
    with contextlib.suppress(ReadError):
        namespace = host.readlink("/proc/self/ns/net")
    yield NetworkState(
        namespace=namespace,
        uptime_s=uptime_if_known(host),
        tcp=tcp,
        interfaces=interfaces,
        operstates=_operstates(host, interfaces),
    )
    yield from files.unread


def parse_interfaces(text: str, left_out: tuple[str, ...] = _INSIDE) -> dict[str, dict[str, int]]:
    """Counters by interface out of /proc/net/dev, without loopback and those of containers.

    The name may touch the first number. Raises ParseError.
    """
    interfaces: dict[str, dict[str, int]] = {}
    for line in text.split("\n")[2:]:
        name, colon, numbers = line.strip().rpartition(":")
        values = numbers.split()
        if not colon or len(values) < 12 or not all(map(_is_count, values[:12])):
            raise ParseError(f"{DEV}: not an interface: {line[:80]!r}")
        if name != "lo" and not name.startswith(left_out):
            interfaces[name] = {}
            for direction, first in _DIRECTIONS.items():
                for at, column in enumerate(_COLUMNS, first):
                    interfaces[name][f"{direction}_{column}"] = int(values[at])
    return interfaces


def parse_pairs(text: str, protocol: str) -> dict[str, int]:
    """Numbers by name of one protocol: its header and its values are two lines. May be negative.

    Raises NoData when the protocol is not in the text, ParseError when the two lines do not match.
    """
    lines = [line.split()[1:] for line in text.split("\n") if line.startswith(f"{protocol}:")]
    if not lines:
        raise NoData(f"no {protocol}")
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        raise ParseError(f"{protocol}: header and values do not match")
    for value in lines[1]:
        if not _is_count(value[1:] if value[0] == "-" else value):
            raise ParseError(f"{protocol}: not a number: {value[:80]!r}")
    return dict(zip(lines[0], map(int, lines[1])))


def tcp_counters(files: OptionalFiles) -> dict[str, int]:
    """What the kernel counts of TCP, by its names."""
    counters = {}
    for path, protocol, names in ((_SNMP, "Tcp", _TCP), (_NETSTAT, "TcpExt", _TCP_EXTENSIONS)):
        numbers = files.value(path, functools.partial(parse_pairs, protocol=protocol)) or {}
        counters.update({name: numbers[name] for name in names if numbers.get(name, -1) >= 0})
    return counters


def _is_count(value: str) -> bool:
    return is_digits(value) and len(value) <= 20 and int(value) < 1 << 64


def _operstates(host: Host, interfaces: dict[str, dict[str, int]]) -> dict[str, str]:
    """Of the interfaces that /sys shows: it may be that of another network namespace."""
    states = {}
    for name in interfaces:
        with contextlib.suppress(ReadError):
            states[name] = host.read_text(f"/sys/class/net/{name}/operstate", 256)
    return states
