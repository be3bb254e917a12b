"""Names of RDMA port counters: drivers have different names for what means the same.

The one table of them: the probe reads these files, rules judge them, the exporter serves them.

Source: /sys/class/infiniband/<device>/ports/<port>/{counters,hw_counters} of the drivers ionic,
mlx5 and bnxt_re, whose newer versions have taken over most names of mlx5
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Traffic -> its file in `counters`, which is the same for every driver.
STANDARD_TRAFFIC: Mapping[str, str] = {
    "rx_bytes": "port_rcv_data",
    "tx_bytes": "port_xmit_data",
    "rx_pkts": "port_rcv_packets",
    "tx_pkts": "port_xmit_packets",
}
UNITS_OF_4_BYTES = frozenset({"port_rcv_data", "port_xmit_data"})
LINK_ERRORS = (
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "symbol_error",
    "port_rcv_errors",
)
STANDARD_COUNTERS = frozenset({*STANDARD_TRAFFIC.values(), *LINK_ERRORS})

# What is counted -> its files in `hw_counters`, by driver.
# fmt: off
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "rx_bytes": ("rx_rdma_ucast_bytes", "rx_bytes"),
    "tx_bytes": ("tx_rdma_ucast_bytes", "tx_bytes"),
    "rx_pkts": ("rx_rdma_ucast_pkts", "rx_pkts"),
    "tx_pkts": ("tx_rdma_ucast_pkts", "tx_pkts"),
    "tx_retx_bytes": ("tx_rdma_retx_bytes",),
    "tx_retx_pkts": ("tx_rdma_retx_pkts",),
    "tx_ack_timeout": ("tx_rdma_ack_timeout", "local_ack_timeout_err", "to_retransmits"),
    "rx_cnp_pkts": ("rx_rdma_cnp_pkts", "rp_cnp_handled", "rx_cnp_pkts"),
    "tx_cnp_pkts": ("tx_rdma_cnp_pkts", "np_cnp_sent", "tx_cnp_pkts"),
    "req_rx_cqe_err": ("req_rx_cqe_err", "req_cqe_error"),
    "req_tx_retry_excd_err":
        ("req_tx_retry_excd_err", "req_transport_retries_exceeded", "max_retry_exceeded"),
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
    # Those that the exporter does not serve.
    "rnr_retries_exceeded": ("req_rnr_retries_exceeded",),
    "rnr_naks": ("req_rx_rnr_retry_err", "rnr_nak_retry_err", "rnr_naks_rcvd"),
    "sequence_errors":
        ("req_rx_pkt_seq_err", "packet_seq_err", "seq_err_naks_rcvd"),
    "implied_naks": ("req_rx_impl_nak_seq_err", "implied_nak_seq_err"),
    "missing_responses": ("missing_resp",),
    "adaptive_retransmits": ("roce_adp_retrans", "roce_adp_retrans_to"),
    "out_of_order": ("resp_rx_outouf_seq", "out_of_sequence", "oos_drop_count"),
}
# fmt: on


def files_of(*quantities: str) -> tuple[str, ...]:
    """The files in `hw_counters` that count any of these quantities, whatever the driver."""
    return tuple(name for quantity in quantities for name in SYNONYMS[quantity])


def all_files(quantities: Iterable[str] = SYNONYMS) -> frozenset[str]:
    """The same as a set; without arguments, every counter in `hw_counters` that says something."""
    return frozenset(files_of(*quantities))


HARDWARE_COUNTERS = all_files()
