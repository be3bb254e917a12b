"""GPUs and nodes: thresholds on their edge, errors old and new, drivers, and who fell silent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raydiag.model import Confidence, Severity
from raydiag.playbooks import run
from raydiag.timeline.answers import Answers
from tests.playbooks.world import (
    ACTIVE_WATTS,
    GB,
    HOSTS,
    LENGTH_S,
    T0,
    World,
    classes,
    holds,
    is_symptom,
)

GPU, NODE = "gpu-health", "node-failure"


def test_well() -> None:
    outcome = World().judge(GPU, NODE)
    assert classes(outcome) == set()
    assert not any(holds(outcome, GPU).values())
    assert not any(holds(outcome, NODE).values())


@pytest.mark.parametrize(
    ("degrees", "seen", "severity"),
    [
        (90.0, False, None),
        (90.1, True, None),
        (100.0, True, None),
        (100.1, True, None),
    ],
)
def test_temperature(degrees: float, seen: bool, severity: Severity | None) -> None:
    world = World()
    world.set("gpu-temperature", degrees, 2010, 2600, ["n2"], "max")
    outcome = world.judge(GPU)
    assert classes(outcome) == ({"thermal-throttling"} if seen else set())
    if seen:
        assert outcome.observations[0].finding.severity is severity
        assert abs((outcome.observations[0].finding.onset or 0) - (T0 + 2010)) <= 15


def test_a_hot_moment_is_a_remark() -> None:
    world = World()
    world.set("gpu-temperature", 95.0, 2010, 2040, ["n2"], "max")
    assert world.judge(GPU).observations[0].finding.severity is Severity.INFO


def test_hot_and_then_slow_is_throttling() -> None:
    world = World()
    world.set("gpu-temperature", 95.0, 2010, hosts=["n2"], metric="max")
    world.set("gpu-clock", 1200.0, 2100, hosts=["n2"], metric="min")
    rows = np.full((2, world.times.size), 95.0)
    for gpu, row in zip(("0", "6"), rows, strict=True):
        world.put("gpu-temperature-fine", row + float(gpu), host="n2", gpu=gpu)
    outcome = world.judge(GPU)
    hot = next(o for o in outcome.observations if o.finding.failure_class == "thermal-throttling")
    assert hot.finding.confidence is Confidence.CONFIRMED
    assert (hot.finding.host, hot.finding.gpu) == ("n2", 6)
    slow = next(o for o in outcome.observations if o.finding.failure_class == "gpu-clock-drop")
    assert is_symptom(slow)
    assert not is_symptom(hot)


def test_a_gpu_that_is_slow_from_the_start_beside_its_neighbours() -> None:
    world = World()
    world.set("gpu-clock", 1200.0, hosts=["n2"], metric="min")
    slow = next(o for o in world.judge(GPU).observations)
    assert (slow.finding.failure_class, slow.finding.host) == ("gpu-clock-drop", "n2")


def test_no_gpu_is_named_where_all_of_a_host_are_slow() -> None:
    world = World()
    for gpu in range(8):
        world.put("gpu-clock-fine", world.times * 0 + 1200.0 - gpu, host="n2", gpu=str(gpu))
    world.set("gpu-clock", 1200.0, 2100, hosts=["n2"])
    (slow,) = world.judge(GPU).observations
    assert (slow.finding.host, slow.finding.gpu) == ("n2", None)


def test_a_pause_of_the_job_is_no_slow_clock() -> None:
    world = World()
    world.set("gpu-clock", 132.0, 2100, 2400)
    assert "gpu-clock-drop" not in classes(world.judge(GPU))


def test_a_clock_that_all_lower_together_is_no_ones_fault() -> None:
    world = World()
    world.set("gpu-clock", 1500.0, 2010, 4000)
    assert classes(world.judge(GPU)) == set()


def test_clocks_in_a_hang_are_not_judged() -> None:
    world = World()
    world.hang(2010)
    world.set("gpu-clock", 140.0, 2010, hosts=["n1"])
    assert "gpu-clock-drop" not in classes(world.judge(GPU))


@pytest.mark.parametrize(("spread", "seen"), [(50.0, False), (51.0, True)])
def test_power_between_gpus_of_one_node(spread: float, seen: bool) -> None:
    world = World()
    world.set("gpu-power", ACTIVE_WATTS - spread / 2, 310, hosts=["n3"], metric="min")
    world.set("gpu-power", ACTIVE_WATTS + spread / 2, 310, hosts=["n3"], metric="max")
    for gpu, away in enumerate((-spread / 2, 0.0, 0.0, spread / 2)):
        row = np.full(world.times.size, ACTIVE_WATTS + away)
        world.put("gpu-power-fine", row, host="n3", gpu=str(gpu))
    outcome = world.judge(GPU)
    assert classes(outcome) == ({"gpu-power-outlier"} if seen else set())
    assert all(is_symptom(one) for one in outcome.observations)


@pytest.mark.parametrize(("elsewhere", "is_odd"), [(20.0, True), (52.0, False)])
def test_gpus_of_an_uneven_fleet_are_a_remark(elsewhere: float, is_odd: bool) -> None:
    world = World()
    for host in HOSTS:
        spread = 60.0 if host == "n3" else elsewhere
        world.set("gpu-power", ACTIVE_WATTS - spread / 2, 310, hosts=[host], metric="min")
        world.set("gpu-power", ACTIVE_WATTS + spread / 2, 310, hosts=[host], metric="max")
        for gpu, away in enumerate((-spread / 2, 0.0, 0.0, spread / 2)):
            row = np.full(world.times.size, ACTIVE_WATTS + away)
            world.put("gpu-power-fine", row, host=host, gpu=str(gpu))
    outcome = world.judge(GPU)
    assert classes(outcome) == {"gpu-power-outlier"}
    assert classes(outcome, severe=True) == ({"gpu-power-outlier"} if is_odd else set())


def test_a_dip_at_a_save_is_no_outlier() -> None:
    world = World()
    world.set("gpu-power", 300.0, 2010, 2400, ["n3"], "min")
    world.save(1990, 2410)
    assert classes(world.judge(GPU)) == set()


def test_noise_of_many_gpus_is_no_outlier() -> None:
    world = World()
    world.set("gpu-power", ACTIVE_WATTS - 40, 310, hosts=["n3"], metric="min")
    world.set("gpu-power", ACTIVE_WATTS + 40, 310, hosts=["n3"], metric="max")
    for gpu in range(8):
        row = world.rng.normal(ACTIVE_WATTS, 30.0, world.times.size)
        world.put("gpu-power-fine", row, host="n3", gpu=str(gpu))
    assert classes(world.judge(GPU)) == set()


def test_power_that_scatters_more_than_gpus_differ_is_no_outlier() -> None:
    """Some five minutes of an hour lie 50 W apart by chance when each sample scatters by 60 W."""
    world = World()
    world.set("gpu-power", ACTIVE_WATTS - 90, 310, hosts=["n3"], metric="min")
    world.set("gpu-power", ACTIVE_WATTS + 90, 310, hosts=["n3"], metric="max")
    for gpu in range(8):
        row = world.rng.normal(ACTIVE_WATTS, 60.0, world.times.size)
        world.put("gpu-power-fine", row, host="n3", gpu=str(gpu))
    assert classes(world.judge(GPU)) == set()


@pytest.mark.parametrize(("lasted_s", "seen"), [(420.0, False), (900.0, True)])
def test_an_outlier_stays_one_for_longer_than_one_average(lasted_s: float, seen: bool) -> None:
    """Power that drifts takes a GPU away from the others for some minutes, and back."""
    world = World()
    world.set("gpu-power", ACTIVE_WATTS - 65, 2000, 2000 + lasted_s, ["n3"], "min")
    away = (world.times >= T0 + 2000) & (world.times <= T0 + 2000 + lasted_s)
    for gpu in range(8):
        row = world.rng.normal(ACTIVE_WATTS, 4.0, world.times.size)
        if gpu == 5:
            row[away] -= 60.0
        world.put("gpu-power-fine", row, host="n3", gpu=str(gpu))
    assert classes(world.judge(GPU)) == ({"gpu-power-outlier"} if seen else set())


@pytest.mark.parametrize(("more", "seen"), [(14.0, False), (45.0, True)])
def test_gpus_that_are_never_alike_and_drift_are_no_outlier(more: float, seen: bool) -> None:
    """40 W between two of them all along, and for a quarter of an hour somewhat more."""
    world = World()
    world.set("gpu-power", ACTIVE_WATTS - 80, 310, hosts=["n3"], metric="min")
    away = (world.times >= T0 + 3000) & (world.times <= T0 + 3900)
    for gpu, level in enumerate((-28.0, 0.0, 0.0, 12.0, 0.0, 0.0, 0.0, 0.0)):
        row = world.rng.normal(ACTIVE_WATTS + level, 4.0, world.times.size)
        row[away] -= more if gpu == 0 else 0.0
        world.put("gpu-power-fine", row, host="n3", gpu=str(gpu))
    assert classes(world.judge(GPU)) == ({"gpu-power-outlier"} if seen else set())


def test_power_that_wanders_is_no_outlier() -> None:
    """Slow noise leaves averages further apart than independent samples would."""
    world = World()
    world.set("gpu-power", ACTIVE_WATTS - 60, 310, hosts=["n3"], metric="min")
    world.set("gpu-power", ACTIVE_WATTS + 60, 310, hosts=["n3"], metric="max")
    for gpu in range(8):
        phase = 2 * np.pi * (gpu / 8 + world.times / 2400.0)
        noise = world.rng.normal(0.0, 1.0, world.times.size)
        world.put(
            "gpu-power-fine", ACTIVE_WATTS + 40 * np.sin(phase) + noise, host="n3", gpu=f"{gpu}"
        )
    assert classes(world.judge(GPU)) == set()


def test_extremes_of_single_moments_accuse_nobody() -> None:
    """Of a host that was not asked for GPU by GPU nothing is known but an upper bound."""
    world = World()
    world.set("gpu-power", ACTIVE_WATTS - 40, 310, hosts=["n3"], metric="min")
    world.set("gpu-power", ACTIVE_WATTS + 40, 310, hosts=["n3"], metric="max")
    outcome = world.judge(GPU)
    assert classes(outcome) == set()
    assert [row.holds for row in outcome.reports[0].rows if row.hosts == ("n3",)] == [None]


@pytest.mark.parametrize(("share", "seen"), [(0.95, False), (0.951, True)])
def test_gpu_memory_is_a_remark(share: float, seen: bool) -> None:
    world = World()
    world.set("gpu-vram", share * 309 * GB, hosts=["n1"])
    outcome = world.judge(GPU)
    assert classes(outcome) == ({"vram-pressure"} if seen else set())
    assert classes(outcome, severe=True) == set()


@pytest.mark.parametrize(("percent", "seen"), [(80.0, False), (79.9, True)])
def test_utilisation(percent: float, seen: bool) -> None:
    world = World()
    world.set("gpu-utilisation", percent, hosts=["n1"], metric="avg")
    outcome = world.judge(GPU)
    assert classes(outcome) == ({"gpu-underutilised"} if seen else set())
    assert all(is_symptom(one) for one in outcome.observations)


def test_the_summary_has_its_lines_in_order() -> None:
    world = World()
    world.set("gpu-temperature", 104.0, 2010, 2600, ["n2"], "max")
    (report,) = world.judge(GPU).reports
    heads = [line.split(":")[0].split(" (")[0] for line in report.block]
    assert heads == [
        "GPU Health Summary",
        "Temperature",
        "Power",
        "Core clock",
        "VRAM",
        "Utilization",
        "RAS errors",
        "PCIe errors",
        "Anomalous GPUs",
    ]
    assert report.block[0] == "GPU Health Summary (4 nodes, 32 GPUs)"
    assert report.block[-1] == "Anomalous GPUs: n2"


def test_the_summary_says_what_is_absent() -> None:
    world = World()
    world.without("hw_gpu_temperature_celsius", "hw_gpu_clock_mhz")
    (report,) = world.judge(GPU).reports
    assert "metric absent" in report.block[1]
    assert holds(world.judge(GPU), GPU)["temperature"] is None


# ---- counters


@pytest.mark.parametrize(
    ("metric", "failure"),
    [
        ("hw_gpu_ras_umc_ue_total", "gpu-memory-error"),
        ("hw_gpu_ras_xgmi_ue_total", "xgmi-error"),
        ("hw_gpu_ras_gfx_ue_total", "gpu-ras-error"),
        ("hw_gpu_ras_mmhub_ue_total", "gpu-ras-error"),
        ("hw_gpu_ras_sdma_ue_total", "gpu-ras-error"),
        ("hw_gpu_pcie_fatal_total", "pcie-fatal"),
    ],
)
@pytest.mark.parametrize("start", [0, 2010], ids=["old", "new"])
def test_uncorrectable_errors(metric: str, failure: str, start: float) -> None:
    world = World()
    world.only("gpu-errors", 2.0, start, LENGTH_S, host="n3", gpu="5", __name__=metric)
    (found,) = world.judge(NODE).observations
    assert (found.finding.failure_class, found.finding.gpu) == (failure, 5)
    assert found.before_job is (start == 0)
    assert found.finding.severity is (Severity.CRITICAL if start else Severity.WARNING)
    assert found.finding.onset == (T0 + start if start else None)


def test_errors_that_were_there_and_grew() -> None:
    world = World()
    world.only(
        "gpu-errors", 2.0, 0, LENGTH_S, host="n3", gpu="5", __name__="hw_gpu_ras_umc_ue_total"
    )
    world.set("gpu-errors", 3.0, 2010, hosts=["n3"])
    (found,) = world.judge(NODE).observations
    assert found.finding.onset == T0 + 2010
    assert found.finding.severity is Severity.CRITICAL


def test_a_counter_that_began_again_did_not_grow() -> None:
    world = World()
    world.only(
        "gpu-errors", 9.0, 0, LENGTH_S, host="n3", gpu="5", __name__="hw_gpu_ras_umc_ue_total"
    )
    world.set("gpu-errors", 2.0, 2010, hosts=["n3"])
    assert world.judge(NODE).observations[0].before_job


def test_old_nonfatal_link_errors_say_nothing() -> None:
    world = World()
    world.only(
        "gpu-errors", 9e7, 0, LENGTH_S, host="n3", gpu="5", __name__="hw_gpu_pcie_nonfatal_total"
    )
    assert classes(world.judge(NODE)) == set()


@pytest.mark.parametrize(
    ("metric", "failure"),
    [
        ("hw_gpu_ras_umc_ce_total", "gpu-memory-degrading"),
        ("hw_gpu_ras_xgmi_ce_total", "xgmi-error"),
        ("hw_gpu_pcie_correctable_total", "pcie-degraded"),
    ],
)
@pytest.mark.parametrize(("each", "severity"), [(0.1, Severity.INFO), (20.0, Severity.WARNING)])
def test_corrected_errors(metric: str, failure: str, each: float, severity: Severity) -> None:
    world = World()
    world.only("gpu-corrected", each, 2010, 2600, host="n3", gpu="5", metric=metric)
    (found,) = world.judge(NODE).observations
    assert found.finding.failure_class == failure
    assert found.finding.severity is severity


def test_a_few_corrected_errors_beside_a_storm_elsewhere_are_a_remark() -> None:
    world = World()
    metric = "hw_gpu_ras_umc_ce_total"
    world.only("gpu-corrected", 4000.0, 2010, 2600, host="n3", gpu="5", metric=metric)
    world.only("gpu-corrected", 1.0, 2010, 2600, host="n1", gpu="2", metric=metric)
    found = {one.finding.host: one.finding.severity for one in world.judge(NODE).observations}
    assert found == {"n3": Severity.WARNING, "n1": Severity.INFO}


def test_hosts_of_other_jobs_in_the_same_prometheus_are_not_judged() -> None:
    world = World((*HOSTS, "stranger"))
    world.set("gpu-temperature", 104.0, hosts=["stranger"])
    context = world.context
    discovery = replace(context.discovery, foreign=("stranger",), expected=HOSTS)
    answers = Answers(list(world.answers()), discovery)
    outcome = run(replace(context, discovery=discovery, hosts=HOSTS), answers, (GPU,))
    assert classes(outcome) == set()
    bridge = replace(discovery, foreign=(HOSTS[0],), expected=HOSTS[1:])
    assert Answers(list(world.answers()), bridge).series("training")


def test_without_the_counters_nothing_is_ruled_out() -> None:
    world = World()
    world.metrics = {one for one in world.metrics if "ras" not in one and "pcie" not in one}
    world.rows["gpu-errors"], world.rows["gpu-corrected"] = {}, {}
    outcome = world.judge(NODE)
    assert holds(outcome, NODE)["uncorrected"] is None
    assert "gpu-memory-error" not in {one.failure_class for one in outcome.ruled_out}


# ---- driver, GPUs and processes that go


def test_a_driver_fault_has_two_signs() -> None:
    world = World()
    world.set("driver", 4.0, 2010, hosts=["n2"], metric="hw_dmesg_gpu_errors_total")
    for start in range(2010, 3000, 120):
        world.set("driver", 12.1, start, start + 60, ["n2"], "hw_scrape_duration_seconds")
    (found,) = world.judge(NODE).observations
    assert found.finding.failure_class == "gpu-driver-fault"
    assert found.finding.confidence is Confidence.CONFIRMED
    assert found.finding.onset == T0 + 2010


def test_one_sign_is_possible_only() -> None:
    world = World()
    world.set("driver", 4.0, 2010, hosts=["n2"], metric="hw_dmesg_gpu_errors_total")
    assert world.judge(NODE).observations[0].finding.confidence is Confidence.POSSIBLE


def test_lines_that_the_kernel_forgot_are_no_new_ones() -> None:
    world = World()
    for host in HOSTS:
        world.set("driver", 4.0, hosts=[host], metric="hw_dmesg_gpu_errors_total")
        world.set("driver", 1.0, 2010, hosts=[host], metric="hw_dmesg_gpu_errors_total")
    assert classes(world.judge(NODE)) == set()


def test_slow_cycles_alone_are_the_exporters_matter() -> None:
    world = World()
    for start in range(2010, 3000, 120):
        world.set("driver", 12.1, start, start + 60, ["n2"], "hw_scrape_duration_seconds")
    assert classes(world.judge(NODE)) == set()


def test_a_gpu_that_fell_silent() -> None:
    world = World()
    world.set("gpu-count", 7.0, 3000, hosts=["n1"])
    (found,) = world.judge(NODE).observations
    assert (found.finding.failure_class, found.finding.host) == ("gpu-missing", "n1")
    # A minute after its last sample a GPU is still counted.
    assert (found.finding.onset, found.finding.gpu) == (T0 + 3000 - 60, None)
    for gpu in "0123467":
        world.put("gpus-left", np.ones(world.times.size), host="n1", gpu=gpu)
    (found,) = world.judge(NODE).observations
    assert (found.finding.host, found.finding.gpu) == ("n1", 5)


def test_processes_that_end_on_one_host_first() -> None:
    world = World()
    world.set("driver", 0.0, 3000, hosts=["n1"], metric="hw_gpu_user_processes")
    assert holds(world.judge(NODE), NODE)["silent-exit"] is True


def test_processes_that_end_everywhere_are_the_end_of_the_job() -> None:
    world = World()
    world.set("driver", 0.0, 3000, metric="hw_gpu_user_processes")
    assert holds(world.judge(NODE), NODE)["silent-exit"] is False


@pytest.mark.parametrize("slower", [True, False])
def test_a_gpu_that_begins_to_draw_less_is_possible_also_unfelt(slower: bool) -> None:
    world = World()
    world.set("gpu-power", ACTIVE_WATTS - 100, 2500, hosts=["n3"], metric="min")
    for gpu in range(4):
        row = np.full(world.times.size, ACTIVE_WATTS) + world.rng.normal(0, 3.0, world.times.size)
        row[world.times > T0 + 2500] -= 100.0 * (gpu == 2)
        world.put("gpu-power-fine", row, host="n3", gpu=str(gpu))
    if slower:
        world.scalar("tb_perf_per_device_tokens_per_sec", 0.7, 2500, factor=True)
    (found,) = [o.finding for o in world.judge(GPU).observations]
    assert (found.failure_class, found.host, found.gpu) == ("gpu-power-outlier", "n3", 2)
    assert (found.severity, found.confidence) == (None, Confidence.POSSIBLE)


def test_a_slow_clock_is_seen_also_where_no_step_is_dated() -> None:
    world = World()
    world.without(*[one for one in world.metrics if one.startswith("tb_")])
    world.tell(last_step=400)
    world.set("gpu-clock", 1300.0, 2500, hosts=["n2"])
    (found,) = [o.finding for o in world.judge(GPU).observations]
    assert (found.failure_class, found.host) == ("gpu-clock-drop", "n2")


@pytest.mark.parametrize(
    ("in_log", "confidence"), [(0.0, Confidence.POSSIBLE), (12.0, Confidence.CONFIRMED)]
)
def test_an_exporter_that_is_slow_is_one_witness_of_a_driver_fault(
    in_log: float, confidence: Confidence
) -> None:
    """Cycles that time out and gaps in what they measure are the same thing, seen twice."""
    world = World()
    for start in range(2000, 5000, 300):
        world.set("driver", 12.1, start, start + 100, ["n2"], "hw_scrape_duration_seconds")
        world.set("gpu-count", float("nan"), start, start + 100, ["n2"])
    world.set("driver", in_log, 2000, hosts=["n2"], metric="hw_dmesg_gpu_errors_total")
    found = [o.finding for o in world.judge(NODE).observations]
    assert [(one.failure_class, one.confidence) for one in found] == [
        ("gpu-driver-fault", confidence)
    ]


@pytest.mark.parametrize(("trains", "severity"), [(True, Severity.INFO), (False, None)])
def test_a_gpu_that_only_one_host_lacks_from_the_start(
    trains: bool, severity: Severity | None
) -> None:
    world = World(hosts=("n1", "n2", "n3", "n4"))
    world.set("gpu-count", 7.0, hosts=["n4"])
    if not trains:
        world.without("tb_step")
        world.tell(status="failed")
    found = [one.finding for one in world.judge(NODE).observations]
    missing = [finding for finding in found if finding.failure_class == "gpu-missing"]
    assert [(finding.host, finding.severity) for finding in missing] == [("n4", severity)]
