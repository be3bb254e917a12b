"""Training's own numbers, throughput, and the checklist for what slows it."""

from __future__ import annotations

import numpy as np
import pytest

from raydiag.model import Severity
from raydiag.playbooks.training_stability.rises import slow_rise
from raydiag.timeline import slowdowns
from raydiag.tsdb.series import Series
from tests.playbooks.world import HOSTS, LENGTH_S, T0, World, classes, holds, is_symptom

ONLY = "training-stability"
LOSS, GRAD, RAW = "tb_learning_loss", "tb_learning_grad_norm", "tb_learning_raw_grad_norm"
TGS, SECONDS = "tb_perf_per_device_tokens_per_sec", "tb_perf_step_time_seconds"
RATE, BALANCE = "tb_learning_current_learning_rate", "tb_learning_moe_lb_loss"


def test_steady() -> None:
    outcome = World().judge(ONLY)
    assert classes(outcome) == set()
    assert not any(holds(outcome, ONLY).values())


@pytest.mark.parametrize(("gradients_from", "explodes"), [(3000, False), (2900, True)])
def test_gradients_of_a_broken_loss_explain_nothing(gradients_from: float, explodes: bool) -> None:
    world = World()
    world.scalar(LOSS, float("nan"), 3000)
    for gradients in ("tb_learning_grad_norm", "tb_learning_raw_grad_norm"):
        world.scalar(gradients, float("nan"), gradients_from)
    assert ("gradient-explosion" in classes(world.judge(ONLY))) == explodes


def test_a_loss_that_becomes_nan() -> None:
    world = World()
    world.scalar(LOSS, float("nan"), 3000)
    (found,) = world.judge(ONLY).observations
    assert found.finding.failure_class == "loss-divergence"
    assert found.finding.onset == T0 + 3000


def test_a_loss_that_rises_and_stays() -> None:
    world = World()
    world.scalar(LOSS, 3.0, 3000, factor=True)
    (found,) = world.judge(ONLY).observations
    assert (found.finding.failure_class, found.finding.onset) == ("loss-divergence", T0 + 3000)


def test_a_loss_that_turns_and_climbs_slowly() -> None:
    world = World()
    after = np.clip(np.arange(world.ended.size) - 270, 0, None)
    world.scalars[LOSS] = world.scalars[LOSS] + 0.02 * after + world.rng.normal(0, 0.01, after.size)
    (found,) = world.judge(ONLY).observations
    assert found.finding.failure_class == "loss-divergence"
    assert abs((found.finding.onset or 0) - (T0 + 3000)) <= 80


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
def test_a_loss_that_climbs_steadily_through_noise(noise: float) -> None:
    rng, steps = np.random.default_rng(7), np.arange(200.0)
    values = 8 + 2 * np.exp(-steps / 30) + rng.normal(0, noise, 200)
    assert slow_rise(Series.of({"__name__": LOSS}, steps, values)) is None
    values += np.maximum(0, steps - 120) * 0.1
    found = slow_rise(Series.of({"__name__": LOSS}, steps, values))
    assert found is not None and 115 < found.index < 135
    assert found.value > 15


def test_a_rise_of_a_loss_that_fell_dates_from_its_turn() -> None:
    """The median of the steps before lies above the loss, so the rise passes it only later."""
    world = World()
    steps = np.arange(world.ended.size, dtype=np.float64)
    falling = 9.0 - 0.02 * np.minimum(steps, 270)
    rising = 0.12 * np.maximum(0.0, steps - 270)
    world.scalars[LOSS] = falling + rising + world.rng.normal(0, 0.01, steps.size)
    (found,) = world.judge(ONLY).observations
    assert found.finding.onset is not None
    assert abs(found.finding.onset - (T0 + 3000 + 10)) <= 20


def test_a_loss_that_is_flat_at_its_end() -> None:
    world = World()
    world.scalars[LOSS] = 2.0 + world.rng.normal(0, 0.05, world.ended.size)
    assert classes(world.judge(ONLY)) == set()


