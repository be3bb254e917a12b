"""Steps that stopped: every row of the table, and what looks like it and is not."""

from __future__ import annotations

import pytest

from raydiag.model import Confidence
from raydiag.timeline.context import Mask
from tests.playbooks.world import HOSTS, LENGTH_S, T0, World, classes, holds, is_symptom

HANG = 3000.0


def test_a_job_that_is_well() -> None:
    outcome = World().judge()
    assert classes(outcome) == set()
    assert holds(outcome, "rccl-hang")["stall"] is False
    assert {one.failure_class for one in outcome.ruled_out} >= {"rccl-hang", "rdma-degraded"}


def test_busy_wait_on_all_hosts() -> None:
    world = World()
    world.hang(HANG)
    outcome = world.judge("rccl-hang")
    (found,) = outcome.observations
    assert found.finding.failure_class == "rccl-hang"
    assert found.finding.onset == T0 + HANG
    assert found.finding.confidence is Confidence.CONFIRMED
    assert not is_symptom(found)
    assert holds(outcome, "rccl-hang")["busy-wait"] is True


def test_some_of_the_gpus_are_enough() -> None:
    world = World()
    world.hang(HANG)
    world.set("gpu-utilisation", 0.0, HANG, metric="min")
    world.set("gpu-utilisation", 25.0, HANG, metric="avg")
    assert classes(world.judge("rccl-hang")) == {"rccl-hang"}


def test_an_unknown_model_is_measured_by_its_own_training() -> None:
    world = World(device="Some Accelerator")
    world.hang(HANG, power=500.0)
    assert classes(world.judge("rccl-hang")) == {"rccl-hang"}


def test_without_training_and_model_nothing_is_decided() -> None:
    world = World(device="Some Accelerator")
    world.hang(350.0)
    world.set("gpu-power", 300.0)
    world.set("gpu-utilisation", 100.0)
    outcome = world.judge("rccl-hang")
    assert classes(outcome) == {"hang"}  # steps stopped; in what is not known
    assert holds(outcome, "rccl-hang")["inconclusive"] is True


def test_active_power_is_no_hang() -> None:
    world = World()
    world.stop(HANG)
    outcome = world.judge("rccl-hang")
    assert classes(outcome) == set()
    assert holds(outcome, "rccl-hang")["not-a-hang"] is True


@pytest.mark.parametrize("power", [None, "gpu-power", "gpu-utilisation"])
def test_an_absent_metric_is_no_zero(power: str | None) -> None:
    world = World()
    world.hang(HANG)
    if power is None:
        world.without("hw_gpu_power_watts", "ray_node_gpus_utilization")
    else:
        world.failed[power] = "the server said no"
    outcome = world.judge("rccl-hang")
    assert classes(outcome) == {"hang"}  # steps stopped; in what is not known
    assert holds(outcome, "rccl-hang")["inconclusive"] is True


def test_a_host_whose_power_is_not_known_leaves_a_doubt() -> None:
    world = World()
    world.hang(HANG)
    for stat in ("min", "avg", "max"):
        world.set("gpu-power", float("nan"), HANG, hosts=["n2"], metric=stat)
    found = world.judge("rccl-hang").observations
    hang = next(seen.finding for seen in found if seen.finding.failure_class == "rccl-hang")
    assert hang.confidence.value == "likely"


def test_retransmits_just_before_it_set_it_off() -> None:
    world = World()
    world.hang(HANG)
    world.set("rdma-retransmits", 500.0, HANG - 90, HANG + 30, ["n3"])
    world.set("rdma-timeouts", 2.0, HANG - 60, HANG + 30, ["n3"])
    outcome = world.judge("rccl-hang", "network-health")
    assert classes(outcome, severe=True) == {"rccl-hang", "rdma-degraded"}
    assert holds(outcome, "rccl-hang")["network-triggered"] is True
    cause = next(o for o in outcome.observations if o.finding.failure_class == "rdma-degraded")
    assert cause.finding.host == "n3"
    assert abs((cause.finding.onset or 0) - (T0 + HANG - 90)) <= 15


