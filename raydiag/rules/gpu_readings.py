"""Readings of AMD and NVIDIA GPUs in one form, grouped by machine, for rules that compare them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from raydiag.model import Evidence, Finding, Snapshot
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.nvidia import NvidiaGpu
from raydiag.rules.machines import Machine, machines

# Of its power limit. Idle and busy-waiting GPUs of all known models draw less, training ones more.
_LOADED_FRACTION = 0.5
_GIB = 1 << 30
_SHARED = (
    *("gpu", "address", "temperature_c", "power_w", "power_cap_w"),
    *("vram_used_bytes", "vram_total_bytes"),
)


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment; None: not known."""

    machine: Machine
    gpu: int
    address: str
    model: str  # what tells models apart: the name, or the size of the memory
    source: str  # for evidence
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
    def key(self) -> tuple[str, str]:
        """Machine and PCI address."""
        return self.machine.name, self.address

    @property
    def loaded(self) -> bool:
        """Whether it clearly computes; False also where that is unknown."""
        if self.power_w is None or not self.power_cap_w:
            return False
        return self.power_w >= _LOADED_FRACTION * self.power_cap_w

    def evidence(self, text: str, value: float) -> Evidence:
        """A piece of evidence from where this was read."""
        return self.machine.evidence(self.source, text, value)

    def finding(self, failure_class: str, *evidence: Evidence, **fields: Any) -> Finding:
        """A finding about this GPU; `fields`: what else is known of it."""
        return self.machine.finding(
            failure_class, *evidence, gpu=self.gpu, device=self.address, **fields
        )


def gpu_readings(snapshot: Snapshot) -> Iterator[list[GpuReading]]:
    """The GPUs of each machine; the first sample where a probe took two."""
    for machine in machines(snapshot):
        amd = map(partial(_amd, machine), machine.records(GpuSensors))
        yield [*amd, *map(partial(_nvidia, machine), machine.records(NvidiaGpu))]


def later_gpu_readings(snapshot: Snapshot) -> Iterator[list[GpuReading]]:
    """Of each machine, the second sample of those GPUs that have one."""
    for machine in machines(snapshot):
        samples = machine.samples(GpuSensors)  # nvidia-smi is asked once
        yield [_amd(machine, sample.later) for sample in samples]


def every_gpu(snapshot: Snapshot) -> list[GpuReading]:
    """The GPUs of all machines."""
    return list(itertools.chain(*gpu_readings(snapshot)))


def _amd(machine: Machine, sensors: GpuSensors) -> GpuReading:
    total = sensors.vram_total_bytes
    return GpuReading(
        machine=machine,
        model=f"amdgpu with {round(total / _GIB)} GiB" if total else "amdgpu",
        source=f"hwmon of {sensors.address}",
        temperature_crit_c=sensors.temperature_crit_c,
        clock_mhz=sensors.sclk_mhz,
        utilisation_percent=None,  # gpu_busy_percent reads 0 on some models under full load
        averaged=sensors.power_averaged,
        **_shared(sensors),
    )


def _nvidia(machine: Machine, gpu: NvidiaGpu) -> GpuReading:
    return GpuReading(
        machine=machine,
        model=gpu.name or "nvidia",
        source=f"nvidia-smi, {gpu.address}",
        temperature_crit_c=None,  # it says itself when it slows down for heat
        clock_mhz=gpu.sm_clock_mhz,
        utilisation_percent=gpu.utilisation_percent,
        averaged=True,
        **_shared(gpu),
    )


def _shared(record: object) -> dict[str, Any]:
    """What both probes call the same."""
    return {name: getattr(record, name) for name in _SHARED}
