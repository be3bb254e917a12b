from __future__ import annotations

from typing import Any

import pytest

from raydiag.explain.diagnosis import judge_nodes
from raydiag.model import Severity
from raydiag.probes.bad_pages import BadPages
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.ras import RasCount
from raydiag.rules.gpu import bad_pages, row_remapping, thermal_throttling, uncorrectable_errors
from tests.rules.gpu_records import ADDRESSES, nvidia_gpus
from tests.rules.snapshots import NOW, report, snapshot

ADDRESS = "0000:c5:00.0"


def count(block: str = "umc", **numbers: Any) -> RasCount:
    values = {"ue": 0, "ce": 0, "deferred": 0, **numbers}
    return RasCount(3, ADDRESS, block, f"/sys/ras/{block}_err_count", **values)


def sensors(**values: Any) -> GpuSensors:
    readings = {
        "gpu": 3,
        "address": ADDRESS,
        "temperature_c": 60.0,
        "temperature_crit_c": 110.0,
        "power_w": None,
        "power_averaged": False,
        "power_cap_w": None,
        "sclk_mhz": None,
        "mclk_mhz": None,
        "vram_used_bytes": None,
        "vram_total_bytes": None,
        "unique_id": "",
    }
    return GpuSensors(**{**readings, **values})


@pytest.mark.parametrize(
    ("block", "failure_class"),
    [
        ("umc", "gpu-memory-error"),
        ("xgmi", "xgmi-error"),
        ("gfx", "gpu-ras-error"),
        ("mmhub", "gpu-ras-error"),
        ("sdma", "gpu-ras-error"),
        ("pcie_bif", "gpu-ras-error"),
    ],
)
def test_the_block_decides_the_class(block: str, failure_class: str) -> None:
    (finding,) = uncorrectable_errors(snapshot(report("a", ras=[count(block, ue=2)])))
    assert finding.failure_class == failure_class
    assert (finding.gpu, finding.device, finding.severity) == (3, ADDRESS, Severity.CRITICAL)
    assert (finding.evidence[0].value, finding.evidence[0].time) == (2.0, NOW)
    assert finding.onset is None


def test_an_old_counter_is_a_warning_while_a_job_runs() -> None:
    seen = snapshot(report("a", ras=[count(ue=2)]), job_start=NOW - 60)
    (finding,) = uncorrectable_errors(seen)
    assert finding.severity is Severity.WARNING
    assert "since the job began" in finding.explanation


@pytest.mark.parametrize("numbers", [{}, {"ce": 900}, {"deferred": 4}, {"ue": None, "ce": 1}])
def test_other_counts_decide_nothing(numbers: dict[str, Any]) -> None:
    assert not list(uncorrectable_errors(snapshot(report("a", ras=[count(**numbers)]))))


def test_heat_at_the_critical_limit() -> None:
    hot = sensors(temperature_c=110.0)
    (finding,) = thermal_throttling(snapshot(report("a", gpu_sensors=[hot])))
    assert (finding.failure_class, finding.severity) == ("thermal-throttling", Severity.WARNING)
    assert (finding.gpu, finding.device) == (3, ADDRESS)
    assert "110" in finding.evidence[0].text


@pytest.mark.parametrize(
    "values",
    [{"temperature_c": 109.9}, {"temperature_c": None}, {"temperature_crit_c": None}],
)
def test_cool_or_unknown_is_silent(values: dict[str, float | None]) -> None:
    assert not list(thermal_throttling(snapshot(report("a", gpu_sensors=[sensors(**values)]))))


@pytest.mark.parametrize(("job_start", "severity"), [(None, "critical"), (NOW - 60, "warning")])
def test_uncorrected_ecc_of_nvidia_is_judged_alike(job_start: float | None, severity: str) -> None:
    sick = report("a", nvidia=nvidia_gpus(ecc_uncorrected=2))
    (finding,) = uncorrectable_errors(snapshot(sick, job_start=job_start))
    assert (finding.failure_class, finding.severity) == ("gpu-memory-error", Severity(severity))
    assert (finding.gpu, finding.device) == (7, ADDRESSES[7])
    assert finding.evidence[0].value == 2.0


