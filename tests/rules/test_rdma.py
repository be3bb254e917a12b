from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raydiag.model import (
    Confidence,
    Finding,
    NodeReport,
    ProbeResult,
    Severity,
    Snapshot,
    Status,
    Unread,
)
from raydiag.probes.network import NetworkState
from raydiag.probes.rdma import RdmaPort
from raydiag.rules.rdma import ports_down, slow_ports
from tests.rules.snapshots import report, snapshot

TRAFFIC = {"rx_rdma_ucast_pkts": 1000, "tx_rdma_ucast_pkts": 2000}
DOWN: dict[str, Any] = {"state": "DOWN", "phys_state": "Disabled"}
UNUSED: dict[str, Any] = {**DOWN, "counters": dict.fromkeys(TRAFFIC, 0)}
TRIED: dict[str, Any] = {**DOWN, "counters": {**TRAFFIC, **dict.fromkeys(TRAFFIC, 2)}}


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
        "state DOWN, link Disabled (ionic 0000:16:00.0, eth1); up on 2 of 3 hosts that have it"
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


@pytest.mark.parametrize("sick", [UNUSED, TRIED, {**DOWN, "counters": {}}])
def test_a_port_nobody_uses_is_silent(sick: dict[str, Any]) -> None:
    hosts = [host(name, ionic_2=sick) for name in "abcdefg"]
    assert down(*hosts) == []
    assert down(*hosts, host("head")) == []  # cabled on the head only
    assert down(host("a", ionic_2=UNUSED)) == [("a", "ionic_2", Severity.INFO)]


def test_a_port_that_few_use_is_a_remark_and_one_that_was_in_use_is_critical() -> None:
    for sick, severity in ((UNUSED, Severity.INFO), (DOWN, Severity.CRITICAL)):
        hosts = [host(name, ionic_2=sick) for name in "ab"]
        assert down(*hosts, host("c")) == [(name, "ionic_2", severity) for name in "ab"]


def test_hosts_without_any_port_that_is_up_stay_a_remark() -> None:
    hosts = [host(name, ports=1, ionic_0=UNUSED) for name in "abc"]
    assert down(*hosts) == [(name, "ionic_0", Severity.INFO) for name in "abc"]


def test_a_port_that_was_used_and_is_down_everywhere_is_a_warning() -> None:
    for sick in (DOWN, {"state": "INIT", "counters": {}}):
        hosts = [host(name, ionic_2=sick) for name in "ab"]
        assert down(*hosts) == [(name, "ionic_2", Severity.WARNING) for name in "ab"]


def test_the_only_host_is_judged_by_what_its_port_carried() -> None:
    (finding,) = ports_down(snapshot(host("a", ionic_2=DOWN)))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert down(host("a", ionic_2=TRIED)) == [("a", "ionic_2", Severity.INFO)]
    for sick in ({"state": "INIT"}, {"phys_state": "Polling"}):
        assert down(host("a", ionic_2=sick)) == [("a", "ionic_2", Severity.CRITICAL)]


@pytest.mark.parametrize("sick", [DOWN, UNUSED, {**DOWN, "counters": {}}])
def test_a_port_beside_many_that_are_up_is_critical(sick: dict[str, Any]) -> None:
    """The only host with such cards, whose other ports are all in use."""
    well = [host("b", ports=1), host("c", ports=1)]
    assert down(host("a", ports=8, ionic_3=sick), *well) == [("a", "ionic_3", Severity.CRITICAL)]


def test_the_second_port_of_a_card_may_be_spare() -> None:
    second = port(9, address="0000:36:00.1", **UNUSED)
    ports = [*(port(number) for number in range(8)), second]
    found = ports_down(snapshot(report("a", rdma=ports)))
    assert [(one.device, one.severity) for one in found] == [("ionic_9", Severity.INFO)]


@pytest.mark.parametrize("sick", [UNUSED, TRIED])
def test_hosts_with_other_devices_are_no_measure(sick: dict[str, Any]) -> None:
    head = host("head", ports=1, ionic_0=sick)
    assert down(head, host("a"), host("b")) == [("head", "ionic_0", Severity.INFO)]


def without(one: NodeReport, device: str, unread: bool = False) -> NodeReport:
    """The host without that device, or with one that could not be read."""
    ports = [port for port in one.records("rdma") if port.device != device]
    why = [Unread(f"/sys/class/infiniband/{device}", Status.DENIED, "refused")] if unread else []
    lost = ProbeResult("rdma", Status.OK, records=ports, unread=why)
    return replace(one, probes={**one.probes, "rdma": lost})


def test_a_device_that_is_gone() -> None:
    lost = without(host("b", ports=8), "ionic_5")
    (finding,) = ports_down(snapshot(host("a", ports=8), lost, host("c", ports=8)))
    assert (finding.failure_class, finding.host, finding.device) == (
        "rdma-port-down",
        "b",
        "ionic_5",
    )
    assert (finding.severity, finding.confidence) == (Severity.CRITICAL, Confidence.LIKELY)
    assert finding.evidence[0].source == "/sys/class/infiniband/ionic_5"
    assert finding.evidence[0].text.startswith("missing; 2 of 3 hosts")


def test_a_host_that_lost_a_device_still_has_its_peers() -> None:
    lost = without(host("b", ionic_0=UNUSED), "ionic_2")
    assert down(host("a"), lost, host("c")) == [
        ("b", "ionic_0", Severity.CRITICAL),
        ("b", "ionic_2", Severity.CRITICAL),
    ]


def test_a_device_that_several_hosts_lack_may_be_so_by_design() -> None:
    lost = [without(host(name), "ionic_2") for name in "ab"]
    found = list(ports_down(snapshot(*lost, *(host(name) for name in "cde"))))
    assert [(one.host, one.severity, one.confidence) for one in found] == [
        ("a", Severity.WARNING, Confidence.POSSIBLE),
        ("b", Severity.WARNING, Confidence.POSSIBLE),
    ]


@pytest.mark.parametrize(
    "hosts",
    [
        [without(host("a"), "ionic_2"), host("b")],  # one of two: no majority
        [without(host("a"), "ionic_2", unread=True), host("b"), host("c")],
        [report("head"), host("b"), host("c")],
        [host("head", ports=1), host("b"), host("c")],  # another kind of machine
        [report("head", rdma=[port(9, device="mlx5_0")]), host("b"), host("c")],
        [host("head", ports=4), host("b"), host("c")],  # one more than the others
    ],
)
def test_devices_that_need_not_be_there(hosts: list[NodeReport]) -> None:
    assert down(*hosts) == []


def test_a_device_may_come_up_after_the_node() -> None:
    young = without(host("b", uptime_s=120.0), "ionic_2")
    assert down(host("a"), young, host("c")) == [("b", "ionic_2", Severity.INFO)]


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
