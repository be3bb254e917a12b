from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from raydiag.model import Confidence, Finding, NodeReport, ProbeResult, Severity, Status
from raydiag.probes.rdma import RdmaPort
from raydiag.rdma_names import HARDWARE_COUNTERS, STANDARD_COUNTERS
from raydiag.rules.rdma_counters import (
    CONGESTION,
    EXHAUSTED,
    LOSSES,
    REORDERED,
    TIMEOUTS,
    congestion,
    losses,
)
from tests.rules.snapshots import report, snapshot
from tests.rules.test_rdma import port

STILL = {"rx_rdma_ucast_pkts": 5000, "tx_rdma_ucast_pkts": 5000}


def host(first: Mapping[str, int], later: Mapping[str, int], **values: Any) -> NodeReport:
    """A host whose only port shows these counters in the two samples."""

    def sample(counters: Mapping[str, int]) -> list[RdmaPort]:
        return [port(0, counters={**STILL, **counters}, **values)]

    result = ProbeResult(
        "rdma", Status.OK, records=sample(first), later=sample(later), interval_s=0.5
    )
    return report("a", results=[result])


def moved(packets: int, **grown: int) -> NodeReport:
    """A host whose port carried so many packets while its counters grew from 70."""
    first = dict.fromkeys(grown, 70)
    later = {name: 70 + by for name, by in grown.items()}
    return host(first, {**later, "tx_rdma_ucast_pkts": 5000 + packets})


def found(one: NodeReport) -> list[Finding]:
    return list(losses(snapshot(one)))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_any_sign_of_loss_on_a_still_port_is_a_warning(name: str) -> None:
    (finding,) = found(moved(0, **{name: 2}))
    assert (finding.failure_class, finding.severity) == ("rdma-degraded", Severity.WARNING)
    assert (finding.host, finding.device) == ("a", "ionic_0")
    assert finding.evidence[0].source == f"/sys/class/infiniband/ionic_0/ports/1: {name}"
    assert finding.evidence[0].value == 2.0
    assert "0.5 s" in finding.evidence[0].text


def test_a_link_that_went_down_once_is_no_remark() -> None:
    assert [one.severity for one in found(moved(10**6, link_downed=1))] == [Severity.WARNING]


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"link_downed"}))
def test_a_single_event_is_a_remark(name: str) -> None:
    assert [one.severity for one in found(moved(0, **{name: 1}))] == [Severity.INFO]
    assert [one.severity for one in found(moved(0, **{name: 1, "missing_resp": 1}))] == [
        Severity.INFO
    ]


@pytest.mark.parametrize(
    ("ports", "name", "severity"),
    [
        (2, "tx_rdma_ack_timeout", Severity.INFO),
        (3, "local_ack_timeout_err", Severity.WARNING),
        (8, "to_retransmits", Severity.WARNING),
        (8, "symbol_error", Severity.INFO),
    ],
)
def test_single_timeouts_of_several_ports_are_a_warning(
    ports: int, name: str, severity: Severity
) -> None:
    samples = [
        [port(number, counters={**STILL, name: count}) for number in range(ports)]
        for count in (7, 8)
    ]
    result = ProbeResult("rdma", Status.OK, records=samples[0], later=samples[1], interval_s=1.0)
    seen = found(report("a", results=[result]))
    assert [one.severity for one in seen] == [severity] * ports


