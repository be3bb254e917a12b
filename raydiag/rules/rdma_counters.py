"""Counters of RDMA ports: connections given up, packets lost, congestion.

They run since the driver was loaded: only their growth between the two samples is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.rdma import RdmaPort
from raydiag.rules.growth import growth, pairs
from raydiag.rules.nodes import by_host
from raydiag.rules.rdma import also_known, is_down, latest_ports, packets, port_name, port_path

# Connections given up after the last retry.
EXHAUSTED = (
    "req_tx_retry_excd_err",
    "max_retry_exceeded",
    "req_transport_retries_exceeded",
    "req_rnr_retries_exceeded",
)
# Signs of loss, and the share of the port's packets up to which they are normal. A sender that runs
# into a timeout stands still for long, and a link that is well has no errors at all. Packets out of
# order are normal where a fabric spreads them over several paths.
_NEVER, _RARELY, _OFTEN = 0.0, 1e-6, 1e-3
LOSSES: Mapping[str, float] = {
    "tx_rdma_ack_timeout": _NEVER,
    "tx_rdma_ccl_cts_ack_timeout": _NEVER,
    "local_ack_timeout_err": _NEVER,
    "to_retransmits": _NEVER,
    "req_rx_cqe_err": _NEVER,
    "link_downed": _NEVER,
    "link_error_recovery": _NEVER,
    "local_link_integrity_errors": _NEVER,
    "symbol_error": _NEVER,
    "port_rcv_errors": _NEVER,
    "tx_rdma_retx_pkts": _RARELY,
    "tx_rdma_ccl_cts_retx_pkts": _RARELY,
    "req_rx_pkt_seq_err": _RARELY,
    "req_rx_impl_nak_seq_err": _RARELY,
    "packet_seq_err": _RARELY,
    "implied_nak_seq_err": _RARELY,
    "seq_err_naks_rcvd": _RARELY,
    "missing_resp": _RARELY,
    "roce_adp_retrans": _RARELY,
    "roce_adp_retrans_to": _RARELY,
    "resp_rx_outouf_seq": _OFTEN,
    "out_of_sequence": _OFTEN,
    "oos_drop_count": _OFTEN,
    "req_rx_rnr_retry_err": _OFTEN,
    "rnr_nak_retry_err": _OFTEN,
    "rnr_naks_rcvd": _OFTEN,
}
# Notices of congestion: how congestion control works, and a remark only when there are many.
CONGESTION = (
    "rx_rdma_cnp_pkts",
    "tx_rdma_cnp_pkts",
    "rx_rdma_ecn_pkts",
    "np_cnp_sent",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
    "rx_cnp_pkts",
    "tx_cnp_pkts",
    "rx_ecn_marked_pkts",
)
_MANY_PER_S = 100.0  # of one port


def losses(snapshot: Snapshot) -> Iterator[Finding]:
    """Ports that gave connections up or lost packets between the samples; one finding for a port.

    A port that is down is left to the rule for those.
    """
    for host, reports in by_host(snapshot).items():
        ports = latest_ports(reports)
        for first, later, seconds in pairs(reports, "rdma", "device", "port"):
            key = (later.device, later.port)
            exhausted, lost = _lost(first, later)
            if is_down(ports[key]) or not (exhausted or lost):
                continue
            why = "Partners of a process that has just ended give up in the same way."
            yield Finding(
                "rdma-retry-exhausted" if exhausted else "rdma-degraded",
                host=host,
                device=port_name(key, ports),
                severity=Severity.CRITICAL if exhausted else Severity.WARNING,
                evidence=tuple(
                    Evidence(
                        f"{port_path(key)}: {name}",
                        f"grew by {grown} in {seconds:.1f} s{also_known(later)}",
                        value=float(grown),
                        time=snapshot.time,
                    )
                    for name, grown in {**exhausted, **lost}.items()
                ),
                explanation=why if exhausted else "",
            )


def _lost(first: RdmaPort, later: RdmaPort) -> tuple[dict[str, int], dict[str, int]]:
    """Growth by counter: of connections given up, and of loss that is more than normal."""
    sent = growth(packets(first.counters), packets(later.counters)) or 0
    exhausted, lost = {}, {}
    for name, count in later.counters.items():
        grown = growth(first.counters.get(name), count) or 0
        if name in EXHAUSTED and grown:
            exhausted[name] = grown
        elif name in LOSSES and grown > LOSSES[name] * sent:
            lost[name] = grown
    return exhausted, lost


def congestion(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts with many notices of congestion; whether that lasts, two samples cannot tell."""
    for host, reports in by_host(snapshot).items():
        ports = latest_ports(reports)
        pieces = []
        for first, later, seconds in pairs(reports, "rdma", "device", "port"):
            key = (later.device, later.port)
            for name in CONGESTION:
                grown = growth(first.counters.get(name), later.counters.get(name)) or 0
                if grown > _MANY_PER_S * seconds:
                    text = f"{port_name(key, ports)}: {grown} in {seconds:.1f} s"
                    source = f"{port_path(key)}: {name}"
                    pieces.append(Evidence(source, text, float(grown), snapshot.time))
        if pieces:
            yield Finding(
                "network-congestion",
                host=host,
                severity=Severity.INFO,
                confidence=Confidence.POSSIBLE,
                evidence=tuple(pieces),
            )
