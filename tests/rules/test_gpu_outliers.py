from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from raydiag.model import Confidence, NodeReport, ProbeResult, Severity, Status
from raydiag.rules.gpu_outliers import full_gpu_memory, hot_gpus, slow_gpus
from tests.rules.gpu_records import ADDRESSES, GIB, amd_gpus, nvidia_gpus
from tests.rules.snapshots import report, snapshot

LAST = ADDRESSES[7]


def twice(first: Sequence[Any], later: Sequence[Any], probe: str = "gpu_sensors") -> NodeReport:
    result = ProbeResult(probe, Status.OK, records=first, later=later, interval_s=1.5)
    return report("a", results=[result])


@pytest.mark.parametrize(
    ("values", "failure_class"),
    [
        ({"power_w": 300.0}, "gpu-power-outlier"),
        ({"power_w": 300.0, "sclk_mhz": None}, "gpu-power-outlier"),
        ({"power_w": 300.0, "sclk_mhz": 500.0}, "gpu-clock-drop"),
    ],
)
def test_low_power_among_loaded_gpus_of_the_same_job(
    values: dict[str, Any], failure_class: str
) -> None:
    gpus = amd_gpus(**values)
    (finding,) = slow_gpus(snapshot(twice(gpus, gpus)))
    assert (finding.failure_class, finding.gpu, finding.device) == (failure_class, 7, LAST)
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.evidence[0].text == "power 300 W, median of 7 loaded GPUs here 925 W"


def test_what_one_instant_shows_is_a_remark() -> None:
    low = amd_gpus(power_w=300.0)
    (finding,) = slow_gpus(snapshot(report("a", gpu_sensors=low)))
    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)
    assert not list(slow_gpus(snapshot(twice(low, amd_gpus()))))
    averaged = amd_gpus(power_w=300.0, power_averaged=True)
    (finding,) = slow_gpus(snapshot(report("a", gpu_sensors=averaged)))
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    "gpus",
    [
        amd_gpus(),
        amd_gpus(power_w=None),
        amd_gpus(power_w=560.0),  # lower, and not by much
        amd_gpus(power_w=300.0, vram_used_bytes=GIB),  # takes no part
        amd_gpus(power_w=300.0, vram_used_bytes=None),
        amd_gpus(power_w=300.0, vram_total_bytes=192 * GIB),  # of another model
        amd_gpus(3, power_w=300.0),  # too few to compare
        amd_gpus(power_w=300.0, sclk_mhz=500.0)[4:] + amd_gpus(7, power_w=300.0)[4:],
        [],
    ],
)
def test_no_outlier_or_none_that_can_be_told(gpus: Sequence[Any]) -> None:
    assert not list(slow_gpus(snapshot(twice(gpus, gpus))))


@pytest.mark.parametrize("power_w", [250.0, 300.0, 690.0])
def test_one_that_works_among_idle_ones_is_no_fault(power_w: float) -> None:
    """All idle or waiting for each other, and one, as of another job, that is not."""
    gpus = [
        *amd_gpus(1, power_w=power_w),
        *(gpu for n in range(2, 9) for gpu in amd_gpus(n, power_w=250.0)[-1:]),
    ]
    assert not list(slow_gpus(snapshot(twice(gpus, gpus))))


def test_a_slow_node_is_not_judged_against_another_job() -> None:
    low = [gpu for n in range(1, 9) for gpu in amd_gpus(n, power_w=300.0)[-1:]]
    other = report("b", gpu_sensors=amd_gpus())
    assert not list(slow_gpus(snapshot(report("a", gpu_sensors=low), other)))


def test_an_idle_nvidia_gpu_has_one_finding() -> None:
    idle = nvidia_gpus(utilisation_percent=0.0, power_w=110.0, sm_clock_mhz=345.0)
    (finding,) = slow_gpus(snapshot(report("a", nvidia=idle)))
    assert (finding.failure_class, finding.gpu) == ("gpu-underutilised", 7)
    assert finding.severity is Severity.WARNING
    assert [piece.value for piece in finding.evidence] == [110.0, 345.0, 0.0]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ({"utilisation_percent": None, "power_w": 110.0}, ["gpu-power-outlier"]),
        ({"utilisation_percent": 3.0, "power_w": 110.0}, ["gpu-power-outlier"]),
        ({"utilisation_percent": 0.0}, []),  # full power: it does work
    ],
)
def test_utilisation_alone_says_little(values: dict[str, Any], classes: list[str]) -> None:
    seen = snapshot(report("a", nvidia=nvidia_gpus(**values)))
    assert [finding.failure_class for finding in slow_gpus(seen)] == classes


@pytest.mark.parametrize(
    "hot",
    [{"temperature_c": 95.0}, {"temperature_c": 90.5}, {"temperature_c": 89.0}],
)
def test_heat_below_the_limit_is_a_remark(hot: dict[str, Any]) -> None:
    seen = snapshot(report("a", gpu_sensors=amd_gpus(**hot)), report("b", gpu_sensors=amd_gpus()))
    (finding,) = hot_gpus(seen)
    assert (finding.failure_class, finding.severity) == ("thermal-throttling", Severity.INFO)
    assert (finding.host, finding.gpu, finding.device) == ("a", 7, LAST)
    assert finding.title


@pytest.mark.parametrize(
    "values",
    [
        {"temperature_c": 100.0},  # at its limit: another rule's
        {"temperature_c": 71.0},
        {"temperature_c": 84.0},  # warm, and others are nearly so
        {"temperature_c": None},
    ],
)
def test_other_temperatures_are_silent(values: dict[str, Any]) -> None:
    assert not list(hot_gpus(snapshot(report("a", gpu_sensors=amd_gpus(**values)))))


def test_warmth_needs_others_to_compare() -> None:
    assert not list(hot_gpus(snapshot(report("a", gpu_sensors=amd_gpus(1, temperature_c=89.0)))))


def test_full_memory_is_a_remark() -> None:
    full = report("a", gpu_sensors=amd_gpus(vram_used_bytes=286 * GIB))
    (finding,) = full_gpu_memory(snapshot(full))
    assert (finding.failure_class, finding.severity) == ("vram-pressure", Severity.INFO)
    assert (finding.gpu, finding.device) == (7, LAST)
    assert finding.evidence[0].value == pytest.approx(286 / 288)


@pytest.mark.parametrize(
    "values",
    [
        {"vram_used_bytes": 281 * GIB},  # 97.6 %: preallocated, and a little more
        {"vram_used_bytes": None},
        {"vram_total_bytes": 0},
        {"vram_total_bytes": None},
    ],
)
def test_room_or_an_unknown_is_silent(values: dict[str, Any]) -> None:
    assert not list(full_gpu_memory(snapshot(report("a", gpu_sensors=amd_gpus(**values)))))
