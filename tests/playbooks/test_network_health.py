"""The network: every row fires, and noise, saves and TCP do not."""

from __future__ import annotations

import pytest

from raydiag.model import Confidence, Severity
from raydiag.timeline.training_series import TGS
from tests.playbooks.world import HOSTS, LENGTH_S, T0, World, classes, holds, is_symptom

ONLY = "network-health"


def port(device: str = "ionic_3") -> dict[str, str]:
    return {"host": "n2", "device": device, "port": "1"}


def test_quiet() -> None:
    outcome = World().judge(ONLY)
    assert classes(outcome) == set()
    assert not any(holds(outcome, ONLY).values())


def degraded(world: World, start: float, end: float, host: str = "n2", share: float = 0.75) -> None:
    world.set("rdma-retransmits", 300.0, start, end, [host])
    world.set("rdma-timeouts", 1.0, start, end, [host])
    world.scalar("tb_perf_per_device_tokens_per_sec", share, start, end, factor=True)


def test_a_port_that_resends_and_recovers() -> None:
    world = World()
    degraded(world, 2000, 2900)
    world.only("rdma-ports", 300.0, 2000, 2900, metric="hw_rdma_tx_retx_pkts_total", **port())
    outcome = world.judge(ONLY)
    (found,) = outcome.observations
    assert found.finding.failure_class == "rdma-degraded"
    assert (found.finding.host, found.finding.device) == ("n2", "ionic_3")
    assert abs((found.finding.onset or 0) - (T0 + 2000)) <= 15
    assert found.recovered
    assert found.finding.confidence is Confidence.CONFIRMED
    rows = holds(outcome, ONLY)
    assert rows["phases"] is True
    assert rows["recovery"] is True


def test_throughput_that_does_not_come_back_has_another_cause() -> None:
    world = World()
    degraded(world, 2000, 2900)
    world.scalar("tb_perf_per_device_tokens_per_sec", 0.75, 2901, factor=True)
    outcome = world.judge(ONLY)
    assert holds(outcome, ONLY)["recovery"] is False
    assert outcome.observations[0].finding.confidence is Confidence.POSSIBLE


def test_one_node_and_then_another() -> None:
    world = World()
    degraded(world, 1500, 2100, "n2")
    degraded(world, 3500, 4100, "n4")
    outcome = world.judge(ONLY)
    assert {one.finding.host for one in outcome.observations} == {"n2", "n4"}
    assert holds(outcome, ONLY)["phases"] is True
    (report,) = outcome.reports
    assert [(one.host, one.priority) for one in report.exclude] == [("n2", 2), ("n4", 2)]


def test_a_burst_that_nothing_followed_is_a_remark() -> None:
    world = World()
    world.set("rdma-retransmits", 40.0, 2000, 2045, ["n2"])
    outcome = world.judge(ONLY)
    assert classes(outcome, severe=True) == set()
    assert outcome.observations[0].finding.severity is Severity.INFO


@pytest.mark.parametrize(("until", "serious"), [(LENGTH_S + 1, True), (LENGTH_S - 1800, False)])
def test_a_flood_that_goes_on_at_the_end_is_no_burst(until: float, serious: bool) -> None:
    world = World()
    world.set("rdma-retransmits", 4000.0, until - 150, until, ["n2"])
    outcome = world.judge(ONLY)
    assert (classes(outcome, severe=True) == {"rdma-degraded"}) is serious
    assert len(outcome.observations) == 1


def test_a_little_on_all_hosts_all_the_time_is_background() -> None:
    world = World()
    world.set("rdma-retransmits", 2.0)
    assert classes(world.judge(ONLY)) == set()


def test_a_port_that_goes_down() -> None:
    world = World()
    world.only("rdma-ports-down", 0.0, 3000, LENGTH_S, **port("mlx5_1"))
    (found,) = world.judge(ONLY).observations
    assert found.finding.failure_class == "rdma-port-down"
    assert (found.finding.device, found.finding.onset) == ("mlx5_1", T0 + 3000)
    assert found.finding.severity is None
    assert not found.before_job