def test_retransmits_long_before_it_did_not() -> None:
    world = World()
    world.hang(HANG)
    world.set("rdma-retransmits", 500.0, 1000, 1090, ["n3"])
    assert holds(world.judge("rccl-hang"), "rccl-hang")["busy-wait"] is True


def test_tcp_before_it_is_told_and_no_trigger() -> None:
    world = World()
    world.hang(HANG)
    world.set("tcp-retransmits", 2000.0, HANG - 200, HANG)
    found = holds(world.judge("rccl-hang"), "rccl-hang")
    assert found["busy-wait"] is True
    assert found["network-tcp"] is True


def test_tcp_of_a_save_before_it_is_not_even_told() -> None:
    world = World()
    world.hang(HANG)
    world.save(HANG - 250, HANG)
    world.set("tcp-retransmits", 2000.0, HANG - 200, HANG)
    assert "network-tcp" not in holds(world.judge("rccl-hang"), "rccl-hang")


@pytest.mark.parametrize(("power", "use"), [(900.0, 100.0), (260.0, 0.0)])
def test_the_one_that_the_others_wait_for(power: float, use: float) -> None:
    world = World()
    world.hang(HANG)
    world.set("gpu-power", power, HANG + 10, hosts=["n2"])
    world.set("gpu-utilisation", use, HANG + 10, hosts=["n2"])
    outcome = world.judge("rccl-hang")
    assert classes(outcome) == {"straggler", "rccl-hang"}
    straggler = next(o for o in outcome.observations if o.finding.failure_class == "straggler")
    assert straggler.finding.host == "n2"


def test_of_two_hosts_the_one_that_computes_keeps_the_other_waiting() -> None:
    world = World(hosts=("n1", "n2"))
    world.hang(HANG)
    world.set("gpu-power", 900.0, HANG + 10, hosts=["n2"])
    outcome = world.judge("rccl-hang")
    accused = {one.finding.failure_class: one.finding.host for one in outcome.observations}
    assert accused["straggler"] == "n2"


def test_two_and_two_accuse_nobody() -> None:
    world = World()
    world.hang(HANG)
    world.set("gpu-power", 900.0, HANG + 10, hosts=["n2", "n3"])
    assert "straggler" not in classes(world.judge("rccl-hang"))


@pytest.mark.parametrize(("period", "known_to_s"), [(None, 10.0), (100, 130.0)])
def test_a_hang_may_have_begun_in_the_save_after_the_last_step(
    period: int | None, known_to_s: float
) -> None:
    """What went wrong in those two minutes may be what stopped it."""
    world = World()
    world.hang(300.0 + 99 * 10)
    world.tell(checkpoint_period=period, longest_save_s=120.0)
    (found,) = world.judge("rccl-hang").observations
    assert found.uncertainty_s == pytest.approx(known_to_s, abs=0.5)


@pytest.mark.parametrize(("primary", "seen"), [(None, set()), ("hang", {"rccl-hang"})])
def test_a_save_is_an_excuse_until_the_log_says_that_it_hangs(
    primary: str | None, seen: set[str]
) -> None:
    world = World()
    world.hang(LENGTH_S - 1700)
    world.tell(checkpoint_period=int((LENGTH_S - 1700 - 300) / 10) + 1, primary=primary)
    assert classes(world.judge("rccl-hang")) == seen


@pytest.mark.parametrize(("is_async", "minutes"), [(False, True), (None, True), (True, False)])
def test_a_save_of_which_none_was_seen_yet_may_take_minutes(
    is_async: bool | None, minutes: bool
) -> None:
    world = World()
    world.hang(300.0 + 99 * 10)
    world.tell(checkpoint_period=100, longest_save_s=10.4, async_saves=is_async)
    (found,) = world.judge("rccl-hang").observations
    assert (found.uncertainty_s > 300) is minutes


