"""Counters of RDMA ports: retries exhausted, packets lost, congestion.

They run since the driver was loaded: only their growth between the two samples is judged.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.rdma import RdmaPort
from raydiag.rdma_names import LINK_ERRORS, all_files, files_of
from raydiag.rules.grades import confirmed_if, grown_counters, growth, warning_if
from raydiag.rules.machines import Machine, Samples, machines
from raydiag.rules.rdma import Ports, also_known, is_down, packets, port_path

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


class _Trouble(NamedTuple):
    """What went wrong at a port between the samples."""

    port: RdmaPort
    seconds: float
    grown: Mapping[str, int]  # by counter: what is more than normal
    given_up: int  # connections
    events: int  # signs of loss: the most of one counter, as several may count the same

    @property
    def timed_out(self) -> bool:
        """Whether acknowledgements did not come in time."""
        return not TIMEOUTS.isdisjoint(self.grown)

    def severity(self, on_several_ports: bool) -> Severity:
        """One event may be an accident; not so a link that went down, or timeouts of many ports."""
        if self.given_up > 1:
            return Severity.CRITICAL
        if self.given_up or self.events > 1 or "link_downed" in self.grown:
            return Severity.WARNING
        return warning_if(on_several_ports and self.timed_out)


def losses(snapshot: Snapshot) -> Iterator[Finding]:
    """Ports that gave connections up or lost packets between the samples; one finding for a port.

    A port that is down is left to the rule for those.
    """
    for machine in machines(snapshot):
        ports = Ports.of(machine)
        troubles = list(_troubles(machine, ports))
        on_several_ports = sum(map(attrgetter("timed_out"), troubles)) >= _SEVERAL_PORTS
        for trouble in troubles:
            failure_class, explanation = "rdma-degraded", ""
            if trouble.given_up:
                failure_class = "rdma-retry-exhausted"
                explanation = "Peers of a process that has just ended give up in the same way."
            yield machine.finding(
                failure_class,
                *_evidence(trouble, snapshot.time),
                device=ports.name(trouble.port.key),
                severity=trouble.severity(on_several_ports),
                confidence=confirmed_if(trouble.given_up != 1),
                explanation=explanation,
            )


def _evidence(trouble: _Trouble, time: float) -> Iterator[Evidence]:
    for name, grown in trouble.grown.items():
        text = f"grew by {grown} in {trouble.seconds:.1f} s{also_known(trouble.port)}"
        yield Evidence(f"{port_path(trouble.port.key)}: {name}", text, float(grown), time)


def _troubles(machine: Machine, ports: Ports) -> Iterator[_Trouble]:
    for samples in machine.samples(RdmaPort):
        trouble = _trouble(samples)
        if trouble.grown and not is_down(ports[trouble.port.key]):
            yield trouble


def _trouble(samples: Samples[RdmaPort]) -> _Trouble:
    """What has grown by more than is normal."""
    first, later = samples.first.counters, samples.later.counters
    sent = growth(packets(first), packets(later)) or 0
    exhausted, lost, reordered = {}, {}, {}
    for name, count in grown_counters(first, later).items():
        if name in EXHAUSTED:
            exhausted[name] = count
        elif name in LOSSES and count > LOSSES[name] * sent:
            lost[name] = count
        elif name in REORDERED and count > _OFTEN * sent:
            reordered[name] = count
    most_reordered = max(reordered.values(), default=0)
    if not (exhausted or lost or most_reordered > _MOST_REORDERED * sent > 0):
        reordered = {}
    return _Trouble(
        samples.later,
        samples.seconds,
        grown={**exhausted, **lost, **reordered},
        given_up=sum(exhausted.values()),
        events=max(lost.values(), default=0),
    )


def congestion(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts with many congestion notifications; two samples cannot show whether that lasts."""
    for machine in machines(snapshot):
        evidence = list(_congestion_evidence(machine, snapshot.time))
        if evidence:
            weight = {"severity": Severity.INFO, "confidence": Confidence.POSSIBLE}
            yield machine.finding("network-congestion", *evidence, **weight)


def _congestion_evidence(machine: Machine, time: float) -> Iterator[Evidence]:
    ports = Ports.of(machine)
    for samples in machine.samples(RdmaPort):
        key = samples.later.key
        grown = grown_counters(samples.first.counters, samples.later.counters)
        for name in CONGESTION:
            count = grown.get(name, 0)
            if count > _MANY_PER_S * samples.seconds:
                text = f"{ports.name(key)}: {count} in {samples.seconds:.1f} s"
                yield Evidence(f"{port_path(key)}: {name}", text, float(count), time)
