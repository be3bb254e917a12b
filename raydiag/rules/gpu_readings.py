"""Readings of AMD and NVIDIA GPUs in one form, grouped by machine, for rules that compare them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from raydiag.model import Evidence, Snapshot
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.nvidia import NvidiaGpu
from raydiag.rules.machines import Machine, machines

# Of its power limit. Idle and busy-waiting GPUs of all known models draw less, training ones more.
_LOADED_FRACTION = 0.5
_GIB = 1 << 30


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


def gpu_readings(snapshot: Snapshot) -> Iterator[list[GpuReading]]:
    """The GPUs of each machine; the first sample where a probe took two."""
    for machine in machines(snapshot):
        yield _readings(machine, machine.records(GpuSensors), machine.records(NvidiaGpu))


def later_gpu_readings(snapshot: Snapshot) -> Iterator[list[GpuReading]]:
    """Of each machine, the second sample of those GPUs that have one."""
    for machine in machines(snapshot):
        amd = map(attrgetter("later"), machine.samples(GpuSensors))
        nvidia = map(attrgetter("later"), machine.samples(NvidiaGpu))
        yield _readings(machine, amd, nvidia)


def every_gpu(snapshot: Snapshot) -> list[GpuReading]:
    """The GPUs of all machines."""
    return list(itertools.chain(*gpu_readings(snapshot)))


def _readings(
    machine: Machine, amd: Iterable[GpuSensors], nvidia: Iterable[NvidiaGpu]
) -> list[GpuReading]:
    return [*map(partial(_amd, machine), amd), *map(partial(_nvidia, machine), nvidia)]


def _amd(machine: Machine, sensors: GpuSensors) -> GpuReading:
    total = sensors.vram_total_bytes
    return GpuReading(
        machine=machine,
        gpu=sensors.gpu,
        address=sensors.address,
        model=f"amdgpu with {round(total / _GIB)} GiB" if total else "amdgpu",
        source=f"hwmon of {sensors.address}",
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


def _nvidia(machine: Machine, gpu: NvidiaGpu) -> GpuReading:
    return GpuReading(
        machine=machine,
        gpu=gpu.gpu,
        address=gpu.address,
        model=gpu.name or "nvidia",
        source=f"nvidia-smi, {gpu.address}",
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