def without_ray() -> World:
    world = World()
    world.without("ray_node_gpus_utilization")
    return world


@pytest.mark.parametrize(
    ("cancelled", "processes", "seen"),
    [
        (False, 8.0, {"hang"}),
        (True, 8.0, {"hang"}),
        (True, 0.0, set()),
    ],
)
def test_without_utilisation_a_cancelled_job_hung_while_it_held_its_gpus(
    cancelled: bool, processes: float, seen: set[str]
) -> None:
    world = without_ray()
    world.stop(HANG)
    world.set("gpu-power", 300.0, HANG + 10)
    world.set("driver", processes, HANG + 10, metric="hw_gpu_user_processes")
    if cancelled:
        world.tell(status="cancelled", primary="cancelled")
    assert classes(world.judge("rccl-hang")) == seen


def test_without_utilisation_the_one_that_computes_is_a_possible_straggler() -> None:
    world = without_ray()
    world.stop(HANG)
    world.set("gpu-power", 300.0, HANG + 10)
    world.set("gpu-power", 900.0, HANG + 10, hosts=["n2"])
    outcome = world.judge("rccl-hang")
    found = next(o for o in outcome.observations if o.finding.failure_class == "straggler")
    assert (found.finding.host, found.finding.confidence) == ("n2", Confidence.POSSIBLE)
    assert "unknown" in found.finding.evidence[0].text


def test_without_utilisation_half_of_the_hosts_computing_tells_nothing() -> None:
    world = without_ray()
    world.stop(HANG)
    world.set("gpu-power", 300.0, HANG + 10)
    world.set("gpu-power", 900.0, HANG + 10, hosts=["n1", "n2"])
    assert classes(world.judge("rccl-hang")) == {"hang"}


def test_ghost_data_is_no_straggler() -> None:
    world = World()
    world.hang(HANG)
    world.set("gpu-power", 900.0, HANG + 10, hosts=["n2"])
    world.masks.append(Mask("ghost", T0 + HANG - 100, T0 + LENGTH_S, "n2", "hw_"))
    assert classes(world.judge("rccl-hang")) == {"rccl-hang"}


def test_a_node_that_died() -> None:
    world = World()
    world.hang(HANG)
    world.die("n4", HANG)
    outcome = world.judge("rccl-hang")
    (found,) = outcome.observations
    assert (found.finding.failure_class, found.finding.host) == ("node-death", "n4")
    assert found.finding.onset == T0 + HANG


@pytest.mark.parametrize("rest_s", [0.0, 900.0], ids=["steps go on", "they start anew without it"])
def test_steps_that_go_on_prove_that_a_host_without_series_lives(rest_s: float) -> None:
    world = World()
    world.die("n4", HANG)
    keep = (world.ended <= T0 + HANG) | (world.ended > T0 + HANG + rest_s)
    world.ended = world.ended[keep]
    world.scalars = {name: values[keep] for name, values in world.scalars.items()}
    (found,) = [o.finding for o in world.judge("node-failure").observations]
    failure = "node-death" if rest_s else "exporter-down"
    assert (found.failure_class, found.host) == (failure, "n4")
    assert found.onset == T0 + HANG


def test_of_undated_steps_all_of_them_prove_it() -> None:
    world = World()
    world.die("n4", HANG)
    world.without(*(metric for metric in world.metrics if metric.startswith("tb_")))
    assert "node-death" in classes(world.judge("node-failure"))
    world.tell(status="completed")
    assert classes(world.judge("node-failure")) == {"exporter-down"}


def test_only_its_exporter_died() -> None:
    world = World()
    last = T0 + HANG
    for labels, row in world.rows["alive"].items():
        if dict(labels).get("host") == "n4":
            row[row > last] = last
    assert "node-death" not in classes(world.judge("rccl-hang"))


