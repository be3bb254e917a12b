from __future__ import annotations

import ipaddress
import os
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.listeners import (
    Listener,
    Listeners,
    as_text,
    listeners,
    local_v4,
    parse_sockets,
    program_of,
)

# A write-only setting: opening it for reading is refused to everybody, root included.
EACCES_FILE = "/proc/sys/vm/compact_memory"
TITLE = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid inode"
DASHBOARD = "/usr/bin/python3\0-u\0/opt/ray/dashboard/dashboard.py\0--host=0.0.0.0\0"


def line(address: str, port: int, inode: int, state: str = "0A") -> str:
    """A line of tcp or tcp6, as the kernel of this machine prints it."""
    packed = ipaddress.ip_address(address).packed
    numbers = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    shown = "".join(f"{int.from_bytes(number, sys.byteorder):08X}" for number in numbers)
    return (
        f"   0: {shown}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000"
        f"     0        0 {inode} 1 0000000000000000 100 0 0 10 0"
    )


def trie(*addresses: str) -> str:
    lines = ["Main:", "  +-- 0.0.0.0/0 3 0 5", "     |-- 0.0.0.0", "        /0 universe UNICAST"]
    for address in ("127.0.0.1", *addresses):
        lines += [f"           |-- {address}", "              /32 host LOCAL"]
    lines += ["           |-- 198.211.5.255", "              /32 link BROADCAST"]
    return "\n".join([*lines, "Local:", *lines[1:]])


