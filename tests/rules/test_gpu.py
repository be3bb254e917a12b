from __future__ import annotations

from typing import Any

import pytest

from raydiag.model import Severity
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.ras import RasCount
from raydiag.rules.gpu import thermal_throttling, uncorrectable_errors
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