def test_one_bad_batch_is_no_divergence() -> None:
    world = World()
    world.scalar(LOSS, 3.0, 3000, 3000, factor=True)
    assert classes(world.judge(ONLY)) == set()


def test_gradients_that_explode() -> None:
    world = World()
    world.scalar(RAW, 40.0, 3000, factor=True)
    world.scalar(LOSS, 4.0, 3100, factor=True)
    outcome = world.judge(ONLY)
    assert classes(outcome) == {"gradient-explosion", "loss-divergence"}
    onsets = {o.finding.failure_class: o.finding.onset for o in outcome.observations}
    assert (onsets["gradient-explosion"] or 0) < (onsets["loss-divergence"] or 0)


def test_a_gradient_spike_of_one_step() -> None:
    world = World()
    world.scalar(GRAD, 40.0, 3000, 3000, factor=True)
    assert classes(world.judge(ONLY)) == set()


def test_clipping_is_told() -> None:
    world = World()
    world.scalar(RAW, 20.0, 0, factor=True)
    assert holds(world.judge(ONLY), ONLY)["clipping"] is True


def test_experts_out_of_balance() -> None:
    world = World()
    count = world.ended.size
    world.scalars[BALANCE] = 0.01 + world.rng.normal(0, 1e-4, count)
    assert classes(world.judge(ONLY)) == set()
    world.scalar(BALANCE, 3.0, 3000, factor=True)
    (found,) = world.judge(ONLY).observations
    assert (found.finding.failure_class, found.finding.onset) == ("moe-imbalance", T0 + 3000)


@pytest.mark.parametrize("factor", [30.0, 0.0])
def test_a_learning_rate_that_jumps(factor: float) -> None:
    world = World()
    world.scalar(RATE, factor, 3000, factor=True)
    (found,) = world.judge(ONLY).observations
    assert (found.finding.failure_class, found.finding.onset) == ("lr-anomaly", T0 + 3000)


def test_a_learning_rate_that_falls_to_zero_within_five_steps() -> None:
    world = World()
    count = world.ended.size
    rates = np.linspace(3e-4, 2e-4, count)
    start = count // 2
    rates[start : start + 6] = np.linspace(rates[start], 0.0, 6)
    rates[start + 6 :] = 0.0
    world.scalars[RATE] = rates
    assert classes(world.judge(ONLY)) == {"lr-anomaly"}


@pytest.mark.parametrize("decay", [20, 200])
def test_a_schedule_that_decays_to_its_end_is_no_anomaly(decay: int) -> None:
    """Warm-up, stable, linear decay."""
    world = World()
    count = world.ended.size
    rates = np.full(count, 3e-4)
    rates[-decay:] = np.linspace(3e-4, 0.0, decay)
    world.scalars[RATE] = rates
    assert classes(world.judge(ONLY)) == set()


@pytest.mark.parametrize("decay", [8, 10, 13, 30])
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_a_short_decay_is_no_jump_of_the_learning_rate(decay: int, power: float) -> None:
    """Linear, and one less the root, as a cooldown after a constant rate."""
    world = World()
    rates = np.full(world.ended.size, 3e-4)
    rates[-decay:] = 3e-4 * (1 - (np.arange(decay) / decay) ** power)
    world.scalars[RATE] = rates
    assert classes(world.judge(ONLY)) == set()


def test_a_learning_rate_that_is_zero_for_skipped_steps() -> None:
    world = World()
    world.scalars[RATE] = np.full(world.ended.size, 3e-4)
    world.scalars[RATE][:14] = 0.0
    assert classes(world.judge(ONLY)) == set()


@pytest.mark.parametrize("steps_of_warm_up", [500, 3000, 10000])
def test_a_warm_up_that_is_printed_with_few_digits_is_no_anomaly(steps_of_warm_up: int) -> None:
    world = World()
    rates = np.minimum((np.arange(world.ended.size) + 1) / steps_of_warm_up, 1.0) * 3e-4
    world.scalars[RATE] = np.array([float(f"{rate:.2e}") for rate in rates])
    assert classes(world.judge(ONLY)) == set()