def test_when_all_fall_silent_it_is_not_the_nodes() -> None:
    world = World()
    for host in HOSTS[:3]:
        world.die(host, HANG)
    assert "node-death" not in classes(world.judge("rccl-hang"))


@pytest.mark.parametrize(("start", "seen"), [(1200.0, True), (4200.0, False)])
def test_a_hang_before_the_first_step(start: float, seen: bool) -> None:
    world = World()
    world.without(*[one for one in world.metrics if one.startswith("tb_")])
    world.set("gpu-power", 260.0)
    world.set("gpu-utilisation", 0.0)
    world.set("gpu-power", 300.0, start)
    world.set("gpu-utilisation", 100.0, start, metric="max")
    outcome = world.judge("rccl-hang")
    assert classes(outcome) == ({"rccl-hang"} if seen else set())


def test_an_unknown_model_is_measured_by_its_own_idle_power() -> None:
    world = World(device="Some Accelerator")
    world.without(*[one for one in world.metrics if one.startswith("tb_")])
    world.set("gpu-power", 262.0)
    world.set("gpu-power", 220.0, 0, 600)
    world.set("gpu-utilisation", 100.0)
    world.set("gpu-utilisation", 0.0, 0, 600)
    assert classes(world.judge("rccl-hang")) == {"rccl-hang"}


def test_an_unknown_level_is_half_of_the_limit() -> None:
    world = World(device="NVIDIA H100 80GB HBM3")
    world.without(*[one for one in world.metrics if one.startswith("tb_")])
    world.set("gpu-power", 200.0)
    world.set("gpu-utilisation", 100.0)
    assert classes(world.judge("rccl-hang")) == {"rccl-hang"}


def test_a_long_save_is_no_stall() -> None:
    world = World()
    world.stop(4500.0)
    world.set("gpu-power", 300.0, 4510)
    step = int(world.scalars["tb_step"][-1])
    world.tell(checkpoint_period=step + 1)
    assert holds(world.judge("rccl-hang"), "rccl-hang")["stall"] is False


@pytest.mark.parametrize(("stopped", "stall"), [(LENGTH_S - 300, False), (LENGTH_S - 320, True)])
def test_a_stall_is_longer_than_five_minutes(stopped: float, stall: bool) -> None:
    world = World()
    world.stop(stopped)
    assert holds(world.judge("rccl-hang"), "rccl-hang")["stall"] is stall


def test_a_job_that_completed_does_not_stall() -> None:
    world = World()
    world.stop(HANG)
    world.tell(status="completed")
    assert holds(world.judge("rccl-hang"), "rccl-hang")["stall"] is False


def test_a_bridge_that_lags_does_not_stall_a_job() -> None:
    world = World()
    step = int(world.scalars["tb_step"][-1])
    world.stop(LENGTH_S - 800)
    world.tell(last_step=step)
    assert holds(world.judge("rccl-hang"), "rccl-hang")["stall"] is False


def test_when_no_process_is_left_the_job_had_ended() -> None:
    world = World()
    world.hang(HANG, power=260.0, use=0.0)
    world.set("driver", 0.0, HANG + 10, metric="hw_gpu_user_processes")
    assert classes(world.judge("rccl-hang")) == set()


@pytest.mark.parametrize(("after_s", "gone"), [(20.0, True), (400.0, False)])
def test_processes_that_somebody_ended_in_a_hang_did_not_cause_it(
    after_s: float, gone: bool
) -> None:
    """One host's processes end as steps stop, or somebody ends them minutes later."""
    world = World()
    world.hang(HANG)
    for question, value in (("gpu-power", 260.0), ("gpu-utilisation", 0.0)):
        world.set(question, value, HANG + after_s, hosts=["n3"])
    world.set("driver", 0.0, HANG + after_s, hosts=["n3"], metric="hw_gpu_user_processes")
    outcome = world.judge("rccl-hang")
    assert bool(holds(outcome, "rccl-hang").get("process-gone")) is gone
    assert ("rccl-hang" in classes(outcome)) is not gone
    assert "straggler" not in classes(outcome)