def test_a_port_that_was_down_before() -> None:
    world = World()
    world.only("rdma-ports-down", 0.0, 0, LENGTH_S, **port())
    (found,) = world.judge(ONLY).observations
    assert found.before_job
    assert found.finding.onset is None
    assert found.finding.severity is Severity.WARNING


def test_a_port_that_nobody_uses() -> None:
    world = World()
    for host in HOSTS:
        row = {**port("bond9"), "host": host}
        world.only("rdma-ports-down", 0.0, 0, LENGTH_S, **row)
    outcome = world.judge(ONLY)
    assert classes(outcome) == set()
    assert holds(outcome, ONLY)["port-unused"] is True


def test_packets_that_are_lost_for_good_come_first() -> None:
    world = World()
    degraded(world, 2000, 2900, "n4")
    labels = {**port(), "metric": "hw_rdma_req_tx_retry_excd_err_total"}
    world.only("rdma-errors", 3.0, 3000, 3060, **labels)
    outcome = world.judge(ONLY)
    assert "rdma-retry-exhausted" in classes(outcome, severe=True)
    (report,) = outcome.reports
    assert [(one.host, one.priority) for one in report.exclude] == [("n2", 1), ("n4", 2)]


def test_completions_with_an_error() -> None:
    world = World()
    labels = {**port(), "metric": "hw_rdma_req_rx_cqe_err_total"}
    world.only("rdma-errors", 3.0, 3000, 3060, **labels)
    outcome = world.judge(ONLY)
    assert classes(outcome) == {"rdma-degraded"}
    assert holds(outcome, ONLY)["completion-errors"] is True


@pytest.mark.parametrize(
    ("hosts", "host"), [(["n1"], "n1"), (["n1", "n2", "n3"], None)], ids=["one", "many"]
)
def test_congestion(hosts: list[str], host: str | None) -> None:
    world = World()
    world.set("rdma-cnp", 900.0, 2000, 2600, hosts)
    (found,) = world.judge(ONLY).observations
    assert found.finding.failure_class == "network-congestion"
    assert found.finding.severity is Severity.WARNING
    assert found.finding.host == host


def test_congestion_that_lasts_most_of_the_run_is_measured_by_what_came_before() -> None:
    world = World()
    world.set("rdma-cnp", 900.0, 2000)
    (found,) = world.judge(ONLY).observations
    assert (found.finding.failure_class, found.finding.host) == ("network-congestion", None)


@pytest.mark.parametrize("slower", [True, False])
def test_errors_that_the_link_itself_counts(slower: bool) -> None:
    world = World()
    labels = {"host": "n2", "device": "mlx5_1", "port": "1"}
    world.only("rdma-errors", 900.0, 3000, 5400, metric="hw_rdma_symbol_errors_total", **labels)
    if slower:
        world.scalar(TGS, 0.7, 3000, factor=True)
    (found,) = [o.finding for o in world.judge(ONLY).observations]
    assert (found.failure_class, found.host, found.device) == ("rdma-degraded", "n2", "mlx5_1")
    assert found.severity is (None if slower else Severity.INFO)


@pytest.mark.parametrize(("rate", "seconds"), [(99.0, 600), (900.0, 45)], ids=["low", "short"])
def test_no_congestion(rate: float, seconds: float) -> None:
    world = World()
    world.set("rdma-cnp", rate, 2000, 2000 + seconds, ["n1"])
    assert classes(world.judge(ONLY)) == set()


@pytest.mark.parametrize(("rate", "seen"), [(10.0, False), (10.1, True)])
def test_tcp_is_a_remark_and_a_symptom(rate: float, seen: bool) -> None:
    world = World()
    world.set("tcp-retransmits", rate, 2000, 2600, ["n1"])
    outcome = world.judge(ONLY)
    assert classes(outcome, severe=True) == set()
    assert bool(outcome.observations) is seen
    assert all(is_symptom(one) for one in outcome.observations)