def test_a_learning_rate_that_is_wrong_twice_is_no_restart_of_a_schedule() -> None:
    world = World()
    rates = np.full(world.ended.size, 1e-4)
    rates[100:150] = rates[300:350] = 1e-3
    world.scalars[RATE] = rates
    assert classes(world.judge(ONLY)) == {"lr-anomaly"}


def test_a_learning_rate_that_grows_beyond_its_peak() -> None:
    world = World()
    steps = np.arange(world.ended.size)
    rates = np.minimum(3e-6 * (steps + 1), 3e-4) * (1 - 0.5 * steps / steps.size)
    rates[300:] *= 1.02 ** (steps[300:] - 300.0)
    world.scalars[RATE] = rates
    (found,) = world.judge(ONLY).observations
    assert found.finding.failure_class == "lr-anomaly"
    assert found.finding.onset is not None and abs(found.finding.onset - world.ended[300]) < 60


def test_warm_restarts_of_a_schedule_are_no_anomaly_and_flips_are() -> None:
    world = World()
    steps = np.arange(world.ended.size)
    world.scalars[RATE] = 3e-6 + 1.5e-4 * (1 + np.cos(np.pi * (steps % 150) / 150))
    assert classes(world.judge(ONLY)) == set()
    world.scalars[RATE] = np.where((steps > 300) & (steps % 2 == 0), 2.4e-3, 3e-4)
    assert classes(world.judge(ONLY)) == {"lr-anomaly"}


def test_a_start_that_was_slow_is_no_fall() -> None:
    world = World()
    world.scalar(TGS, 0.6, 0, 480, factor=True)
    assert world.scene().slowdown is None
    world.scalar(TGS, 0.6, 3000, factor=True)
    slow = world.scene().slowdown
    assert slow is not None and abs(slow.start - T0 - 3000) < 60


@pytest.mark.parametrize(("again", "seen"), [(1.0, False), (2.0, True)])
def test_one_restart_goes_back_to_the_peak_and_no_further(again: float, seen: bool) -> None:
    world = World()
    steps = np.arange(world.ended.size)
    rates = 3e-6 + 1.5e-4 * (1 + np.cos(np.pi * (steps % 300) / 300))
    world.scalars[RATE] = np.where(steps >= 300, again, 1.0) * rates
    assert classes(world.judge(ONLY)) == ({"lr-anomaly"} if seen else set())


def test_of_two_losses_each_is_judged_by_itself() -> None:
    """Another loss of the job, on another scale, hides nothing of the one that counts."""
    world = World()
    loss = np.full(world.ended.size, 2.0) + world.rng.normal(0, 0.01, world.ended.size)
    loss[world.ended > T0 + 3000] = 6.0
    world.scalars |= {"tb_learning_loss": loss, "tb_loss": 8 * loss}
    assert "loss-divergence" in classes(world.judge(ONLY))


def test_gradients_by_the_name_that_another_framework_gives_them() -> None:
    world = World()
    world.scalars.pop(RAW)
    world.scalars["tb_grad_norm"] = world.scalars.pop("tb_learning_grad_norm")
    world.scalar("tb_grad_norm", 40.0, 3000, factor=True)
    (found,) = world.judge(ONLY).observations
    assert found.finding.evidence[0].text.startswith("gradient norm rises")