def test_a_job_whose_processes_were_all_ended_late_had_hung() -> None:
    world = World()
    world.hang(HANG)
    world.set("gpu-utilisation", 0.0, HANG + 600)
    world.set("driver", 0.0, HANG + 600, metric="hw_gpu_user_processes")
    assert classes(world.judge("rccl-hang")) == {"rccl-hang"}


@pytest.mark.parametrize(
    ("rebooted", "stopped", "seen"),
    [(True, False, True), (False, True, True), (False, False, False)],
)
def test_a_node_that_came_back_had_died_when_it_rebooted_or_steps_stopped_with_it(
    rebooted: bool, stopped: bool, seen: bool
) -> None:
    """Series that pause by themselves say nothing of the node."""
    world = World()
    world.pause("n3", HANG, HANG + 240)
    if rebooted:
        world.only("reboots", 1.0, LENGTH_S, LENGTH_S, host="n3")
    if stopped:
        world.hang(HANG)
    died = [o for o in world.judge("node-failure").observations if "death" in o.row]
    assert [(o.finding.host, o.until) for o in died] == ([("n3", T0 + HANG + 240)] if seen else [])
    assert all(abs((o.finding.onset or 0) - T0 - HANG) <= 15 for o in died)


def test_of_two_nodes_the_one_that_rebooted_and_came_back_had_died() -> None:
    world = World(("n1", "n2"))
    world.pause("n2", HANG, HANG + 300)
    world.only("reboots", 1.0, LENGTH_S, LENGTH_S, host="n2")
    died = [o.finding.host for o in world.judge("node-failure").observations if "death" in o.row]
    assert died == ["n2"]


def test_a_pause_of_all_hosts_is_no_nodes() -> None:
    world = World()
    for host in HOSTS:
        world.pause(host, HANG, HANG + 240)
    world.only("reboots", 1.0, LENGTH_S, LENGTH_S, host="n3")
    assert "node-death" not in classes(world.judge("node-failure"))


def test_a_host_of_which_one_gpu_lies_idle_keeps_the_others_waiting() -> None:
    world = World()
    world.hang(HANG)
    world.set("gpu-utilisation", 0.0, HANG + 10, hosts=["n2"], metric="min")
    outcome = world.judge("rccl-hang")
    straggler = next(
        o.finding for o in outcome.observations if o.row == "straggler" and o.finding.host
    )
    assert (straggler.failure_class, straggler.host) == ("straggler", "n2")


def test_gpus_that_were_idle_before_keep_nobody_waiting() -> None:
    world = World()
    world.hang(HANG)
    world.set("gpu-utilisation", 0.0, hosts=["n2"], metric="min")
    assert "straggler" not in classes(world.judge("rccl-hang"))


def test_where_some_gpus_of_every_host_are_idle_nobody_is_accused() -> None:
    world = World()
    world.hang(HANG)
    world.set("gpu-utilisation", 0.0, HANG + 10, metric="min")
    assert "straggler" not in classes(world.judge("rccl-hang"))


@pytest.mark.parametrize(("stopped", "late"), [(5200.0, True), (5330.0, False)])
def test_a_rank_that_is_late_is_named_before_it_is_a_stall(stopped: float, late: bool) -> None:
    world = World()
    world.stop(stopped)
    world.set("gpu-utilisation", 100.0, stopped + 10)
    world.set("gpu-utilisation", 0.0, stopped + 10, hosts=["n2"])
    found = [one.finding for one in world.judge("rccl-hang").observations]
    assert [(one.failure_class, one.host) for one in found] == [("straggler", "n2")] * late


def test_the_first_rank_may_save_while_the_others_wait_for_it() -> None:
    world = World()
    world.stop(5200)
    world.set("gpu-utilisation", 100.0, 5210)
    world.set("gpu-utilisation", 0.0, 5210, hosts=["n1"])
    assert classes(world.judge("rccl-hang")) == set()
