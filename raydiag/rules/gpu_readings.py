"""Readings of GPUs of either maker in one form, grouped by machine, for rules that compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from raydiag.model import NodeReport, Snapshot
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.nvidia import NvidiaGpu
from raydiag.rules.growth import pairs
from raydiag.rules.nodes import by_host, distinct

# Of its power limit. Idle and busy-waiting GPUs of all models known draw less, training ones more.
_LOADED_FRACTION = 0.5
_GIB = 1 << 30


@dataclass(frozen=True)
class GpuReading:
    host: str
    gpu: int
    address: str
    model: str  # what tells models apart: the name, or the size of the memory
    source: str  # for evidence
    time: float | None
    temperature_c: float | None
    temperature_crit_c: float | None
    power_w: float | None
    power_cap_w: float | None
    clock_mhz: float | None
    vram_used_bytes: int | None
    vram_total_bytes: int | None
    utilisation_percent: float | None  # where it can be trusted
    averaged: bool  # its power is an average, not a moment

    @property
    def loaded(self) -> bool:
        """Whether it clearly computes; False also where that is unknown."""
        if self.power_w is None or not self.power_cap_w:
            return False
        return self.power_w >= _LOADED_FRACTION * self.power_cap_w


def gpu_readings(snapshot: Snapshot) -> dict[str, list[GpuReading]]:
    """By machine; the first sample where a probe took two."""
    return {
        host: [
            *(_amd(host, one, reports) for one in distinct(reports, "gpu_sensors", "address")),
            *(_nvidia(host, one, reports) for one in distinct(reports, "nvidia", "address")),
        ]
        for host, reports in by_host(snapshot).items()
    }


def later_gpu_readings(snapshot: Snapshot) -> dict[str, list[GpuReading]]:
    """By machine, the second sample of those GPUs that have one."""
    return {
        host: [
            *(_amd(host, one, reports) for _, one, _ in pairs(reports, "gpu_sensors", "address")),
            *(_nvidia(host, one, reports) for _, one, _ in pairs(reports, "nvidia", "address")),
        ]
        for host, reports in by_host(snapshot).items()
    }


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Median, and median distance from it, scaled to be a standard deviation where normal."""
    middle = median(values)
    return middle, 1.4826 * median(abs(value - middle) for value in values)


def _amd(host: str, sensors: GpuSensors, reports: Sequence[NodeReport]) -> GpuReading:
    total = sensors.vram_total_bytes
    return GpuReading(
        host=host,
        gpu=sensors.gpu,
        address=sensors.address,
        model=f"amdgpu with {round(total / _GIB)} GiB" if total else "amdgpu",
        source=f"hwmon of {sensors.address}",
        time=reports[0].collected_at or None,
        temperature_c=sensors.temperature_c,
        temperature_crit_c=sensors.temperature_crit_c,
        power_w=sensors.power_w,
        power_cap_w=sensors.power_cap_w,
        clock_mhz=sensors.sclk_mhz,
        vram_used_bytes=sensors.vram_used_bytes,
        vram_total_bytes=total,
        utilisation_percent=None,  # gpu_busy_percent reads 0 on some models under full load
        averaged=sensors.power_averaged,
    )


def _nvidia(host: str, gpu: NvidiaGpu, reports: Sequence[NodeReport]) -> GpuReading:
    return GpuReading(
        host=host,
        gpu=gpu.gpu,
        address=gpu.address,
        model=gpu.name or "nvidia",
        source=f"nvidia-smi, {gpu.address}",
        time=reports[0].collected_at or None,
        temperature_c=gpu.temperature_c,
        temperature_crit_c=None,  # it says itself when it slows down for heat
        power_w=gpu.power_w,
        power_cap_w=gpu.power_cap_w,
        clock_mhz=gpu.sm_clock_mhz,
        vram_used_bytes=gpu.vram_used_bytes,
        vram_total_bytes=gpu.vram_total_bytes,
        utilisation_percent=gpu.utilisation_percent,
        averaged=True,
    )