@pytest.mark.parametrize("has_rdma", [True, False])
def test_tcp_that_slows_training_is_congestion_where_there_is_no_rdma(has_rdma: bool) -> None:
    world = World()
    world.scalar(TGS, 0.8, 2000, factor=True)
    world.set("tcp-retransmits", 900.0, 2000, hosts=["n1"])
    if not has_rdma:
        world.without(*(metric for metric in world.metrics if metric.startswith("hw_rdma_")))
    found = [one.finding for one in world.judge(ONLY).observations]
    expected = "tcp-retransmits" if has_rdma else "network-congestion"
    assert [(finding.failure_class, finding.host) for finding in found] == [(expected, "n1")]


def test_tcp_while_a_checkpoint_is_saved() -> None:
    world = World()
    world.save(1990, 2700)
    world.set("tcp-retransmits", 2500.0, 2000, 2600, ["n1"])
    outcome = world.judge(ONLY)
    assert classes(outcome) == set()
    assert holds(outcome, ONLY)["tcp-in-saves"] is True


def test_tcp_only_nodes_are_kept_but_for_two() -> None:
    world = World()
    world.set("tcp-retransmits", 2500.0, 2000, 2600)
    (report,) = world.judge(ONLY).reports
    assert [one.priority for one in report.exclude] == [4, 4]


@pytest.mark.parametrize(
    ("metric", "failure", "row"),
    [
        ("hw_tcp_abort_on_timeout_total", "tcp-aborts", "tcp-aborts"),
        ("hw_tcp_listen_drops_total", "coordinator-overload", "listen-queue"),
        ("hw_tcp_listen_overflows_total", "coordinator-overload", "listen-queue"),
        ("hw_tcp_estab_resets_total", None, "tcp-resets"),
    ],
)
def test_connections(metric: str, failure: str | None, row: str) -> None:
    world = World()
    world.only("tcp-errors", 30.0, 2000, 2120, host="n1", metric=metric)
    outcome = world.judge(ONLY)
    assert classes(outcome) == ({failure} if failure else set())
    assert holds(outcome, ONLY)[row] is True


def test_resets_at_zero_prove_nothing() -> None:
    assert holds(World().judge(ONLY), ONLY)["tcp-resets"] is None


def test_a_card_that_counts_errors() -> None:
    world = World()
    labels = {"host": "n3", "device": "eth0", "metric": "hw_net_rx_errors_total"}
    world.only("nic-errors", 50.0, 2000, 2300, **labels)
    (found,) = world.judge(ONLY).observations
    assert (found.finding.failure_class, found.finding.device) == ("nic-errors", "eth0")


def test_collectives_are_counted_apart_where_the_card_can() -> None:
    world = World()
    world.put("rdma-collectives", world.times * 0 + 0.01, host="n1")
    assert holds(world.judge(ONLY), ONLY)["collectives"] is True


def test_absent_metrics_are_said_to_be_absent() -> None:
    world = World()
    world.without("hw_rdma_tx_retx_pkts_total", "hw_rdma_rx_cnp_pkts_total", "hw_rdma_port_state")
    outcome = world.judge(ONLY)
    rows = holds(outcome, ONLY)
    assert [rows[one] for one in ("rdma-retransmits", "congestion", "port-down")] == [None] * 3
    told = {one.failure_class for one in outcome.ruled_out}
    assert not told & {"rdma-degraded", "network-congestion", "rdma-port-down"}


@pytest.mark.parametrize(("slow_from", "severe"), [(3000.0, True), (1500.0, False)])
def test_tcp_is_more_than_a_remark_when_training_got_slower_with_it(
    slow_from: float, severe: bool
) -> None:
    world = World()
    world.set("tcp-retransmits", 900.0, 3000, hosts=["n2"])
    world.scalar("tb_perf_per_device_tokens_per_sec", 0.7, slow_from, factor=True)
    assert ("tcp-retransmits" in classes(world.judge("network-health"), severe=True)) is severe
