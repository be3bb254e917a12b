from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData, ParseError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.rdma import RdmaPort, parse_count, parse_rate, rdma, rdma_devices
from tests.cluster import fake_rdma

# Real kernel files whose reading fails for everybody, root included: a write-only setting (EACCES)
# and unmapped memory (EIO).
EACCES_FILE, EIO_FILE = "/proc/sys/vm/compact_memory", "/proc/self/mem"


class CountingHost(Host):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened: list[str] = []

    def read_bytes(self, path: str, limit: int = 4096) -> bytes:
        self.opened.append(path)
        return super().read_bytes(path, limit)


def source(device: str) -> str:
    return f"/sys/class/infiniband/{device}"


def read(root: Path, device: str) -> RdmaPort:
    (record,) = rdma(Host(str(root)), source(device))
    assert isinstance(record, RdmaPort)
    return record


def refused(host: Host, device: str) -> list[RdmaPort | Unread]:
    """What a device gives before it ends with NoData, so that no second sample asks it again."""
    found: list[RdmaPort | Unread] = []
    with pytest.raises(NoData):
        for item in rdma(host, source(device)):
            found.append(item)
    return found


def replace_by(root: Path, device: str, name: str, target: str) -> None:
    path = root / source(device)[1:] / "ports/1" / name
    path.unlink()
    path.symlink_to(target)


def test_ok_ionic(tmp_path: Path) -> None:
    assert fake_rdma.write_rdma(tmp_path / "sys", "ionic", devices=3)[1] == "ionic_1"
    port = read(tmp_path, "ionic_1")
    counters = port.counters
    assert port == RdmaPort(
        device="ionic_1",
        port=1,
        driver="ionic",
        address="0000:16:00.0",
        virtual_function=False,
        netdev="eth3",
        link_layer="Ethernet",
        state="ACTIVE",
        phys_state="LinkUp",
        rate_gbits_per_s=400.0,
        width="4X NDR",
        counters=counters,
    )
    assert counters["tx_rdma_retx_pkts"] == 7
    assert counters["rx_rdma_ucast_bytes"] == counters["tx_rdma_ucast_pkts"] == 123_456_789
    assert "req_tx_loc_acc_err" not in counters  # nobody asks for it, so the card is not asked
    assert not any(name.startswith("port_") for name in counters)


