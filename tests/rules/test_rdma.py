from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raydiag.model import Finding, NodeReport, ProbeResult, Severity, Snapshot, Status
from raydiag.probes.network import NetworkState
from raydiag.probes.rdma import RdmaPort
from raydiag.rules.rdma import ports_down, slow_ports
from tests.rules.snapshots import report, snapshot

TRAFFIC = {"rx_rdma_ucast_pkts": 1000, "tx_rdma_ucast_pkts": 2000}
DOWN: dict[str, Any] = {"state": "DOWN", "phys_state": "Disabled"}


def port(number: int, **values: Any) -> RdmaPort:
    known = {
        "device": f"ionic_{number}",
        "port": 1,
        "driver": "ionic",
        "address": f"0000:{number}6:00.0",
        "virtual_function": False,
        "netdev": f"eth{number}",
        "link_layer": "Ethernet",
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "rate_gbits_per_s": 400.0,
        "width": "4X NDR",
        "counters": TRAFFIC,
    }
    return RdmaPort(**{**known, **values})


def host(name: str, ports: int = 3, uptime_s: float = 1e6, **sick: dict[str, Any]) -> NodeReport:
    """A host whose ports are well, but for those in `sick`, by the device's name."""
    found = [port(number, **sick.get(f"ionic_{number}", {})) for number in range(ports)]
    state = NetworkState("net:[1]", uptime_s, {}, {}, {})
    return report(name, rdma=found, network=[state])


def down(*hosts: NodeReport) -> list[tuple[str | None, str | None, Severity | None]]:
    found = ports_down(snapshot(*hosts))
    return [(one.host, one.device, one.severity) for one in found]


def test_a_port_that_is_up_elsewhere_is_critical() -> None:
    (finding,) = ports_down(snapshot(host("a"), host("b", ionic_1=DOWN), host("c")))
    assert (finding.failure_class, finding.host, finding.device) == (
        "rdma-port-down",
        "b",
        "ionic_1",
    )
    assert finding.severity is Severity.CRITICAL
    assert finding.onset is None
    assert finding.evidence[0].source == "/sys/class/infiniband/ionic_1/ports/1/state"
    assert finding.evidence[0].text == (
        "state DOWN, link Disabled (ionic 0000:16:00.0, eth1); "
        "up on 2 of 3 hosts with the same devices"
    )


@pytest.mark.parametrize(
    "sick",
    [
        {"state": "INIT"},
        {"state": "ARMED"},
        {"phys_state": "LinkErrorRecovery"},
        {**DOWN, "counters": {}},
        {**DOWN, "counters": dict.fromkeys(TRAFFIC, 0)},  # never came up since the boot
    ],
)
def test_every_way_to_be_down(sick: dict[str, Any]) -> None:
    assert down(host("a"), host("b", ionic_0=sick)) == [("b", "ionic_0", Severity.CRITICAL)]


@pytest.mark.parametrize(
    "well",
    [
        {},
        {"state": "ACTIVE_DEFER"},
        {"state": "", "phys_state": ""},  # not known
        {"state": "NOP"},
        {"phys_state": "<unknown>"},
        {"phys_state": ""},
    ],
)
def test_up_or_unknown_is_silent(well: dict[str, Any]) -> None:
    assert down(host("a"), host("b", ionic_0=well)) == []


def test_a_port_nobody_uses_is_a_remark() -> None:
    unused = {**DOWN, "counters": dict.fromkeys(TRAFFIC, 0)}
    for sick in (unused, {**DOWN, "counters": {}}):
        hosts = [host(name, ionic_2=sick) for name in "abc"]
        assert down(*hosts) == [(name, "ionic_2", Severity.INFO) for name in "abc"]
    assert down(host("a", ionic_2=unused)) == [("a", "ionic_2", Severity.INFO)]


def test_a_port_that_was_used_and_is_down_everywhere_is_a_warning() -> None:
    for sick in (DOWN, {"state": "INIT", "counters": {}}):
        hosts = [host(name, ionic_2=sick) for name in "ab"]
        assert down(*hosts) == [(name, "ionic_2", Severity.WARNING) for name in "ab"]


def test_the_only_host_is_judged_by_what_its_port_carried() -> None:
    assert down(host("a", ionic_2=DOWN)) == [("a", "ionic_2", Severity.CRITICAL)]


def test_hosts_with_other_devices_are_no_measure() -> None:
    unused = {**DOWN, "counters": dict.fromkeys(TRAFFIC, 0)}
    head = host("head", ports=1, ionic_0=unused)
    assert down(head, host("a"), host("b")) == [("head", "ionic_0", Severity.INFO)]


def test_a_node_that_has_just_started_is_given_time() -> None:
    young = host("b", uptime_s=120.0, ionic_0=DOWN)
    assert down(host("a"), young) == [("b", "ionic_0", Severity.INFO)]
    assert down(host("a"), host("b", uptime_s=601.0, ionic_0=DOWN))[0][2] is Severity.CRITICAL


def test_virtual_cards_may_be_spare() -> None:
    spare = {**DOWN, "virtual_function": True}
    assert down(host("a"), host("b", ports=4, ionic_3=spare)) == [("b", "ionic_3", Severity.INFO)]


def test_the_second_sample_is_the_one_that_counts() -> None:
    came_up = ProbeResult(
        "rdma", Status.OK, records=[port(0, **DOWN)], later=[port(0)], interval_s=0.5
    )
    assert down(host("a", ports=1), report("b", results=[came_up])) == []
    went = ProbeResult(
        "rdma", Status.OK, records=[port(0)], later=[port(0, **DOWN)], interval_s=0.5
    )
    assert len(down(host("a", ports=1), report("b", results=[went]))) == 1


def test_a_device_with_two_ports_is_named_with_its_port() -> None:
    well, sick = port(0), replace(port(0, **DOWN), port=2)
    (finding,) = ports_down(snapshot(report("a", rdma=[well, sick])))
    assert finding.device == "ionic_0/2"


def slow(*hosts: NodeReport) -> list[Finding]:
    return list(slow_ports(snapshot(*hosts)))


NARROW: dict[str, Any] = {"rate_gbits_per_s": 100.0, "width": "1X NDR"}


@pytest.mark.parametrize("peers", ["a", "ac"])
def test_a_port_below_its_peers_rate(peers: str) -> None:
    (finding,) = slow(*(host(name) for name in peers), host("b", ionic_1=NARROW))
    assert (finding.failure_class, finding.host, finding.device) == (
        "rdma-degraded",
        "b",
        "ionic_1",
    )
    assert (finding.severity, finding.evidence[0].value) == (Severity.WARNING, 100.0)
    assert "400" in finding.evidence[0].text


@pytest.mark.parametrize(
    "hosts",
    [
        [host("a", ionic_1=NARROW)],  # nothing to compare with
        [host("a", ionic_1=NARROW), host("b", ionic_1=NARROW)],  # a slower network by design
        [host("a"), host("b", ionic_1={**NARROW, **DOWN})],
        [host("a"), host("b", ionic_1={**NARROW, "rate_gbits_per_s": None})],
        # Two storage networks, and neither is what the other ports are.
        [host("a", ionic_1=NARROW), host("b", ionic_1={**NARROW, "rate_gbits_per_s": 200.0})],
        [host("a"), host("b", ionic_1={"rate_gbits_per_s": 800.0})],
    ],
)
def test_rates_that_say_nothing(hosts: list[NodeReport]) -> None:
    assert slow(*hosts) == []


def test_an_empty_cluster_is_silent() -> None:
    empty: Snapshot = snapshot(report("a"))
    assert [*ports_down(empty), *slow_ports(empty)] == []
