"""The files of a node with GPUs and RDMA cards, each counter with a number of its own.

What was planted is told in the kernel's own words and units, so that a test can compute the metrics
from it without a line of ours.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from tests.cluster import fake_node, fake_rdma

BLOCKS = fake_node.RAS_BLOCKS
# Every counter of ionic that has a metric.
HW_COUNTERS = (
    *("rx_rdma_ucast_bytes", "tx_rdma_ucast_bytes", "rx_rdma_ucast_pkts", "tx_rdma_ucast_pkts"),
    *("tx_rdma_retx_bytes", "tx_rdma_retx_pkts", "tx_rdma_ack_timeout"),
    *("rx_rdma_cnp_pkts", "tx_rdma_cnp_pkts", "req_rx_cqe_err", "req_tx_retry_excd_err"),
    *("rx_rdma_ecn_pkts", "tx_rdma_ccl_cts_retx_pkts", "tx_rdma_ccl_cts_retx_bytes"),
    *("tx_rdma_ccl_cts_ack_timeout", "tx_rdma_ccl_cts_pkts", "tx_rdma_ccl_cts_bytes"),
    *("rx_rdma_ccl_cts_pkts", "rx_rdma_ccl_cts_bytes"),
    *("req_rx_dup_response", "resp_rx_dup_request"),
)
COUNTERS = ("port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets")
INTERFACES = ("lo", "docker0", "veth1a2b", "eth0", "br-3f00", *(f"eth{n}" for n in range(2, 10)))
KERNEL_LOG = """\
6,0,0,-;Linux version 6.8.0
3,1,100,-;amdgpu 0000:05:00.0: amdgpu: [drm] *ERROR* ring sdma0.0 timeout
 SUBSYSTEM=pci
4,2,200,-;amdgpu 0000:05:00.0: amdgpu: GPU reset begin!
4,3,300,-;amdgpu 0000:05:00.0: amdgpu: power limit is 750 W
6,4,400,-;amdgpu 0000:05:00.0: amdgpu: uncorrectable hardware errors detected
3,5,500,-;EXT4-fs error (device sda1): bad block
12,6,600,-;amdgpu error, written by user space
2,7,700,-;XGMI: link training failed
"""
GPU_LINES = 3  # of those above: numbers 1, 2 and 7


@dataclass
class Planted:
    """What the files hold."""

    root: Path
    gpus: list[dict[str, int]] = field(default_factory=list)  # by name of the file, and of its key
    ports: dict[str, dict[str, int]] = field(default_factory=dict)  # by device, by name of the file
    interfaces: dict[str, list[int]] = field(default_factory=dict)  # the 16 numbers of each
    host: dict[str, int] = field(default_factory=dict)  # by the kernel's name
    pressure: dict[str, str] = field(default_factory=dict)  # "some avg10" and so on


def plant(
    root: Path,
    addresses: Sequence[str] = fake_node.DEFAULT_ADDRESSES,
    cards: int = 8,
    driver: str = "ionic",
) -> Planted:
    """Write the tree: a root with sys, proc and dev below it."""
    planted = Planted(root)
    numbers = count(1_000_003, 7_919)
    for directory in fake_node.write_amdgpu(root / "sys", addresses=addresses, kfd_users=(71, 72)):
        planted.gpus.append(_gpu(directory, numbers))
    names = fake_rdma.write_rdma(root / "sys", driver, cards)
    for name in names:
        planted.ports[name] = _port(root, name, numbers) if driver == "ionic" else {}
    _proc(planted, numbers)
    write(root / "dev/kmsg", KERNEL_LOG)
    return planted


def port_directory(root: Path, device: str) -> Path:
    return root / "sys/class/infiniband" / device / "ports/1"


def hwmon(root: Path, address: str) -> Path:
    """The directory of that GPU's sensors."""
    return next((root / "sys/bus/pci/drivers/amdgpu" / address / "hwmon").iterdir())


def refuse(path: Path) -> None:
    """Make that file one whose reading the kernel refuses with EINVAL, as it does for real."""
    real = "/sys/class/net/lo/speed"
    try:
        Path(real).read_bytes()
    except OSError as error:
        if error.errno == errno.EINVAL:
            path.unlink(missing_ok=True)
            path.symlink_to(real)
            return
    pytest.skip(f"{real} does not answer EINVAL on this kernel")


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fake_node.rewrite(path, f"{text}\n" if not str(text).endswith("\n") else str(text))