def test_ok_mlx5_has_data_in_units_of_4_bytes(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", "mlx5", devices=1)
    port = read(tmp_path, "mlx5_0")
    assert (port.driver, port.counters["local_ack_timeout_err"]) == ("mlx5_core", 7)
    assert port.counters["req_cqe_error"] == 7
    assert port.counters["port_rcv_data_bytes"] == 4 * 123_456_789
    assert port.counters["port_rcv_packets"] == 123_456_789
    assert "port_rcv_data" not in port.counters


def test_ok_bnxt_re_that_is_down(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", "bnxt_re", devices=2, unused=["bnxt_re1"])
    fake_rdma.set_state(tmp_path / "sys", "bnxt_re0", "DOWN", "2: Polling")
    used, unused = read(tmp_path, "bnxt_re0"), read(tmp_path, "bnxt_re1")
    assert (used.driver, used.state, used.phys_state) == ("bnxt_en", "DOWN", "Polling")
    assert (used.counters["rx_pkts"], unused.counters["rx_pkts"]) == (123_456_789, 0)
    assert (unused.state, unused.phys_state) == ("DOWN", "Disabled")


def test_ok_one_source_per_device(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", "mlx5", devices=2)
    assert rdma_devices(Host(str(tmp_path))) == [source("mlx5_0"), source("mlx5_1")]


def test_ok_counters_of_a_fake_can_grow(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", "ionic", devices=1)
    fake_rdma.grow_counter(tmp_path / "sys", "ionic_0", "tx_rdma_retx_pkts", 5)
    fake_rdma.set_rate(tmp_path / "sys", "ionic_0", "2.5 Gb/sec (1X SDR)")
    port = read(tmp_path, "ionic_0")
    assert port.counters["tx_rdma_retx_pkts"] == 12
    assert (port.rate_gbits_per_s, port.width) == (2.5, "1X SDR")


def test_ok_software_device_and_two_ports(tmp_path: Path) -> None:
    ports = tmp_path / source("rxe0")[1:] / "ports"
    for number in ("10", "2"):
        (ports / number).mkdir(parents=True)
        (ports / number / "state").write_text("4: ACTIVE\n")
    first, second = rdma(Host(str(tmp_path)), source("rxe0"))
    assert isinstance(first, RdmaPort)
    assert isinstance(second, RdmaPort)
    assert (first.port, second.port) == (2, 10)
    assert (first.driver, first.address, first.netdev, first.phys_state) == ("", "", "", "")
    assert (first.rate_gbits_per_s, first.counters, first.virtual_function) == (None, {}, False)


def test_ok_virtual_function(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", "mlx5", devices=1)
    (tmp_path / source("mlx5_0")[1:] / "device/physfn").symlink_to(".")
    assert read(tmp_path, "mlx5_0").virtual_function


@pytest.mark.parametrize("text", ["-1", "N/A (no PMA)", "", str(2**64 - 1)])
def test_no_data_counter_is_absent_and_not_zero(tmp_path: Path, text: str) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", "mlx5", devices=1)
    fake_rdma.set_counter(tmp_path / "sys", "mlx5_0", "symbol_error", text)
    fake_rdma.set_counter(tmp_path / "sys", "mlx5_0", "port_xmit_data", text)
    counters = read(tmp_path, "mlx5_0").counters
    assert not {"symbol_error", "port_xmit_data", "port_xmit_data_bytes"} & counters.keys()
    assert counters["link_downed"] == 7


def test_no_data_without_devices_or_ports(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    with pytest.raises(NoData):
        rdma_devices(host)
    (tmp_path / source("mlx5_0")[1:] / "ports").mkdir(parents=True)
    with pytest.raises(NoData):
        list(rdma(host, source("mlx5_0")))
    with pytest.raises(NoData):
        list(rdma(host, source("mlx5_1")))


@pytest.mark.parametrize(
    ("target", "status"), [(EIO_FILE, Status.ERROR), (EACCES_FILE, Status.DENIED)]
)
def test_denied_or_refusing_device_is_left_alone(
    tmp_path: Path, target: str, status: Status
) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", "mlx5", devices=1)
    replace_by(tmp_path, "mlx5_0", "state", target)
    host = CountingHost(str(tmp_path))
    (unread,) = refused(host, "mlx5_0")
    assert isinstance(unread, Unread)
    assert (unread.source, unread.status) == (source("mlx5_0"), status)
    assert {path.rsplit("/", 1)[-1] for path in host.opened} == {"state"}


def test_denied_counter_ends_the_reading_and_keeps_the_rest(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", "mlx5", devices=1)
    replace_by(tmp_path, "mlx5_0", "counters/link_downed", EIO_FILE)
    host = CountingHost(str(tmp_path))
    port, unread = refused(host, "mlx5_0")
    assert isinstance(port, RdmaPort)
    assert (port.state, port.counters["packet_seq_err"]) == ("ACTIVE", 7)
    assert not any(name.startswith("link_") for name in port.counters)
    assert isinstance(unread, Unread)
    assert "counters/link_downed" in unread.reason
    assert host.opened[-1].endswith("counters/link_downed")


def test_denied_directory(tmp_path: Path) -> None:
    class Refusing(Host):
        def listdir(self, path: str) -> list[str]:
            raise Denied(path)

    with pytest.raises(Denied):
        rdma_devices(Refusing(str(tmp_path)))


def test_malformed_files_are_unread_once(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", "mlx5", devices=1)
    fake_rdma.set_counter(tmp_path / "sys", "mlx5_0", "packet_seq_err", "seven")
    fake_rdma.set_rate(tmp_path / "sys", "mlx5_0", "fast")
    (tmp_path / source("mlx5_0")[1:] / "ports/1/state").unlink()
    (tmp_path / source("mlx5_0")[1:] / "ports/1/state").write_text("ACTIVE\n")
    port, unread = rdma(Host(str(tmp_path)), source("mlx5_0"))
    assert isinstance(port, RdmaPort)
    assert (port.state, port.rate_gbits_per_s, port.phys_state) == ("", None, "LinkUp")
    assert "packet_seq_err" not in port.counters
    assert isinstance(unread, Unread)
    assert (unread.source, unread.status) == (source("mlx5_0"), Status.ERROR)
    assert "not a state" in unread.reason
    assert "not a rate" in unread.reason


@given(st.integers(0, 2**63 - 1))
def test_counts_are_kept(count: int) -> None:
    assert parse_count(str(count)) == count


@given(st.integers(1, 2**63))
def test_negative_counts_are_absent_however_they_are_printed(count: int) -> None:
    assert parse_count(str(-count)) is None
    assert parse_count(str(2**64 - count)) is None


@given(st.text())
def test_arbitrary_text_is_a_count_or_absent_or_malformed(text: str) -> None:
    try:
        count = parse_count(text)
    except ParseError:
        return
    assert count is None or 0 <= count < 2**63


@given(st.floats(0, 1e6).map(lambda rate: f"{rate:.1f}"), st.sampled_from(["4X NDR", "1X"]))
def test_rates_are_kept(rate: str, width: str) -> None:
    assert parse_rate(f"{rate} Gb/sec ({width})") == (float(rate), width)


@given(st.text())
def test_arbitrary_text_is_no_rate(text: str) -> None:
    with pytest.raises(ParseError):
        parse_rate(text)