@pytest.mark.parametrize("count", [0, None])
def test_corrected_ecc_of_nvidia_decides_nothing(count: int | None) -> None:
    well = report("a", nvidia=nvidia_gpus(ecc_uncorrected=count, ecc_corrected=900))
    assert not list(uncorrectable_errors(snapshot(well)))


@pytest.mark.parametrize(
    ("reasons", "severity", "text"),
    [
        (0x40, Severity.WARNING, "thermal slowdown by the hardware"),
        (0x48, Severity.WARNING, "thermal slowdown by the hardware"),
        (0x80, Severity.WARNING, "power brake from outside"),
        (0x24, Severity.INFO, "thermal slowdown by the driver"),
    ],
)
def test_nvidia_says_why_it_slows_down(reasons: int, severity: Severity, text: str) -> None:
    slow = report("a", nvidia=nvidia_gpus(clock_reasons=reasons))
    (finding,) = thermal_throttling(snapshot(slow))
    assert (finding.failure_class, finding.severity) == ("thermal-throttling", severity)
    assert (finding.gpu, finding.device) == (7, ADDRESSES[7])
    assert text in finding.evidence[0].text
    assert bool(finding.title) == (reasons == 0x80)  # that is not heat


@pytest.mark.parametrize("reasons", [None, 0, 0x1, 0x2, 0x4, 0x10, 0x100])
def test_idle_and_limits_that_were_set_are_no_slowdown(reasons: int | None) -> None:
    seen = snapshot(report("a", nvidia=nvidia_gpus(clock_reasons=reasons)))
    assert not list(thermal_throttling(seen))


def pages(retired: int, pending: int, failed: int) -> BadPages:
    return BadPages(3, ADDRESS, "/sys/ras/gpu_vram_bad_pages", retired, pending, failed)


@pytest.mark.parametrize(
    ("record", "severity", "value"),
    [
        (pages(5, 0, 0), Severity.INFO, 5.0),
        (pages(5, 2, 0), Severity.WARNING, 2.0),
        (pages(0, 0, 1), Severity.WARNING, 1.0),
    ],
)
def test_bad_pages_in_use_are_a_warning(record: BadPages, severity: Severity, value: float) -> None:
    (finding,) = bad_pages(snapshot(report("a", bad_pages=[record], ras=[count(ue=0)])))
    assert (finding.failure_class, finding.severity) == ("gpu-memory-degrading", severity)
    assert (finding.gpu, finding.device) == (3, ADDRESS)
    assert finding.evidence[0].value == value


def test_no_bad_page_is_silent() -> None:
    assert not list(bad_pages(snapshot(report("a", bad_pages=[pages(0, 0, 0)]))))


def test_bad_pages_are_evidence_of_the_error_that_made_them() -> None:
    sick = report("a", bad_pages=[pages(5, 1, 0)], ras=[count(ue=1), count("gfx")])
    (finding,) = judge_nodes(snapshot(sick))
    assert (finding.failure_class, finding.severity) == ("gpu-memory-error", Severity.CRITICAL)
    assert [piece.source for piece in finding.evidence] == [
        "/sys/ras/umc_err_count",
        "/sys/ras/gpu_vram_bad_pages",
    ]


@pytest.mark.parametrize(
    ("remaps", "failure_class"),
    [
        ({"rows_remapped": 3, "remap_pending": False, "remap_failed": False}, None),
        ({"rows_remapped": 3, "remap_pending": True}, "gpu-memory-degrading"),
        ({"rows_remapped": 512, "remap_pending": True, "remap_failed": True}, "gpu-memory-error"),
        ({}, None),
    ],
)
def test_row_remapping(remaps: dict[str, Any], failure_class: str | None) -> None:
    found = list(row_remapping(snapshot(report("a", nvidia=nvidia_gpus(2, **remaps)))))
    assert [one.failure_class for one in found] == [failure_class] * bool(failure_class)
    assert all((one.gpu, one.severity) == (1, Severity.WARNING) for one in found)