@pytest.mark.parametrize("name", sorted(REORDERED))
def test_packets_out_of_order_alone_are_how_a_fabric_sprays(name: str) -> None:
    assert found(moved(10**6, **{name: 90_000})) == []
    assert [one.severity for one in found(moved(10**6, **{name: 300_000}))] == [Severity.INFO]
    assert found(moved(0, **{name: 1})) == []
    (finding,) = found(moved(10**6, **{name: 2000, "tx_rdma_retx_pkts": 1000}))
    assert finding.severity is Severity.WARNING
    assert [piece.value for piece in finding.evidence] == [1000.0, 2000.0]
    (finding,) = found(moved(10**6, **{name: 2000, "tx_rdma_ack_timeout": 1}))
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize("name", EXHAUSTED)
def test_one_connection_given_up_is_likely_a_warning(name: str) -> None:
    (finding,) = found(moved(10**7, **{name: 1, "tx_rdma_ack_timeout": 7}))
    assert (finding.failure_class, finding.severity, finding.confidence) == (
        "rdma-retry-exhausted",
        Severity.WARNING,
        Confidence.LIKELY,
    )
    assert "just ended" in finding.explanation


@pytest.mark.parametrize("name", EXHAUSTED)
def test_connections_given_up_are_critical_and_take_the_rest_along(name: str) -> None:
    (finding,) = found(moved(10**7, **{name: 2, "tx_rdma_ack_timeout": 3}))
    assert (finding.failure_class, finding.severity) == ("rdma-retry-exhausted", Severity.CRITICAL)
    assert [piece.value for piece in finding.evidence] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("packets", "grown", "seen"),
    [
        (10**6, {"tx_rdma_retx_pkts": 1}, False),
        (10**6, {"tx_rdma_retx_pkts": 2}, True),
        (10**6, {"rnr_nak_retry_err": 1000}, False),
        (10**6, {"rnr_nak_retry_err": 1001}, True),
        (10**7, {"tx_rdma_ack_timeout": 1}, True),
        (10**7, {"req_cqe_error": 2}, True),
        (10**7, {"rx_rdma_cnp_pkts": 10**6, "req_rx_dup_response": 9}, False),
    ],
)
def test_a_busy_port_has_its_share(packets: int, grown: dict[str, int], seen: bool) -> None:
    assert bool(found(moved(packets, **grown))) is seen


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"symbol_error": 90_000_000}, {"symbol_error": 90_000_000}),  # all of it old
        ({"symbol_error": 900}, {"symbol_error": 3}),  # the driver was loaded anew
        ({}, {"symbol_error": 900}),
        ({"symbol_error": 3}, {}),
        ({"max_retry_exceeded": 7}, {"max_retry_exceeded": 7}),
    ],
)
def test_only_growth_counts(first: dict[str, int], later: dict[str, int]) -> None:
    assert found(host(first, later)) == []


def test_one_sample_shows_nothing() -> None:
    assert found(report("a", rdma=[port(0, counters={"symbol_error": 9})])) == []


def test_a_port_that_is_down_is_one_finding_of_another_rule() -> None:
    first, later = {"link_downed": 1}, {"link_downed": 2}
    assert found(host(first, later, state="DOWN", phys_state="Disabled")) == []
    assert len(found(host(first, later))) == 1


def test_loss_without_a_count_of_packets_is_a_warning() -> None:
    ports = [port(0, counters={"missing_resp": 1})], [port(0, counters={"missing_resp": 9})]
    result = ProbeResult("rdma", Status.OK, records=ports[0], later=ports[1], interval_s=0.5)
    (finding,) = found(report("a", results=[result]))
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(("notices", "seen"), [(50, False), (51, True)])
def test_many_notices_of_congestion_are_a_remark(notices: int, seen: bool) -> None:
    pieces = list(congestion(snapshot(moved(10**6, rx_rdma_cnp_pkts=notices, np_cnp_sent=notices))))
    assert bool(pieces) is seen
    for finding in pieces:
        assert (finding.failure_class, finding.device) == ("network-congestion", None)
        assert finding.severity is Severity.INFO
        assert len(finding.evidence) == 2


def test_every_counter_that_is_judged_is_read() -> None:
    judged = {*EXHAUSTED, *LOSSES, *REORDERED, *CONGESTION}
    assert judged <= HARDWARE_COUNTERS | STANDARD_COUNTERS
    assert LOSSES.keys() >= TIMEOUTS
