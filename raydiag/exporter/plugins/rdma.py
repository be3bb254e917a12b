"""Ports of RDMA cards: state, traffic, retransmissions, congestion.

Where a port has the directory `counters`, that is where its traffic is taken from, and a counter
that is missing there stands at 0; hw_counters only have what the driver knows. Drivers differ in
names: those of mlx5 and bnxt_re stand beside ionic's where they mean the same.

A card that refuses the first counter of a directory refuses them all, and its driver logs each
refusal: then the directory is left alone.

Source: see `raydiag.probes.rdma`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional, Union

from raydiag.exporter.metrics import Sample
from raydiag.exporter.plugins import plugin
from raydiag.exporter.reading import NodeFiles
from raydiag.model import Status, Unread
from raydiag.probes.rdma import PortFiles, rdma_devices

# What is counted -> its names: in `counters`, as the files are called and as they are returned
# (words are made bytes), then in hw_counters by driver.
_TRAFFIC = {
    "rx_bytes": ("port_rcv_data", "port_rcv_data_bytes", "rx_rdma_ucast_bytes", "rx_bytes"),
    "tx_bytes": ("port_xmit_data", "port_xmit_data_bytes", "tx_rdma_ucast_bytes", "tx_bytes"),
    "rx_pkts": ("port_rcv_packets", "port_rcv_packets", "rx_rdma_ucast_pkts", "rx_pkts"),
    "tx_pkts": ("port_xmit_packets", "port_xmit_packets", "tx_rdma_ucast_pkts", "tx_pkts"),
}
_HARDWARE = {
    "tx_retx_bytes": ("tx_rdma_retx_bytes",),
    "tx_retx_pkts": ("tx_rdma_retx_pkts",),
    "tx_ack_timeout": ("tx_rdma_ack_timeout", "local_ack_timeout_err", "to_retransmits"),
    "rx_cnp_pkts": ("rx_rdma_cnp_pkts", "rp_cnp_handled", "rx_cnp_pkts"),
    "tx_cnp_pkts": ("tx_rdma_cnp_pkts", "np_cnp_sent", "tx_cnp_pkts"),
    "req_rx_cqe_err": ("req_rx_cqe_err", "req_cqe_error"),
    "req_tx_retry_excd_err": (
        *("req_tx_retry_excd_err", "req_transport_retries_exceeded", "max_retry_exceeded"),
    ),
    "rx_ecn_pkts": ("rx_rdma_ecn_pkts", "np_ecn_marked_roce_packets", "rx_ecn_marked_pkts"),
    "ccl_tx_retx_pkts": ("tx_rdma_ccl_cts_retx_pkts",),
    "ccl_tx_retx_bytes": ("tx_rdma_ccl_cts_retx_bytes",),
    "ccl_tx_ack_timeout": ("tx_rdma_ccl_cts_ack_timeout",),
    "ccl_tx_pkts": ("tx_rdma_ccl_cts_pkts",),
    "ccl_tx_bytes": ("tx_rdma_ccl_cts_bytes",),
    "ccl_rx_pkts": ("rx_rdma_ccl_cts_pkts",),
    "ccl_rx_bytes": ("rx_rdma_ccl_cts_bytes",),
    "rx_dup_response": ("req_rx_dup_response",),
    "rx_dup_request": ("resp_rx_dup_request",),
}
_STANDARD_FILES = frozenset(names[0] for names in _TRAFFIC.values())
_TRAFFIC_FILES = frozenset(name for names in _TRAFFIC.values() for name in names[2:])
_HARDWARE_FILES = frozenset(name for names in _HARDWARE.values() for name in names)


@plugin(timeout_s=3.0, sources=rdma_devices)
def collect(host: NodeFiles, source: str) -> Iterator[Union[Sample, Unread]]:
    """The ports of one device. After a file that fails nothing more of it is read this time."""
    files = PortFiles(host)
    device = source.rpartition("/")[2]
    for port in files.names(f"{source}/ports"):
        if port.isascii() and port.isdigit():
            for what, value in _port(host, files, f"{source}/ports/{port}").items():
                yield Sample(f"hw_rdma_{what}", {"device": device, "port": port}, value)
    if files.malformed:
        yield Unread(source, Status.ERROR, "; ".join(files.malformed[:3]))
    if files.failure is not None:
        reason = f"{files.failure}; nothing more of this device was read"
        yield Unread(source, files.failure.status, reason)


def _port(host: NodeFiles, files: PortFiles, directory: str) -> dict[str, int]:
    """Values by what follows hw_rdma_ in the metric's name."""
    values: dict[str, int] = {}
    state = files.state(f"{directory}/state")
    if state:
        values["port_state"] = int("ACTIVE" in state)
    names = files.names(f"{directory}/counters")
    standard = _counts(host, files, f"{directory}/counters", _STANDARD_FILES.intersection(names))
    wanted = _HARDWARE_FILES if names else _HARDWARE_FILES | _TRAFFIC_FILES
    found = wanted.intersection(files.names(f"{directory}/hw_counters"))
    hardware = _counts(host, files, f"{directory}/hw_counters", found)
    for what, (file, key, *others) in _TRAFFIC.items():
        value = standard.get(key, _first(hardware, others))
        # A file that is there and gave no number, or was not read, does not stand at 0.
        known = files.failure is None and file not in names and found.isdisjoint(others)
        if value is not None or known:
            values[f"{what}_total"] = value or 0
    for what, same in _HARDWARE.items():
        value = _first(hardware, same)
        if value is not None:
            values[f"{what}_total"] = value
    return values


def _counts(
    host: NodeFiles, files: PortFiles, directory: str, names: frozenset[str]
) -> dict[str, int]:
    before = len(host.left_alone)
    counts = files.counts(directory, names)
    if not counts and len(host.left_alone) > before:
        host.left_alone.add(directory)
    return counts


def _first(counts: Mapping[str, int], names: Sequence[str]) -> Optional[int]:
    return next((counts[name] for name in names if name in counts), None)