def test_a_schedule_goes_on_where_steps_have_no_samples() -> None:
    world = World()
    count = world.ended.size
    world.scalars[RATE] = np.geomspace(1e-4, 1e-6, count)
    world.lose_steps(count // 3, 2 * count // 3)
    assert classes(world.judge(ONLY)) == set()


def test_the_end_of_the_warm_up_is_no_anomaly() -> None:
    world = World()
    count = world.ended.size
    world.scalars[RATE] = np.minimum(3e-7 * (np.arange(count) + 1), 3e-5)
    assert classes(world.judge(ONLY)) == set()


def test_a_learning_rate_beside_its_configuration() -> None:
    world = World()
    world.tell(config={"learning_rate": "1.5e-4", "warmup_steps_fraction": "0.1"}, total_steps=5000)
    assert classes(world.judge(ONLY)) == set()
    world.scalars[RATE] = np.full(world.ended.size, 1.5e-4)
    assert classes(world.judge(ONLY)) == {"lr-anomaly"}


@pytest.mark.parametrize(("share", "seen"), [(0.92, False), (0.85, True)])
def test_throughput(share: float, seen: bool) -> None:
    world = World()
    world.scalar(TGS, share, 3000, factor=True)
    outcome = world.judge(ONLY)
    assert classes(outcome) == ({"tgs-degradation"} if seen else set())
    assert all(is_symptom(one) for one in outcome.observations)


def test_throughput_that_recovered() -> None:
    world = World()
    world.scalar(TGS, 0.7, 3000, 3600, factor=True)
    (found,) = world.judge(ONLY).observations
    assert found.recovered
    assert found.finding.onset == T0 + 3000


@pytest.mark.parametrize(("shortest_s", "seen"), [(30.0, True), (90.0, False)])
def test_what_passes_in_moments_is_no_slowdown(
    monkeypatch: pytest.MonkeyPatch, shortest_s: float, seen: bool
) -> None:
    monkeypatch.setattr(slowdowns, "_SHORTEST_S", shortest_s)
    world = World()
    world.scalar(TGS, 0.7, 3000, 3055, factor=True)
    assert (classes(world.judge(ONLY)) == {"tgs-degradation"}) is seen


def test_slow_steps_at_saves_are_normal() -> None:
    world = World()
    for start in (1500, 2500, 3500):
        world.save(start - 15, start + 5)
        world.scalar(SECONDS, 30.0, start, start)
        world.scalar(TGS, 700.0, start, start)
    outcome = world.judge(ONLY)
    assert classes(outcome) == set()
    rows = holds(outcome, ONLY)
    assert rows["save-steps"] is True
    assert rows["slow-steps"] is False


def test_steps_that_get_longer_bit_by_bit() -> None:
    world = World()
    count = world.ended.size
    world.scalars[SECONDS] = world.scalars[SECONDS] * np.linspace(1.0, 1.15, count)
    assert holds(world.judge(ONLY), ONLY)["gradual"] is True


def test_fills_of_the_bridge_are_no_steps() -> None:
    world = World()
    world.stop(3000)
    assert world.scene().training.last == (270, T0 + 3000)


def test_without_samples_it_is_undecided() -> None:
    world = World()
    world.without(*[one for one in world.metrics if one.startswith("tb_")])
    (report,) = world.judge(ONLY).reports
    assert report.verdict.startswith("Undecided")
    assert holds(world.judge(ONLY), ONLY)["training"] is None


# ---- the checklist


def test_storage_that_stalls_outside_saves() -> None:
    world = World()
    world.set("storage", 60.0, 3000, 3600, ["n2"], "hw_io_pressure_full_pct")
    world.set("tasks", 20.0, 3000, 3600, ["n2"], "hw_procs_blocked")
    (found,) = world.judge(ONLY).observations
    assert (found.finding.failure_class, found.finding.host) == ("storage-stall", "n2")
    assert found.recovered


@pytest.mark.parametrize(("waiting", "named"), [(["n2"], {"n2"}), ([], set())])
def test_one_host_that_waits_for_storage_through_a_hang_at_a_save(
    waiting: list[str], named: set[str]
) -> None:
    """The time in which no step ends is a save's, so pressure is what tells them apart."""
    world = World()
    world.hang(4000.0)
    step = int(world.scalars["tb_step"][-1])
    world.tell(checkpoint_period=step + 1, longest_save_s=200.0)
    world.save(4000.0, LENGTH_S)
    for host in waiting:
        world.set("storage", 90.0, 4005, hosts=[host], metric="hw_io_pressure_full_pct")
    found = [o.finding for o in world.judge().observations]
    assert {one.host for one in found if one.failure_class == "storage-stall"} == named
    assert bool(named) is ("rccl-hang" in {one.failure_class for one in found})
    for one in found:
        assert one.onset is not None
        assert one.onset - T0 == pytest.approx(4000.0, abs=15)


@pytest.mark.parametrize("slower", [True, False])
def test_storage_that_stalls_again_and_again_for_a_moment(slower: bool) -> None:
    """Each time too short to count, but each time a step waits for it."""
    world = World()
    for start in (2000.0, 2155.0, 2290.0, 2500.0, 2640.0):
        world.set("storage", 75.0, start, start + 45, ["n2"], "hw_io_pressure_full_pct")
        if slower:
            world.ended[world.ended > T0 + start] += 35.0
    found = [o.finding for o in world.judge(ONLY).observations]
    stalled = [one for one in found if one.failure_class == "storage-stall"]
    assert [one.host for one in stalled] == (["n2"] if slower else [])
    if slower:
        assert (stalled[0].onset or 0) - T0 == pytest.approx(2000.0, abs=15)


@pytest.mark.parametrize("used", [99.05, 99.5])
def test_a_disk_that_is_nearly_full_is_not_told(used: float) -> None:
    world = World()
    world.put("disk", np.where(world.times > T0 + 3000, used, 98.95), ray=True, host="n1")
    assert classes(world.judge(ONLY)) == set()


@pytest.mark.parametrize(("full", "seen"), [(100.0, True), (95.0, False)])
def test_a_disk_that_runs_full_dates_from_where_it_began_to_fill(full: float, seen: bool) -> None:
    world = World()
    for host in HOSTS:
        used = np.full(world.times.size, 60.0)
        if host == "n3":
            filled = 60.0 + (full - 60.0) * (world.times - T0 - 3000) / 1200
            used = np.clip(filled, 60.0, full)
        world.put("disk", used, ray=True, host=host)
    found = [one.finding for one in world.judge(ONLY).observations]
    assert [(one.failure_class, one.host) for one in found] == [("disk-full", "n3")] * seen
    for finding in found:
        assert finding.onset is not None and abs(finding.onset - T0 - 3000) < 60


def test_a_disk_that_was_full_all_along_is_not_told() -> None:
    world = World()
    world.put("disk", np.full(world.times.size, 100.0), ray=True, host="n1")
    assert classes(world.judge(ONLY)) == set()


def test_a_disk_that_was_always_slow_explains_no_hang() -> None:
    world = World()
    world.set("storage", 90.0, 0, hosts=["n2"], metric="hw_io_pressure_full_pct")
    world.hang(4000.0)
    found = [o.finding for o in world.judge().observations]
    (disk,) = [one for one in found if one.failure_class == "storage-stall"]
    assert disk.severity is Severity.INFO


@pytest.mark.parametrize("start", [100, 3000], ids=["warm-up", "save"])
def test_storage_that_is_busy_for_good_reason(start: int) -> None:
    world = World()
    if start > 1000:
        world.save(start - 10, start + 220)
    world.set("storage", 60.0, start, start + 200, ["n2"], "hw_io_pressure_full_pct")
    assert classes(world.judge(ONLY)) == set()


@pytest.mark.parametrize("slower", [True, False])
def test_more_running_tasks(slower: bool) -> None:
    world = World()
    world.set("tasks", 120.0, 3000, 4000, ["n2"], "hw_procs_running")
    if slower:
        world.scalar(TGS, 0.8, 3000, 4000, factor=True)
    outcome = world.judge(ONLY)
    assert "cpu-contention" in classes(outcome)
    assert ("cpu-contention" in classes(outcome, severe=True)) is slower


def test_somebody_elses_processes() -> None:
    world = World()
    world.set("driver", 10.0, 3000, 4000, ["n2"], "hw_gpu_user_processes")
    (found,) = world.judge(ONLY).observations
    assert (found.finding.failure_class, found.finding.host) == ("noisy-neighbour", "n2")


def test_one_host_that_slows_the_others() -> None:
    world = World()
    world.scalar(TGS, 0.7, 3000, factor=True)
    for stat in ("min", "avg", "max"):
        world.set("gpu-power", 800.0, 3000, hosts=HOSTS[:3], metric=stat)
        world.set("gpu-power", 500.0, 3000, hosts=["n4"], metric=stat)
    outcome = world.judge(ONLY)
    found = next(o for o in outcome.observations if o.finding.failure_class == "straggler")
    assert found.finding.host == "n4"


def test_the_host_whose_gpus_do_less_while_the_others_spin_is_late() -> None:
    world = World()
    world.scalar("tb_perf_per_device_tokens_per_sec", 0.85, 2000, factor=True)
    world.set("gpu-power", 820.0, 2000)
    world.set("gpu-utilisation", 85.0, 2000, hosts=["n3"], metric="avg")
    outcome = world.judge(ONLY)
    (late,) = [one for one in outcome.observations if one.finding.failure_class == "straggler"]
    assert (late.finding.host, late.finding.confidence.value) == ("n3", "likely")


@pytest.mark.parametrize(
    ("watts", "clock", "is_late"),
    [(900.0, 2100.0, True), (800.0, 2100.0, False), (900.0, 1700.0, False)],
)
def test_the_host_that_keeps_its_power_while_the_others_wait_is_late(
    watts: float, clock: float, is_late: bool
) -> None:
    """Not where the others were throttled."""
    world = World()
    world.scalar(TGS, 0.7, 3000, factor=True)
    for stat in ("min", "avg", "max"):
        world.set("gpu-power", 900.0, metric=stat)
        world.set("gpu-power", 700.0, 3000, hosts=HOSTS[:3], metric=stat)
        world.set("gpu-power", watts, 3000, hosts=["n4"], metric=stat)
        world.set("gpu-clock", 2100.0, metric=stat)
        world.set("gpu-clock", clock, 3000, hosts=HOSTS[:3], metric=stat)
    found = [seen.finding for seen in world.judge(ONLY).observations]
    late = [seen.host for seen in found if seen.failure_class == "straggler"]
    assert late == (["n4"] if is_late else [])


@pytest.mark.parametrize("lasts_s", [35, 90])
def test_a_host_that_is_late_again_and_again(lasts_s: int) -> None:
    """Its GPUs starve for a while every four minutes, and all steps are slow meanwhile."""
    world = World()
    for start in range(2000, 5000, 240):
        world.scalar(TGS, 0.7, start, start + lasts_s, factor=True)
        world.set("gpu-utilisation", 70.0, start, start + lasts_s, hosts=["n2"], metric="avg")
    outcome = world.judge(ONLY)
    (late,) = [one for one in outcome.observations if one.finding.failure_class == "straggler"]
    assert late.finding.host == "n2"


def test_the_host_whose_gpus_wait_more_than_before_is_not_late() -> None:
    world = World()
    world.set("gpu-utilisation", 88.0, hosts=["n3"], metric="avg")
    world.scalar(TGS, 0.8, 3000, factor=True)
    world.set("gpu-utilisation", 99.0, 3000, hosts=["n3"], metric="avg")
    assert "straggler" not in classes(world.judge(ONLY))


def test_a_host_with_a_slow_clock_makes_no_straggler_of_another() -> None:
    """What the others draw while they wait differs, and says nothing beside a clock that fell."""
    world = World()
    world.scalar("tb_perf_per_device_tokens_per_sec", 0.7, 2000, factor=True)
    world.set("gpu-power", 650.0, 2000)
    world.set("gpu-power", 780.0, 2000, hosts=["n4"])
    world.set("gpu-clock", 1900.0, 2000, hosts=["n2"], metric="min")
    assert "straggler" not in classes(world.judge(ONLY))
    (slow,) = world.judge("gpu-health").observations
    assert (slow.finding.failure_class, slow.finding.host) == ("gpu-clock-drop", "n2")


def test_all_of_the_checklist_is_looked_at_also_after_a_hit() -> None:
    world = World()
    world.scalar(TGS, 0.7, 3000, factor=True)
    world.set("storage", 60.0, 3000, LENGTH_S, ["n2"], "hw_io_pressure_full_pct")
    rows = holds(world.judge(ONLY), ONLY)
    groups = {row for row in rows if row.startswith("checklist-")}
    assert groups == {
        f"checklist-{one}"
        for one in ("cpu", "tcp", "rdma", "storage", "memory", "thermal", "hardware", "training")
    }
    assert rows["checklist-storage"] is True


@pytest.mark.parametrize("lasts_s", [0.0, 1800.0])
def test_throughput_that_drifts_down_dates_from_where_it_left_its_level(lasts_s: float) -> None:
    """A drift of half an hour crosses a limit long after it began."""
    world, began = World(), T0 + 2500.0
    share = np.clip((world.ended - began) / max(lasts_s, 1.0), 0.0, 1.0)
    world.scalars[TGS] = world.scalars[TGS] * (1 - 0.3 * share)
    (found,) = [
        o.finding
        for o in world.judge(ONLY).observations
        if o.finding.failure_class == "tgs-degradation"
    ]
    assert found.onset is not None
    assert -60 <= found.onset - began <= 180


@pytest.mark.parametrize(
    ("lengths", "seen"),
    [
        ([50, 55, 50, 300, 280], True),
        ([50, 55, 50, 300, 50], False),
        ([50, 55, 50, 300], False),
        ([20, 22, 21, 70, 65], False),
        ([300, 50, 55, 50], False),
    ],
)
@pytest.mark.parametrize("waits", [True, False])
def test_saves_that_became_slow(lengths: list[int], seen: bool, waits: bool) -> None:
    world = World()
    for number, length in enumerate(lengths):
        start = 600 + 600 * number
        world.save(start, start + length)
        world.save(start + 1, start + length + 10)  # as the log tells of it
        if waits and length > 100:
            world.set("storage", 80.0, start, start + length, ["n2"], "hw_io_pressure_full_pct")
    found = world.judge(ONLY).observations
    expected = "storage-stall" if waits else "checkpoint-effect"
    slow = [one.finding for one in found if one.row == "slow-saves"]
    assert [finding.failure_class for finding in slow] == ([expected] if seen else [])
    if seen:
        assert slow[0].onset == T0 + 2400


@pytest.mark.parametrize(
    ("lengths", "percent", "is_stalled"),
    [
        ([50, 55, 500, 50], 80.0, True),
        ([50, 55, 500, 50], 30.0, False),
        ([50, 55, 200, 50], 80.0, False),
        ([50, 0, 500], 80.0, False),  # one to compare it with is too few
        ([0, 0, 500], 80.0, False),  # none
    ],
)
def test_one_save_that_stalled(lengths: list[int], percent: float, is_stalled: bool) -> None:
    world, longest = World(), max(lengths)
    for number, length in enumerate(lengths):
        if not length:
            continue
        start = 600 + 700 * number
        world.save(start, start + length)
        if length == longest:
            world.set("storage", percent, start, start + length, ["n2"], "hw_io_pressure_full_pct")
    found = [seen for seen in world.judge(ONLY).observations if seen.row == "storage-stall"]
    told = [(seen.finding.host, seen.finding.onset, seen.recovered) for seen in found]
    assert told == ([("n2", T0 + 2000, True)] if is_stalled else [])
    for seen in found:
        assert "a save took 500 s, 50 s usually" in seen.finding.evidence[0].text
        assert "80 %" in seen.finding.evidence[0].text
        assert "while a checkpoint was saved" in seen.finding.explanation
