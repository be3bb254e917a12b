from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import NoData, ParseError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.network import NetworkState, network, parse_interfaces, parse_pairs

# Real kernel files whose reading fails for everybody, root included: a write-only setting (EACCES)
# and unmapped memory (EIO).
EACCES_FILE, EIO_FILE = "/proc/sys/vm/compact_memory", "/proc/self/mem"

HEADER = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
"""
DEV = (
    HEADER
    + """\
    lo:  900   9    0    0    0     0          0         0      900     9    0    0    0     0    0
  eth0:18446744073709551615 102 3 4 0 0 0 0 501 52 6 7 0 0 0 0
vethf00:  1  1 1 1 0 0 0 0 1 1 1 1 0 0 0 0
docker0: 1  1 1 1 0 0 0 0 1 1 1 1 0 0 0 0
eth0.12: 11  1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
"""
)
SNMP = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm MaxConn EstabResets OutSegs RetransSegs
Tcp: 1 -1 21 25741 2
"""
NETSTAT = """\
TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPAbortOnTimeout
TcpExt: 8 3 4 5
IpExt: InNoRoutes
IpExt: 0
"""
FILES = {
    "proc/net/dev": DEV,
    "proc/net/snmp": SNMP,
    "proc/net/netstat": NETSTAT,
    "proc/uptime": "41234.56 80000.00\n",
    "sys/class/net/eth0/operstate": "up\n",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(root: Path) -> tuple[NetworkState, list[Unread]]:
    state, *unread = network(Host(str(root)))
    assert isinstance(state, NetworkState)
    return state, [item for item in unread if isinstance(item, Unread)]


def test_ok_everything_in_one_record(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/net").symlink_to("net:[4026531840]")
    state, unread = read(tmp_path)
    assert unread == []
    assert (state.namespace, state.uptime_s) == ("net:[4026531840]", 41234.56)
    assert state.tcp == {
        "RetransSegs": 2,
        "OutSegs": 25741,
        "EstabResets": 21,
        "ListenOverflows": 3,
        "ListenDrops": 4,
        "TCPAbortOnTimeout": 5,
    }
    assert list(state.interfaces) == ["eth0", "eth0.12"]
    assert state.interfaces["eth0"] == {
        "rx_bytes": 2**64 - 1,
        "rx_packets": 102,
        "rx_errors": 3,
        "rx_dropped": 4,
        "tx_bytes": 501,
        "tx_packets": 52,
        "tx_errors": 6,
        "tx_dropped": 7,
    }
    assert state.operstates == {"eth0": "up"}


def test_ok_on_this_machine() -> None:
    state, unread = read(Path("/"))
    assert unread == []
    assert state.uptime_s is not None
    assert state.tcp["OutSegs"] >= 0
    assert "lo" not in state.interfaces
    assert state.namespace.startswith("net:[")


def test_ok_kernel_that_counts_less(tmp_path: Path) -> None:
    write(tmp_path, {"proc/net/netstat": "TcpExt: ListenDrops\nTcpExt: 4\n"})
    state, unread = read(tmp_path)
    assert unread == []
    assert state == NetworkState("", None, {"ListenDrops": 4}, {}, {})


def test_no_data_without_any_file(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        list(network(Host(str(tmp_path))))


def test_denied_file_is_unread_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    for name, target in (("dev", EACCES_FILE), ("snmp", EIO_FILE)):
        (tmp_path / "proc/net" / name).unlink()
        (tmp_path / "proc/net" / name).symlink_to(target)
    state, unread = read(tmp_path)
    assert (state.interfaces, state.uptime_s) == ({}, 41234.56)
    assert state.tcp == {"ListenOverflows": 3, "ListenDrops": 4, "TCPAbortOnTimeout": 5}
    assert {(item.source, item.status) for item in unread} == {
        ("/proc/net/dev", Status.DENIED),
        ("/proc/net/snmp", Status.ERROR),
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dev", HEADER + "  eth0: 1 2 3\n"),
        ("dev", HEADER + "  eth0: a 2 3 4 5 6 7 8 9 10 11 12\n"),
        ("dev", HEADER + "  eth0 1 2 3 4 5 6 7 8 9 10 11 12\n"),
        ("snmp", "Tcp: OutSegs RetransSegs\nTcp: 1\n"),
        ("snmp", "Tcp: OutSegs\n"),
        ("netstat", "TcpExt: ListenDrops\nTcpExt: -\n"),
        ("netstat", "TcpExt: ListenDrops\nTcpExt: many\n"),
    ],
)
def test_malformed_file_is_unread(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, {**FILES, f"proc/net/{name}": text})
    state, (unread,) = read(tmp_path)
    assert (unread.source, unread.status) == (f"/proc/net/{name}", Status.ERROR)
    assert bool(state.interfaces) == (name != "dev")
    assert ("OutSegs" in state.tcp) == (name != "snmp")


@pytest.mark.parametrize("text", ["", "nan nan\n", "-5 1\n", "long\n", "inf\n"])
def test_malformed_uptime_is_unknown(tmp_path: Path, text: str) -> None:
    write(tmp_path, {**FILES, "proc/uptime": text})
    assert read(tmp_path)[0].uptime_s is None


@given(
    st.dictionaries(
        st.text("abcdefgh0123456789.:@-", min_size=1, max_size=15),
        st.lists(st.integers(0, 2**64 - 1), min_size=16, max_size=16),
    ),
    st.sampled_from(["", " "]),
)
def test_interfaces_survive(lines: dict[str, list[int]], gap: str) -> None:
    text = HEADER + "\n".join(
        f"{name:>6}:{gap}{' '.join(map(str, numbers))}" for name, numbers in lines.items()
    )
    for name, columns in (parse_interfaces(text) if lines else {}).items():
        assert columns["rx_bytes"] == lines[name][0]
        assert columns["tx_dropped"] == lines[name][11]


@given(st.dictionaries(st.text("abcXYZ", min_size=1), st.integers(-(2**63), 2**63)))
def test_pairs_survive(numbers: dict[str, int]) -> None:
    text = f"Ip: a\nIp: 1\nTcp: {' '.join(numbers)}\nTcp: {' '.join(map(str, numbers.values()))}"
    assert parse_pairs(text, "Tcp") == numbers


@given(st.text())
def test_arbitrary_text_is_parsed_or_refused(text: str) -> None:
    for parse in (parse_interfaces, lambda found: parse_pairs(found, "Tcp")):
        try:
            parse(f"Tcp:{text}")
        except (NoData, ParseError):
            continue
