from __future__ import annotations

from collections.abc import Mapping

import pytest

from raydiag.model import NodeReport, ProbeResult, Severity, Status
from raydiag.probes.network import NetworkState
from raydiag.probes.processes import RayProcess
from raydiag.rules.network import (
    full_accept_queues,
    interface_errors,
    job_interfaces_down,
    tcp_aborts,
    tcp_retransmits,
)
from tests.rules.snapshots import report, snapshot

COLUMNS = ("rx_packets", "rx_errors", "rx_dropped", "tx_packets", "tx_errors", "tx_dropped")
TCP = ("RetransSegs", "OutSegs", "EstabResets", "ListenOverflows", "ListenDrops")


def state(
    interfaces: Mapping[str, Mapping[str, int]] | None = None,
    tcp: Mapping[str, int] | None = None,
    operstates: Mapping[str, str] | None = None,
) -> NetworkState:
    """Counters of one moment: what is given is added to 100, which all of them had before."""
    counted = {
        name: {column: 100 + grown.get(column, 0) for column in COLUMNS}
        for name, grown in (interfaces or {}).items()
    }
    numbers = {name: 100 + (tcp or {}).get(name, 0) for name in (*TCP, "TCPAbortOnTimeout")}
    return NetworkState("net:[1]", 9e5, numbers, counted, dict(operstates or {}))


def host(
    interfaces: Mapping[str, Mapping[str, int]] | None = None,
    tcp: Mapping[str, int] | None = None,
) -> NodeReport:
    """A host whose counters grow so far in half a second."""
    before = state({name: {} for name in interfaces or {}})
    result = ProbeResult(
        "network", Status.OK, records=[before], later=[state(interfaces, tcp)], interval_s=0.5
    )
    return report("a", results=[result])


@pytest.mark.parametrize("column", ["rx_errors", "tx_errors"])
def test_one_error_of_an_interface_is_a_warning(column: str) -> None:
    sick = host({"eth0": {column: 1, "rx_packets": 9000}, "eth1": {"rx_packets": 9000}})
    (finding,) = interface_errors(snapshot(sick))
    assert (finding.failure_class, finding.device) == ("nic-errors", "eth0")
    assert finding.severity is Severity.WARNING
    assert finding.evidence[0].source == "/proc/net/dev: eth0"
    assert finding.evidence[0].text == f"{column} grew by 1 in 0.5 s"


@pytest.mark.parametrize(
    ("dropped", "packets", "severity"),
    [
        (99, 0, None),
        (100, 10_000, Severity.INFO),
        (100, 1900, Severity.INFO),
        (101, 1900, Severity.WARNING),
        (120, 20, Severity.INFO),  # on an interface that is almost idle
        (5000, 0, Severity.WARNING),  # nothing gets through
    ],
)
def test_drops_are_a_remark_unless_they_are_many(
    dropped: int, packets: int, severity: Severity | None
) -> None:
    grown = {"eth0": {"rx_dropped": dropped, "rx_packets": packets}}
    found = list(interface_errors(snapshot(host(grown))))
    assert [one.severity for one in found] == ([severity] if severity else [])


def test_a_bond_is_silent_beside_the_card_below_it() -> None:
    both = host({"bond0": {"rx_errors": 4}, "eth0": {"rx_errors": 4}})
    assert [one.device for one in interface_errors(snapshot(both))] == ["eth0"]
    alone = host({"bond0": {"rx_errors": 4}})
    assert [one.device for one in interface_errors(snapshot(alone))] == ["bond0"]


def test_what_was_counted_before_says_nothing() -> None:
    still = host({"eth0": {}}, {})
    new = report(
        "b",
        results=[
            ProbeResult(
                "network",
                Status.OK,
                records=[state()],
                later=[state({"eth9": {"rx_errors": 5}})],
                interval_s=0.5,
            )
        ],
    )
    reset = ProbeResult(
        "network",
        Status.OK,
        records=[state({"eth0": {"rx_errors": 9}}, {"TCPAbortOnTimeout": 9, "ListenDrops": 9})],
        later=[state({"eth0": {}})],
        interval_s=0.5,
    )
    seen = snapshot(still, new, report("c", results=[reset]), report("d", network=[state()]))
    for rule in (interface_errors, tcp_retransmits, tcp_aborts, full_accept_queues):
        assert list(rule(seen)) == []


@pytest.mark.parametrize(
    ("again", "sent", "seen"),
    [(5, 10, False), (6, 10, True), (6, 600, False), (5000, 10**6, False)],
)
def test_retransmits_are_never_more_than_a_remark(again: int, sent: int, seen: bool) -> None:
    busy = host(tcp={"RetransSegs": again, "OutSegs": sent})
    found = list(tcp_retransmits(snapshot(busy)))
    assert [one.severity for one in found] == ([Severity.INFO] if seen else [])


@pytest.mark.parametrize(("aborts", "severity"), [(1, Severity.INFO), (3, Severity.WARNING)])
def test_aborts_count_when_they_are_several(aborts: int, severity: Severity) -> None:
    (finding,) = tcp_aborts(snapshot(host(tcp={"TCPAbortOnTimeout": aborts, "EstabResets": 9})))
    assert (finding.failure_class, finding.severity) == ("tcp-aborts", severity)


def test_resets_alone_are_how_programs_hang_up() -> None:
    assert not list(tcp_aborts(snapshot(host(tcp={"EstabResets": 900}))))


def test_a_full_accept_queue() -> None:
    full = host(tcp={"ListenOverflows": 3, "ListenDrops": 3})
    (finding,) = full_accept_queues(snapshot(full))
    assert (finding.failure_class, finding.severity) == ("coordinator-overload", Severity.WARNING)
    assert finding.evidence[0].value == 3.0
    assert len(finding.evidence) == 2
    few = host(tcp={"ListenOverflows": 2, "ListenDrops": 2})
    assert [one.severity for one in full_accept_queues(snapshot(few))] == [Severity.INFO]


def process(value: str) -> RayProcess:
    environment = {"NCCL_SOCKET_IFNAME": value} if value else {}
    return RayProcess(7, 1, 0.0, "python", "ray::Trainer", "worker", 7, "S", 9, 1, environment)


STATES = {"eth0": "up", "eth1": "down", "ib0": "lowerlayerdown", "tun0": "unknown"}


@pytest.mark.parametrize(
    ("value", "down"),
    [
        ("eth1", ["eth1"]),
        ("=ib0,eth1", ["eth1", "ib0"]),
        ("ib", ["ib0"]),
        ("eth", []),  # one of them is up
        ("^eth0", []),
        ("=eth", []),
        ("tun0", []),
        ("ens5", []),  # not there, or not shown
        ("", []),
    ],
)
def test_interfaces_that_the_job_is_to_use(value: str, down: list[str]) -> None:
    seen = report("a", processes=[process(value)], network=[state(operstates=STATES)])
    found = list(job_interfaces_down(snapshot(seen)))
    assert [one.device for one in found] == down
    assert {one.failure_class for one in found} <= {"net-link-down"}
