"""Counters of RDMA ports: connections given up, packets lost, congestion.

They run since the driver was loaded: only their growth between the two samples is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.rdma import RdmaPort
from raydiag.rdma_names import LINK_ERRORS, all_files, files_of
from raydiag.rules.growth import growth, pairs
from raydiag.rules.nodes import by_host
from raydiag.rules.rdma import also_known, is_down, latest_ports, packets, port_name, port_path

# Connections given up after the last retry.
EXHAUSTED = files_of("req_tx_retry_excd_err", "rnr_retries_exceeded")
TIMEOUTS = all_files(("tx_ack_timeout", "ccl_tx_ack_timeout"))
# Signs of loss, and the share of the port's packets up to which they are normal. A sender that runs
# into a timeout stands still for long, and a healthy link has no errors at all.
_NEVER, _RARELY, _OFTEN = 0.0, 1e-6, 1e-3
LOSSES: Mapping[str, float] = {
    **dict.fromkeys(TIMEOUTS, _NEVER),
    **dict.fromkeys(files_of("req_rx_cqe_err"), _NEVER),
    **dict.fromkeys(LINK_ERRORS, _NEVER),
    **dict.fromkeys(files_of("tx_retx_pkts", "ccl_tx_retx_pkts"), _RARELY),
    **dict.fromkeys(files_of("sequence_errors", "implied_naks", "missing_responses"), _RARELY),
    **dict.fromkeys(files_of("adaptive_retransmits"), _RARELY),
    **dict.fromkeys(files_of("rnr_naks"), _OFTEN),
}
# Packets that came out of order: how a fabric works that spreads them over several paths. They tell
# of loss only beside other signs of it, and are a note when they are very many.
REORDERED = files_of("out_of_order")
_MOST_REORDERED = 0.1  # of the port's packets
_SEVERAL_PORTS = 3  # of one host: then single timeouts are no accident
# Notices of congestion: how congestion control works, and a note only when there are many.
CONGESTION = files_of("rx_cnp_pkts", "tx_cnp_pkts", "rx_ecn_pkts")
_MANY_PER_S = 100.0  # of one port


def losses(snapshot: Snapshot) -> Iterator[Finding]:
    """Ports that gave connections up or lost packets between the samples; one finding for a port.

    A port that is down is left to the rule for those.
    """
    for host, reports in by_host(snapshot).items():
        ports = latest_ports(reports)
        troubles = [
            (later, seconds, trouble)
            for first, later, seconds in pairs(reports, "rdma", "device", "port")
            if not is_down(ports[later.device, later.port])
            and (trouble := _trouble(first, later)).grown
        ]
        timeouts = sum(not TIMEOUTS.isdisjoint(trouble.grown) for _, _, trouble in troubles)
        for later, seconds, trouble in troubles:
            key = (later.device, later.port)
            timed_out = timeouts >= _SEVERAL_PORTS and not TIMEOUTS.isdisjoint(trouble.grown)
            why = "Partners of a process that has just ended give up in the same way."
            yield Finding(
                "rdma-retry-exhausted" if trouble.given_up else "rdma-degraded",
                host=host,
                device=port_name(key, ports),
                severity=_severity(trouble, timed_out),
                confidence=Confidence.LIKELY if trouble.given_up == 1 else Confidence.CONFIRMED,
                evidence=tuple(
                    Evidence(
                        f"{port_path(key)}: {name}",
                        f"grew by {grown} in {seconds:.1f} s{also_known(later)}",
                        value=float(grown),
                        time=snapshot.time,
                    )
                    for name, grown in trouble.grown.items()
                ),
                explanation=why if trouble.given_up else "",
            )


@dataclass(frozen=True)
class _Trouble:
    grown: Mapping[str, int]  # by counter: what is more than normal
    given_up: int  # connections
    events: int  # signs of loss: the most of one counter, as several may count the same


def _trouble(first: RdmaPort, later: RdmaPort) -> _Trouble:
    """What went wrong at a port between the samples.

    A counter that the second sample is the first to show has not grown: where it began is unknown.
    """
    sent = growth(packets(first.counters), packets(later.counters)) or 0
    exhausted, lost, reordered = {}, {}, {}
    for name, count in later.counters.items():
        grown = growth(first.counters.get(name), count) or 0
        if name in EXHAUSTED and grown:
            exhausted[name] = grown
        elif name in LOSSES and grown > LOSSES[name] * sent:
            lost[name] = grown
        elif name in REORDERED and grown > _OFTEN * sent:
            reordered[name] = grown
    most = max(reordered.values(), default=0)
    if not (exhausted or lost or most > _MOST_REORDERED * sent > 0):
        reordered = {}
    return _Trouble(
        {**exhausted, **lost, **reordered},
        sum(exhausted.values()),
        max(lost.values(), default=0),
    )


def _severity(trouble: _Trouble, timed_out: bool) -> Severity:
    """One event may be an accident; not so where several ports `timed_out`, or a link went down."""
    if trouble.given_up > 1:
        return Severity.CRITICAL
    if trouble.given_up or trouble.events > 1 or timed_out or "link_downed" in trouble.grown:
        return Severity.WARNING
    return Severity.INFO


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
