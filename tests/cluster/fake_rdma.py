"""RDMA cards that a node shows in /sys: ionic, mlx5 (RoCE) and bnxt_re, with counters to set.

As in sysfs, a device is a real directory below its PCI device, and everything else links to it. The
tree can be the one that `fake_node.write_amdgpu` wrote.

Source: kernel documentation, ABI sysfs-class-infiniband; drivers/infiniband.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_BUSES = ("06", "16", "66", "76", "86", "96", "e6", "f6")
RATE = "400 Gb/sec (4X NDR)"
PHYS_STATES = {"ACTIVE": "5: LinkUp", "DOWN": "3: Disabled", "INIT": "5: LinkUp"}
_PHYS_NUMBERS = {"Sleep": 1, "Polling": 2, "Disabled": 3, "LinkUp": 5, "LinkErrorRecovery": 6}
_STATE_NUMBERS = {"DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4, "ACTIVE_DEFER": 5}
_PACKETS = 123_456_789


@dataclass(frozen=True)
class _Driver:
    device: str  # name of the RDMA device, with the number
    driver: str  # of the PCI device
    traffic: Mapping[str, Sequence[str]]  # names of counters that a port in use has moved
    still: Mapping[str, Sequence[str]]  # of those that stand at 0, or on an old number


_STANDARD = ("port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets")
_LINK = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "VL15_dropped")
_DRIVERS = {
    "ionic": _Driver(
        "ionic_{}",
        "ionic",
        {
            "hw_counters": (
                *("rx_rdma_ucast_bytes", "tx_rdma_ucast_bytes"),
                *("rx_rdma_ucast_pkts", "tx_rdma_ucast_pkts"),
            )
        },
        {
            "hw_counters": (
                *("tx_rdma_retx_pkts", "tx_rdma_retx_bytes", "tx_rdma_ack_timeout"),
                *("req_tx_retry_excd_err", "req_rx_cqe_err", "req_rx_pkt_seq_err"),
                *("rx_rdma_cnp_pkts", "tx_rdma_cnp_pkts", "rx_rdma_ecn_pkts", "resp_rx_outouf_seq"),
                *("tx_rdma_ccl_cts_retx_pkts", "tx_rdma_ccl_cts_ack_timeout", "req_tx_loc_acc_err"),
            )
        },
    ),
    "mlx5": _Driver(
        "mlx5_{}",
        "mlx5_core",
        {"counters": _STANDARD, "hw_counters": ("rx_write_requests",)},
        {
            "counters": _LINK,
            "hw_counters": (
                *("local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "out_of_buffer"),
                *("rnr_nak_retry_err", "implied_nak_seq_err", "req_transport_retries_exceeded"),
                *("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "req_cqe_error"),
            ),
        },
    ),
    "bnxt_re": _Driver(
        "bnxt_re{}",
        "bnxt_en",
        {"hw_counters": ("rx_pkts", "tx_pkts", "rx_bytes", "tx_bytes")},
        {
            "hw_counters": (
                *("to_retransmits", "max_retry_exceeded", "seq_err_naks_rcvd", "rnr_naks_rcvd"),
                *("missing_resp", "oos_drop_count", "rx_cnp_pkts", "tx_cnp_pkts", "active_qps"),
            )
        },
    ),
}


def write_rdma(
    root: Path,
    driver: str = "ionic",
    devices: int = 8,
    rate: str = RATE,
    unused: Sequence[str] = (),
    since_boot: int = 7,
) -> list[str]:
    """Write cards with one port each into the tree `root` (a /sys); returns the devices' names.

    All ports are up and have carried packets, but for those of the devices in `unused`, which have
    no link and never had. `since_boot` is what the error counters of all stand at.
    """
    if devices > len(_BUSES):
        raise ValueError(f"there are addresses for {len(_BUSES)} devices")
    kind = _DRIVERS[driver]
    names = [kind.device.format(number) for number in range(devices)]
    for number, name in enumerate(names):
        address = f"0000:{_BUSES[number]}:00.0"
        card = (
            root / f"devices/pci0000:{_BUSES[number][0]}0/0000:{_BUSES[number][0]}0:01.2" / address
        )
        _write_card(root, card, kind.driver, f"eth{number + 2}")
        _link(card / "infiniband" / name / "device", card)
        _link(root / "class/infiniband" / name, card / "infiniband" / name)
        port = card / "infiniband" / name / "ports/1"
        _write(port / "link_layer", "Ethernet")
        _write(port / "rate", rate)
        _write(port / "gid_attrs/ndevs/0", f"eth{number + 2}")
        used = name not in unused
        for counters, value in (
            (kind.traffic, _PACKETS if used else 0),
            (kind.still, since_boot if used else 0),
        ):
            for directory, counts in counters.items():
                for counter in counts:
                    _write(port / directory / counter, value)
        set_state(root, name, "ACTIVE" if used else "DOWN")
    return names


def set_state(root: Path, device: str, state: str, phys_state: str = "", port: int = 1) -> None:
    """Set the state of a port, "ACTIVE" or "DOWN", also later; the link's state goes with it.

    `phys_state` is another one, "2: Polling" or "Polling".
    """
    if phys_state in _PHYS_NUMBERS:
        phys_state = f"{_PHYS_NUMBERS[phys_state]}: {phys_state}"
    directory = _port(root, device, port)
    _write(directory / "state", f"{_STATE_NUMBERS[state]}: {state}")
    _write(directory / "phys_state", phys_state or PHYS_STATES.get(state, "5: LinkUp"))


def set_rate(root: Path, device: str, rate: str, port: int = 1) -> None:
    """Set the rate of a port, such as "100 Gb/sec (4X EDR)"."""
    _write(_port(root, device, port) / "rate", rate)


def counter_file(root: Path, device: str, name: str, port: int = 1) -> Path:
    """The file of one counter, wherever the driver has it. Raises ValueError when it has none."""
    for directory in ("hw_counters", "counters"):
        path = _port(root, device, port) / directory / name
        if path.exists():
            return path
    raise ValueError(f"{device} has no counter {name}")


def set_counter(root: Path, device: str, name: str, value: object, port: int = 1) -> None:
    """Set one counter, also later, to let it grow; in place, for a reader sees old or new."""
    _write(counter_file(root, device, name, port), value)


def grow_counter(root: Path, device: str, name: str, by: int, port: int = 1) -> None:
    """Let one counter grow: between two samples that is what a rule sees."""
    value = int(counter_file(root, device, name, port).read_text())
    set_counter(root, device, name, value + by, port)


def _write_card(root: Path, card: Path, driver: str, interface: str) -> None:
    _write(card / "vendor", "0x1dd8")
    _write(card / "net" / interface / "operstate", "up")
    _link(card / "driver", root / "bus/pci/drivers" / driver)
    _link(root / "bus/pci/drivers" / driver / card.name, card)
    _link(root / "bus/pci/devices" / card.name, card)
    _link(root / "class/net" / interface, card / "net" / interface)


def _port(root: Path, device: str, port: int) -> Path:
    return root / "class/infiniband" / device / "ports" / str(port)


def _write(path: Path, value: object) -> None:
    """At once: a reader between emptying and filling would see no number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}")
    new.write_text(f"{value}\n")
    new.chmod(0o444)
    new.replace(path)


def _link(link: Path, target: Path) -> None:
    """Relative, as in sysfs, so that the tree may be bound elsewhere."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))