class Node:
    """A fake /proc below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("net/fib_trie", trie("10.77.0.1"))
        self.tcp()

    def write(self, name: str, text: str) -> None:
        (self.root / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / "proc" / name).write_text(text)

    def tcp(self, *lines: str, table: str = "tcp") -> None:
        self.write(f"net/{table}", "\n".join([TITLE, *lines]))

    def add(self, pid: int, comm: str, command: str, *inodes: int, state: str = "S") -> None:
        self.write(f"{pid}/stat", f"{pid} ({comm}) {state}{' 1' * 49}\n")
        self.write(f"{pid}/cmdline", command)
        descriptors = self.root / f"proc/{pid}/fd"
        descriptors.mkdir()
        (descriptors / "0").symlink_to("/dev/null")
        for number, inode in enumerate(inodes, start=3):
            (descriptors / str(number)).symlink_to(f"socket:[{inode}]")

    def read(self) -> tuple[Listeners, list[Unread]]:
        found = list(listeners(Host(str(self.root))))
        (record,) = [item for item in found if isinstance(item, Listeners)]
        return record, [item for item in found if isinstance(item, Unread)]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_ok_the_dashboard_on_all_addresses(node: Node) -> None:
    node.tcp(
        line("0.0.0.0", 8265, 11),
        line("127.0.0.1", 9190, 12),
        line("10.77.0.1", 6379, 13),
        line("10.77.0.1", 6006, 14, state="01"),
    )
    node.add(20, "gcs_server", "gcs_server\0", 13)
    node.add(21, "python3", DASHBOARD, 11, 99)
    record, unread = node.read()
    assert unread == []
    assert record == Listeners(
        public_v4=(),
        public_v6=(),
        sockets=(
            Listener("10.77.0.1", 6379, None, ""),  # well where it is, so nobody looked for it
            Listener("0.0.0.0", 8265, 21, "dashboard"),
        ),
    )


def test_ok_a_public_host_has_all_holders_looked_for(node: Node) -> None:
    node.write("net/fib_trie", trie("10.77.0.1", "198.211.5.7"))
    node.tcp(line("198.211.5.7", 6379, 11), line("0.0.0.0", 9400, 12), line("0.0.0.0", 22, 13))
    node.tcp(line("::", 52365, 14), line("::1", 8265, 15), table="tcp6")
    node.add(20, "gcs_server", "gcs_server\0", 11)
    node.add(21, "python3", "python3\0-c\0serve()\0/tmp/node_hw_metrics.prom\x009400\0", 12)
    node.add(22, "sshd", "sshd\0", 13)
    node.add(23, "ray::DashboardA", "ray::DashboardAgent\0", 14)
    record, unread = node.read()
    assert unread == []
    assert record.public_v4 == ("198.211.5.7",)
    assert record.sockets == (
        Listener("0.0.0.0", 22, None, ""),
        Listener("198.211.5.7", 6379, 20, "gcs_server"),
        Listener("0.0.0.0", 9400, 21, "exporter"),
        Listener("::", 52365, 23, "agent"),
    )


def test_ok_public_addresses_of_ipv6(node: Node) -> None:
    addresses = ("fe80::1", "fd00::2", "2a01:4f8::5", "2001:db8::1", "::1")
    shown = [f"{ipaddress.IPv6Address(one).packed.hex()} 02 40 00 80 eth0" for one in addresses]
    node.write("net/if_inet6", "\n".join(shown))
    assert node.read()[0].public_v6 == ("2a01:4f8:0:0:0:0:0:5",)


def test_nothing_of_processes_is_read_when_nothing_is_exposed(node: Node) -> None:
    node.tcp(line("127.0.0.1", 8265, 11), line("10.77.0.1", 6379, 12), line("0.0.0.0", 9400, 13))
    node.add(20, "python3", DASHBOARD, 11, 12, 13)
    (node.root / "proc/20/stat").unlink()
    (node.root / "proc/20/stat").symlink_to("/proc/self/mem")
    assert {one.pid for one in node.read()[0].sockets} == {None}


def test_of_a_blocked_process_the_command_is_not_read(node: Node) -> None:
    node.tcp(line("0.0.0.0", 8265, 11))
    node.add(20, "python3", DASHBOARD, 11, state="D")
    assert node.read()[0].sockets == (Listener("0.0.0.0", 8265, None, ""),)


def test_no_data_without_a_table(node: Node) -> None:
    (node.root / "proc/net/tcp").unlink()
    with pytest.raises(NoData):
        node.read()


@pytest.mark.parametrize("name", ["tcp", "fib_trie", "tcp6"])
def test_denied_table(node: Node, name: str) -> None:
    (node.root / "proc/net" / name).unlink(missing_ok=True)
    (node.root / "proc/net" / name).symlink_to(EACCES_FILE)
    with pytest.raises(Denied):
        node.read()


class Refusing(Host):
    """Does not show descriptors, as of processes of other users."""

    def listdir(self, path: str) -> list[str]:
        if path.endswith("/fd"):
            raise Denied(f"{path}: Permission denied")
        return super().listdir(path)


def test_denied_descriptors_are_reported(node: Node) -> None:
    node.tcp(line("0.0.0.0", 8265, 11))
    node.add(20, "python3", DASHBOARD, 11)
    record, unread = listeners(Refusing(str(node.root)))
    assert isinstance(record, Listeners)
    assert record.sockets == (Listener("0.0.0.0", 8265, None, ""),)
    assert isinstance(unread, Unread)
    assert unread.status is Status.DENIED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        f"{TITLE}\n" + line("10.0.0.1", 1, 7).replace(":0001 ", ": "),
        f"{TITLE}\n" + line("10.0.0.1", 1, 7).replace(":0001 ", ":FFFFF "),
    ],
)
def test_malformed_table(node: Node, text: str) -> None:
    node.write("net/tcp", text)
    with pytest.raises(ParseError, match="/proc/net/tcp"):
        node.read()


def test_malformed_addresses_of_ipv6(node: Node) -> None:
    node.write("net/if_inet6", "eth0 is up")
    with pytest.raises(ParseError, match="if_inet6"):
        node.read()


def test_a_table_may_be_cut_anywhere() -> None:
    whole = "\n".join([TITLE, line("10.0.0.1", 80, 4242), line("10.0.0.2", 81, 4343)])
    for end in range(len(TITLE), len(whole)):
        found = parse_sockets(whole[:end], "tcp")
        assert found.keys() <= {"4242", "4343"}


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (["python", "/x/ray/dashboard/agent.py", "--port=1"], "agent"),
        (["/opt/bin/python3", "/opt/bin/tensorboard", "--logdir", "x"], "tensorboard"),
        (["python3", "-m", "tensorboard.main"], "tensorboard"),
        (["python3", "-u", "train.py", "--dashboard"], ""),
        (["ray::Trainer.step"], ""),
        ([""], ""),
        (["python3", "-m", "raydiag", "exporter", "run"], "exporter"),
        (["/usr/bin/python3", "/opt/raydiag.pyz", "exporter", "run"], "exporter"),
        (["/usr/bin/python3", "/usr/local/bin/raydiag", "watch"], ""),
    ],
)
def test_programs(arguments: list[str], program: str) -> None:
    assert program_of(arguments) == program


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(1, 65535))
def test_addresses_survive(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    ((packed, found_port),) = parse_sockets(
        f"{TITLE}\n{line(str(address), port, 7)}", "tcp"
    ).values()
    shown = ipaddress.ip_address(as_text(packed))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    assert (shown, found_port) == (mapped or address, port)


@given(st.one_of(st.text(), st.text("|-/.0123456789 LOCALhost\n")))
def test_arbitrary_text_gives_sockets_or_a_read_error(text: str) -> None:
    assert all(len(address) == 4 for address in local_v4(text))
    try:
        parse_sockets(f"{TITLE}\n{text}", "tcp")
    except ReadError as error:
        assert str(error).startswith("tcp: ")


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        *[(one, False) for one in ("10.1.2.3", "172.31.0.1", "192.168.9.9", "100.64.0.1")],
        *[(one, False) for one in ("169.254.1.1", "127.0.0.2", "192.0.2.7", "198.18.0.1")],
        *[(one, True) for one in ("172.32.0.1", "100.128.0.1", "8.8.4.4", "192.1.0.1")],
    ],
)
def test_public_addresses(node: Node, address: str, is_public: bool) -> None:
    node.write("net/fib_trie", trie(address))
    assert node.read()[0].public_v4 == ((address,) if is_public else ())


def test_real_socket_is_seen() -> None:
    with socket.socket() as listening:
        listening.bind(("0.0.0.0", 0))
        listening.listen()
        port = listening.getsockname()[1]
        (record,) = [x for x in listeners(Host()) if isinstance(x, Listeners)]
    assert [one.address for one in record.sockets if one.port == port] == ["0.0.0.0"]
    assert os.getpid() not in {one.pid for one in record.sockets}  # no service of Ray