def _gpu(directory: Path, numbers: Iterator[int]) -> dict[str, int]:
    """milli-degrees, microwatts, hertz, bytes and counts."""
    held = {}
    sensors = next((directory / "hwmon").iterdir())
    scales = {"temp2_input": 1, "power1_input": 300, "freq1_input": 1500, "freq2_input": 1100}
    for name, scale in scales.items():
        held[name] = next(numbers) * scale
        write(sensors / name, held[name])
    for name in ("mem_info_vram_used", "mem_info_vram_total"):
        held[name] = next(numbers) * 4096
        write(directory / name, held[name])
    for block in BLOCKS:
        counts = (next(numbers), next(numbers), next(numbers))
        fake_node.set_ras(directory, block, counts)
        held[f"{block} ue"], held[f"{block} ce"], _ = counts
    for kind in ("correctable", "nonfatal", "fatal"):
        held[kind] = next(numbers)
        fake_node.set_aer(directory, kind, held[kind])
    return held


def _port(root: Path, device: str, numbers: Iterator[int]) -> dict[str, int]:
    """The first card has the directory `counters` as well, the others only hw_counters."""
    directory = port_directory(root, device)
    held = {}
    for name in HW_COUNTERS:
        held[name] = next(numbers)
        write(directory / "hw_counters" / name, held[name])
    if device.endswith("0"):
        for name in COUNTERS:
            held[name] = next(numbers)
            write(directory / "counters" / name, held[name])
    return held


def _proc(planted: Planted, numbers: Iterator[int]) -> None:
    proc, host = planted.root / "proc", planted.host
    planted.interfaces = {one: [next(numbers) for _ in range(16)] for one in INTERFACES}
    lines = [f"{one}:{' '.join(map(str, all16))}" for one, all16 in planted.interfaces.items()]
    write(proc / "net/dev", "\n".join(["Inter-|   Receive", " face |bytes", *lines]))
    for name in (
        *("RetransSegs", "EstabResets", "OutSegs", "ListenOverflows", "ListenDrops"),
        *("TCPAbortOnTimeout", "procs_running", "procs_blocked", "ctxt", "oom_kill", "Dirty"),
        *("Writeback", "WritebackTmp", "full total"),
    ):
        host[name] = next(numbers)
    tcp = ("EstabResets", "OutSegs", "RetransSegs")
    extensions = ("ListenOverflows", "ListenDrops", "TCPAbortOnTimeout")
    write(proc / "net/snmp", f"Ip: Forwarding\nIp: 1\n{_pairs('Tcp', tcp, host)}")
    write(proc / "net/netstat", _pairs("TcpExt", extensions, host))
    stat = [f"{name} {host[name]}" for name in ("ctxt", "procs_running", "procs_blocked")]
    write(
        proc / "stat",
        "\n".join(["cpu0 1 2 3 4 5 6 7 8", "intr 12 3", "xctxt 9", "btime 1700000000", *stat]),
    )
    write(proc / "vmstat", f"nr_free_pages 1\noom_kill {host['oom_kill']}\noom_kill_x 5")
    memory = [f"{name}: {host[name]} kB" for name in ("WritebackTmp", "Dirty", "Writeback")]
    write(proc / "meminfo", "\n".join(["MemTotal: 99 kB", *memory]))
    averages = {"some avg10": "1.25", "some avg300": "2.50", "full avg10": "0.75"}
    planted.pressure = {**averages, "full avg300": "0.25"}
    write(
        proc / "pressure/io",
        "some avg10=1.25 avg60=9.00 avg300=2.50 total=1\n"
        f"full avg10=0.75 avg60=9.00 avg300=0.25 total={host['full total']}",
    )
    write(proc / "sys/kernel/random/boot_id", "6a1f0c5e-0000-4000-8000-000000000001")


def _pairs(protocol: str, names: Sequence[str], numbers: dict[str, int]) -> str:
    values = " ".join(str(numbers[name]) for name in names)
    return f"{protocol}: RtoMin {' '.join(names)}\n{protocol}: -1 {values}"
