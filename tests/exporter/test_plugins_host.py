"""Host, network and RDMA plugins over odd files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydiag.exporter import plugins
from raydiag.exporter.reading import NodeFiles, run
from tests.cluster import fake_rdma
from tests.exporter import fake_sys

IONIC = "/sys/class/infiniband/ionic_0"


def answer(root: Path, name: str, source: str | None = None) -> dict[str, Any]:
    return run(plugins.load(name), source, NodeFiles(str(root)), {})


def values(root: Path, name: str, source: str | None = None) -> dict[str, float]:
    got = answer(root, name, source)
    assert got["failed"] is None
    return {sample.name: sample.value for sample in got["samples"]}


def port(root: Path, device: str = "ionic_0") -> Path:
    return fake_sys.port_directory(root, device)


# ---- network


def test_interfaces_of_containers_are_left_out_and_others_are_not(tmp_path: Path) -> None:
    names = ("lo", "docker0", "docker1", "vethab", "vet", "bond0", "tap3", "eth0.100")
    lines = [f" {name}: {' '.join(['5'] * 16)}" for name in names]
    fake_sys.write(tmp_path / "proc/net/dev", "\n".join(["a", "b", *lines]))
    devices = {one.labels["device"] for one in answer(tmp_path, "net")["samples"]}
    assert devices == {"docker1", "vet", "bond0", "tap3", "eth0.100"}


@pytest.mark.parametrize("text", ["a\nb\neth0: 1 2 3", "a\nb\n\x00\xff", "a\nb\neth0 1"])
def test_interfaces_that_make_no_sense_are_an_error(tmp_path: Path, text: str) -> None:
    fake_sys.write(tmp_path / "proc/net/dev", text)
    assert answer(tmp_path, "net")["failed"][0] == "error"


def test_tcp_resets_are_those_of_snmp_and_not_of_netstat(tmp_path: Path) -> None:
    fake_sys.write(tmp_path / "proc/net/snmp", "Tcp: RetransSegs EstabResets\nTcp: 4 9")
    fake_sys.write(tmp_path / "proc/net/netstat", "TcpExt: EstabResets ListenDrops\nTcpExt: 77 3")
    assert values(tmp_path, "tcp") == {
        "hw_tcp_retransmits_total": 4,
        "hw_tcp_estab_resets_total": 9,
        "hw_tcp_listen_drops_total": 3,
    }


def test_half_a_tcp_file_costs_its_own_half(tmp_path: Path) -> None:
    fake_sys.write(tmp_path / "proc/net/snmp", "Tcp: RetransSegs EstabResets\nTcp: 4")
    fake_sys.write(tmp_path / "proc/net/netstat", "TcpExt: ListenDrops\nTcpExt: 3")
    got = answer(tmp_path, "tcp")
    assert [one.name for one in got["samples"]] == ["hw_tcp_listen_drops_total"]
    assert [source for source, _, _ in got["unread"]] == ["/proc/net/snmp"]


# ---- host


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [
        ("procs", "proc/stat", "ctxt 5\nprocs_running 2"),
        ("procs", "proc/stat", "ctxt x\nprocs_running 2\nprocs_blocked 1"),
        ("memory", "proc/meminfo", "Dirty: 5 kB\nWritebackTmp: 7 kB"),
        ("memory", "proc/meminfo", "\x00\xff"),
        ("io_pressure", "proc/pressure/io", "some avg10=x avg60=0 avg300=0 total=0"),
    ],
)
def test_a_file_without_its_numbers_is_an_error(
    tmp_path: Path, name: str, path: str, text: str
) -> None:
    fake_sys.write(tmp_path / path, text)
    assert answer(tmp_path, name)["failed"][0] == "error"


def test_a_kernel_that_counts_no_kills_gives_no_zero(tmp_path: Path) -> None:
    fake_sys.write(tmp_path / "proc/vmstat", "oom_kill_disable 1\nnr_free 2")
    assert answer(tmp_path, "oom")["failed"][0] == "no_data"


def test_numbers_of_tasks_stand_after_a_line_of_a_million_interrupts(tmp_path: Path) -> None:
    interrupts = "intr " + "1 " * 500_000
    text = f"cpu 1 2 3\n{interrupts}\nctxt 5\nprocs_running 2\nprocs_blocked 1\nnot_ctxt 6\n"
    fake_sys.write(tmp_path / "proc/stat", text)
    assert values(tmp_path, "procs")["hw_context_switches_total"] == 5


def test_pressure_of_a_kernel_without_the_line_for_all_tasks(tmp_path: Path) -> None:
    fake_sys.write(tmp_path / "proc/pressure/io", "some avg10=1.00 avg60=0 avg300=2.00 total=9")
    assert values(tmp_path, "io_pressure") == {
        "hw_io_pressure_some_pct": 1.0,
        "hw_io_pressure_some_avg300_pct": 2.0,
    }


# ---- RDMA


def test_words_are_made_bytes_and_a_missing_standard_counter_is_zero(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", devices=1)
    fake_sys.write(port(tmp_path) / "counters/port_rcv_data", 1000)
    fake_sys.write(port(tmp_path) / "counters/port_rcv_packets", 7)
    got = values(tmp_path, "rdma", IONIC)
    assert got["hw_rdma_rx_bytes_total"] == 4000
    assert got["hw_rdma_rx_pkts_total"] == 7
    # The directory is there: what is not in it stands at 0, and hw_counters are not asked.
    assert got["hw_rdma_tx_bytes_total"] == got["hw_rdma_tx_pkts_total"] == 0


def test_without_standard_counters_traffic_is_the_cards_own(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", devices=1)
    fake_rdma.set_counter(tmp_path / "sys", "ionic_0", "rx_rdma_ucast_bytes", 4321)
    assert values(tmp_path, "rdma", IONIC)["hw_rdma_rx_bytes_total"] == 4321


def test_a_missing_hardware_counter_gives_no_sample(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", devices=1)
    fake_rdma.counter_file(tmp_path / "sys", "ionic_0", "tx_rdma_retx_pkts").unlink()
    got = values(tmp_path, "rdma", IONIC)
    assert "hw_rdma_tx_retx_pkts_total" not in got
    assert got["hw_rdma_tx_retx_bytes_total"] == 7


@pytest.mark.parametrize("text", ["-1", "N/A (no PMA)", "18446744073709551615"])
def test_a_counter_that_does_not_count_gives_no_sample(tmp_path: Path, text: str) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", devices=1)
    fake_sys.write(port(tmp_path) / "counters/port_rcv_data", text)
    fake_rdma.set_counter(tmp_path / "sys", "ionic_0", "tx_rdma_ack_timeout", text)
    got = values(tmp_path, "rdma", IONIC)
    assert not {"hw_rdma_rx_bytes_total", "hw_rdma_tx_ack_timeout_total"} & got.keys()


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("mlx5", {"tx_ack_timeout", "rx_cnp_pkts", "tx_cnp_pkts", "rx_ecn_pkts"}),
        ("mlx5", {"req_rx_cqe_err", "req_tx_retry_excd_err"}),
        ("bnxt_re", {"tx_ack_timeout", "rx_cnp_pkts", "tx_cnp_pkts", "req_tx_retry_excd_err"}),
    ],
)
def test_what_other_drivers_count_alike_has_the_same_metric(
    tmp_path: Path, driver: str, expected: set[str]
) -> None:
    (device,) = fake_rdma.write_rdma(tmp_path / "sys", driver, devices=1)
    got = values(tmp_path, "rdma", f"/sys/class/infiniband/{device}")
    assert {got[f"hw_rdma_{what}_total"] for what in expected} == {7}
    factor = 4 if driver == "mlx5" else 1
    assert got["hw_rdma_rx_bytes_total"] == factor * 123_456_789
    assert got["hw_rdma_tx_pkts_total"] == 123_456_789


@pytest.mark.parametrize(
    ("state", "expected"),
    [("4: ACTIVE", 1), ("5: ACTIVE_DEFER", 1), ("1: DOWN", 0), ("2: INIT", 0), ("3: ARMED", 0)],
)
def test_a_port_is_up_when_it_is_active(tmp_path: Path, state: str, expected: int) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", devices=1)
    fake_sys.write(port(tmp_path) / "state", state)
    assert values(tmp_path, "rdma", IONIC)["hw_rdma_port_state"] == expected


@pytest.mark.parametrize("state", ["", "ACTIVE", "\x00\xff"])
def test_a_state_that_is_none_gives_no_sample(tmp_path: Path, state: str) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", devices=1)
    fake_sys.write(port(tmp_path) / "state", state)
    assert "hw_rdma_port_state" not in values(tmp_path, "rdma", IONIC)


def test_every_port_of_a_card_has_its_series(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", devices=1)
    fake_sys.write(port(tmp_path).parent / "2/state", "1: DOWN")
    samples = answer(tmp_path, "rdma", IONIC)["samples"]
    states = {s.labels["port"]: s.value for s in samples if s.name == "hw_rdma_port_state"}
    assert states == {"1": 1, "2": 0}


def test_a_card_that_refuses_its_first_counter_is_left_alone(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", devices=1)
    directory = port(tmp_path) / "hw_counters"
    for path in directory.iterdir():
        fake_sys.refuse(path)
    files, plugin = NodeFiles(str(tmp_path)), plugins.load("rdma")
    got = run(plugin, IONIC, files, {})
    assert [one.name for one in got["samples"]] == ["hw_rdma_port_state"]
    assert len(got["unread"]) == 1
    alone = f"{IONIC}/ports/1/hw_counters"
    assert alone in got["left_alone"]
    assert len(got["left_alone"]) == 2
    again = run(plugin, IONIC, files, {})
    assert ([one.name for one in again["samples"]], again["unread"]) == (["hw_rdma_port_state"], [])
    assert again["left_alone"] == got["left_alone"]


def test_one_counter_that_is_refused_costs_no_other_for_long(tmp_path: Path) -> None:
    fake_rdma.write_rdma(tmp_path / "sys", devices=1)
    fake_sys.refuse(port(tmp_path) / "hw_counters/tx_rdma_cnp_pkts")
    files, plugin = NodeFiles(str(tmp_path)), plugins.load("rdma")
    first = run(plugin, IONIC, files, {})
    assert first["left_alone"] == [f"{IONIC}/ports/1/hw_counters/tx_rdma_cnp_pkts"]
    names = {one.name for one in run(plugin, IONIC, files, {})["samples"]}
    assert "hw_rdma_tx_cnp_pkts_total" not in names
    assert {"hw_rdma_tx_retx_pkts_total", "hw_rdma_req_rx_cqe_err_total"} <= names


def test_a_card_that_is_gone_gives_nothing(tmp_path: Path) -> None:
    got = answer(tmp_path, "rdma", "/sys/class/infiniband/ionic_9")
    assert got["samples"] == []
